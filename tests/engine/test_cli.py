"""The command line: what it says, where, and its exit status."""

from __future__ import annotations

import asyncio
import functools
import http.server
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import av
import pytest

from engine.cli.main import COMMANDS, build_parser, exit_status
from engine.cli.output import ProgressBar, tell
from engine.contract.errors import ConfigError, EngineBusyError, EngineDeadError, JobCancelled, JobError, RequestError
from engine.contract.limits import DEFAULT_STEPS
from tests.support.engine_process import ROOT, EngineProcess
from tests.support.interrupts import heed_interrupts

QUICK = ("--prompt", "a boat", "--frames", "5", "--width", "32", "--height", "32")


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``python -m engine`` with ``arguments``."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("H3_ENGINE_")}
    return subprocess.run(
        [sys.executable, "-m", "engine", *arguments],
        cwd=ROOT,
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_whose_fault_it_is_is_the_exit_status() -> None:
    assert exit_status(ConfigError("config_conflict", "x")) == 2
    assert exit_status(RequestError("prompt_empty", "x")) == 2
    assert exit_status(JobError("job_failed", "x")) == 3
    assert exit_status(EngineBusyError("queue_full", "x")) == 3
    assert exit_status(EngineDeadError("engine_dead", "x")) == 3
    assert exit_status(JobCancelled()) == 130


def test_every_command_has_help() -> None:
    words = build_parser().format_help()
    assert all(name in words for name in COMMANDS)


@pytest.mark.parametrize("words", [("plan", "--gpus", "1", "--gpu-memory", "80"), ("plan", "--help")])
def test_a_reader_that_has_gone_ends_a_command_quietly(words: tuple[str, ...]) -> None:
    """As ``| head`` goes, here before a line is written."""
    end, pipe = os.pipe()
    os.close(end)
    with (
        open(pipe, "wb") as gone,
        subprocess.Popen(
            [sys.executable, "-m", "engine", *words], cwd=ROOT, stdout=gone, stderr=subprocess.PIPE, text=True
        ) as process,
    ):
        _, told = process.communicate(timeout=120)
    assert told == ""
    # argparse takes no notice when the help is not read.
    assert words[-1] == "--help" or process.returncode == 141


def test_the_command_line_imports_no_torch() -> None:
    program = "import sys, engine.cli, engine.server.app; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--modle", "x"), "--model"),
        ((), "--model DIR"),
        (("--model", "/no/such/folder"), "make-tiny"),
        (("--model", "x", "--nproc-per-node", "2", "--ulysses-degree", "3"), "Working layouts"),
        (("--model", "x", "--nproc-per-node", "4", "--ring-degree", "3"), "Working layouts of 4 ranks"),
        (("--model", "x", "--rank-weights", "1,x"), "positive numbers"),
        (("--model", "x", "--host", "0.0.0.0"), "--token-file"),
        (("--model", "x", "--config", "/no/such/file"), "cannot be read"),
        (("--model", "~nobody-has-this-name/model"), "usable path"),
        (("--model", "x", "--max-seconds", "inf"), "0.25 to 3600"),
        (("--model", "x", "--data-timeout", "nan"), "10 to 86400"),
    ],
)
def test_serve_refuses_to_start_with_words_and_status_2(arguments: tuple[str, ...], words: str) -> None:
    done = command("serve", "--device", "cpu", *arguments)
    assert done.returncode == 2
    assert not done.stdout
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_component_stops_serve_before_any_rank(tiny_checkpoint: Path, tmp_path: Path) -> None:
    for entry in tiny_checkpoint.iterdir():
        if entry.name != "audio_vae":
            (tmp_path / entry.name).symlink_to(entry)
    done = command("serve", "--device", "cpu", "--model", str(tmp_path))
    assert done.returncode == 2
    assert "audio_vae" in done.stderr
    assert "checkpoint_missing" in done.stderr
    assert "fleet" not in done.stderr


def test_heads_that_do_not_divide_stop_serve_before_any_rank(tiny_checkpoint: Path) -> None:
    done = command("serve", "--device", "cpu", "--model", str(tiny_checkpoint), "--tp-degree", "3")
    assert done.returncode == 2
    assert "4 attention heads" in done.stderr
    assert "--ring-degree 3" in done.stderr
    assert "fleet" not in done.stderr


def test_channels_that_do_not_divide_stop_serve_before_any_rank(tiny_checkpoint: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_checkpoint, model)
    for partition in ("transformer", "transformer_ref"):
        config = model / partition / "config.json"
        config.write_text(json.dumps({**json.loads(config.read_text()), "ffn_dim": 66}))
    done = command("serve", "--device", "cpu", "--model", str(model), "--tp-degree", "4")
    assert done.returncode == 2
    assert "tp_degree 4 does not divide the transformer's 66 feed-forward channels" in done.stderr
    assert "--ulysses-degree 2 --ring-degree 1 --tp-degree 2" in done.stderr
    assert "rank 0" not in done.stderr


def test_a_ready_file_or_port_that_cannot_be_had_stops_serve_before_any_rank(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    model = ("serve", "--device", "cpu", "--model", str(tiny_checkpoint))
    done = command(*model, "--port", "0", "--ready-file", str(tmp_path / "no" / "ready.json"))
    assert done.returncode == 2
    assert "ready_file" in done.stderr
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = command(*model, "--port", str(taken.getsockname()[1]))
    assert done.returncode == 2
    assert "Choose another --port" in done.stderr
    assert "fleet" not in done.stderr


def test_a_folder_as_ready_file_and_a_host_that_is_no_name_are_refused_without_leftovers(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    model = ("serve", "--device", "cpu", "--model", str(tiny_checkpoint), "--port", "0")
    folder = tmp_path / "folder"
    folder.mkdir()
    done = command(*model, "--ready-file", str(folder))
    assert (done.returncode, "ready_file" in done.stderr, "Traceback" in done.stderr) == (2, True, False)
    done = command(*model, "--host", "a..b", H3_ENGINE_TOKEN="word")
    assert (done.returncode, "a..b" in done.stderr, "Traceback" in done.stderr) == (2, True, False)
    assert [path.name for path in tmp_path.rglob("*")] == ["folder"]


def test_serve_takes_away_only_its_own_ready_file(tiny_checkpoint: Path, tmp_path: Path) -> None:
    anothers = tmp_path / "ready.json"
    anothers.write_text("another engine's")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        model = ("serve", "--device", "cpu", "--model", str(tiny_checkpoint), "--ready-file", str(anothers))
        assert command(*model, "--port", port).returncode == 2
    assert anothers.read_text() == "another engine's"


def test_a_token_that_no_header_can_carry_is_status_2_for_every_command() -> None:
    done = command("status", H3_ENGINE_TOKEN="two\nlines")
    assert done.returncode == 2
    assert "H3_ENGINE_TOKEN" in done.stderr
    assert "lines" not in done.stderr


@pytest.mark.parametrize("words", [("generate", "--prompt", "a boat"), ("demo",)])
def test_a_folder_as_output_is_refused_before_anything_runs(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = command(*words, "-o", str(tmp_path), H3_ENGINE_URL="http://127.0.0.1:9")
    assert done.returncode == 2
    assert "it is a folder" in done.stderr
    assert "tiny checkpoint" not in done.stderr


def test_another_program_at_the_address_is_no_engine(tmp_path: Path) -> None:
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path)
    with http.server.HTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        done = command("status", "--url", f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
    assert done.returncode == 3
    assert "connection_lost" in done.stderr


def test_an_engine_that_is_not_there_is_the_engines_fault() -> None:
    done = command("status", "--url", "http://127.0.0.1:9")
    assert done.returncode == 3
    assert "h3-engine serve" in done.stderr
    assert not done.stdout


def test_make_tiny_says_the_folder_and_refuses_a_full_one(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    done = command("make-tiny", str(folder))
    assert (done.returncode, done.stdout.strip()) == (0, str(folder))
    assert (folder / "modular_model_index.json").is_file()
    full = tmp_path / "full"
    full.mkdir()
    (full / "letter.txt").write_text("keep me")
    assert command("make-tiny", str(full)).returncode == 2
    assert (full / "letter.txt").read_text() == "keep me"
    done = command("make-tiny", "/proc/model")
    assert (done.returncode, "folder" in done.stderr, "Traceback" in done.stderr) == (2, True, False)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("generate", "--prompt", "A", "red", "fox"), ("'red fox'", "quotes")),
        (("generate", "--promt", "A red fox"), ("--promt", "Did you mean --prompt?")),
        (("generate", "--second=5", "--prompt", "A fox"), ("--second", "--seconds")),
        (("ping", "--megabyte", "5"), ("--megabyte", "--megabytes")),
        (("serve", "--modell", "/a"), ("--modell", "--model")),
        (("generate",), ("prompt is needed", "--prompt")),
        (("decode",), ("Latents are needed", "--latents FILE")),
        (("decode", "--latents", "/nowhere"), ("cannot be read", "latents")),
        (("decode", "--latents", __file__), ("latents",)),
        (("decode", "--latents", "/dev/zero"), ("latents", "not a regular file")),
        (("generate", "--prompt", "A fox", "--keep-latents", "/nowhere/x"), ("keep_latents", "folder that exists")),
        (("generate", "--prompt", "A fox", "-o", "/nowhere/x.mp4"), ("no folder /nowhere", "Make it")),
        (("generate", "--prompt", "A fox", "-o", "/tmp/x.mov"), ("MP4 files, not .mov", ".mp4")),
        (("status", "--url", "ftp://localhost:8190"), ("http://host:port", "url")),
    ],
)
def test_what_is_mistyped_is_status_2_with_what_was_meant(words: tuple[str, ...], told: tuple[str, ...]) -> None:
    done = command(*words)
    assert done.returncode == 2
    assert [word for word in told if word not in done.stderr] == [], done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("generate",), ("(default: 5)", f"(default: {DEFAULT_STEPS})", "(default: 0)", "(default: output.mp4)")),
        (("ping",), ("(default: 64)",)),
        (("demo",), ("(default: demo.mp4)",)),
        (("make-tiny",), ("(default: tiny)",)),
        (("status",), ("as JSON",)),
    ],
)
def test_help_names_the_defaults(words: tuple[str, ...], told: tuple[str, ...]) -> None:
    text = " ".join(command(*words, "--help").stdout.split())
    assert [word for word in told if word not in text] == []


def test_what_is_told_after_the_bar_has_a_line_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    bar = ProgressBar()
    bar.take({"type": "warning", "message": "first"})
    bar.take({"type": "stage_started", "stage": "denoise", "progress": 0.1})
    bar.take({"type": "warning", "message": "second"})
    bar.take({"type": "step", "stage": "denoise", "step": 1, "total": 2, "progress": 0.2, "remaining_seconds": 1.0})
    bar.close()
    tell("error: third")
    lines = capsys.readouterr().err.split("\n")
    assert (lines[0], lines[2], lines[4]) == ("note: first", "note: second", "error: third")
    assert "denoise" in lines[1]
    assert "denoise 1/2" in lines[3]


def test_a_stage_that_was_known_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    bar = ProgressBar()
    bar.take({"type": "stage_finished", "stage": "encode_prompt", "seconds": 0.0, "progress": 0.1, "cached": True})
    bar.take({"type": "stage_finished", "stage": "denoise", "seconds": 2.0, "progress": 0.9})
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("encode_prompt: known already")


def test_of_several_outputs_it_is_told_which_one_is_made(capsys: pytest.CaptureFixture[str]) -> None:
    bar = ProgressBar(3)
    bar.take({"type": "stage_started", "stage": "encode_prompt", "progress": 0.0})
    bar.take({"type": "stage_finished", "stage": "denoise", "seconds": 0.0, "progress": 0.3, "cached": True})
    for stage in ("denoise", "decode_video"):
        bar.take({"type": "stage_started", "stage": stage, "progress": 0.5})
        bar.take({"type": "stage_finished", "stage": stage, "seconds": 1.0, "progress": 0.5})
    words = [line.partition("% ")[2] for line in capsys.readouterr().err.splitlines()]
    assert words == [
        "encode_prompt",
        "video 1 of 3: denoise: known already",
        "video 2 of 3: denoise",
        "video 2 of 3: decode_video",
    ]


@pytest.mark.ranks
class TestWithAnEngine:
    """Commands against the shared engine."""

    def test_status_describes_the_engine_as_json(self, engine: EngineProcess) -> None:
        done = command("status", H3_ENGINE_URL=engine.url)
        assert done.returncode == 0
        answer = json.loads(done.stdout)
        assert answer["health"]["status"] == "ready"
        assert answer["info"]["ranks"] == 2

    def test_an_address_without_its_scheme_will_do(self, engine: EngineProcess) -> None:
        done = command("status", "--url", engine.url.removeprefix("http://"))
        assert (done.returncode, done.stderr) == (0, f"engine at {engine.url}\n")

    def test_generate_writes_the_mp4_and_says_its_path(self, engine: EngineProcess, tmp_path: Path) -> None:
        target = tmp_path / "boat.mp4"
        done = command("generate", "--url", engine.url, *QUICK, "--steps", "1", "-o", str(target))
        assert (done.returncode, done.stdout.strip()) == (0, str(target))
        assert "100%" in done.stderr
        with av.open(str(target)) as container:
            assert container.streams.video[0].frames == 5
        assert [path.name for path in tmp_path.iterdir()] == ["boat.mp4"]

    def test_a_refused_request_is_status_2_with_field_and_remedy(self, engine: EngineProcess, tmp_path: Path) -> None:
        done = command("generate", "--url", engine.url, *QUICK, "--steps", "0", "-o", str(tmp_path / "x.mp4"))
        assert done.returncode == 2
        assert "request.steps" in done.stderr
        assert not list(tmp_path.iterdir())

    def test_an_output_that_cannot_be_written_is_found_before_the_job(self, engine: EngineProcess) -> None:
        before = engine.metric("jobs_submitted_total")
        done = command("generate", "--url", engine.url, *QUICK, "-o", "/no/such/folder/x.mp4")
        assert done.returncode == 2
        assert engine.metric("jobs_submitted_total") == before

    async def test_ctrl_c_cancels_the_job(self, engine: EngineProcess, tmp_path: Path) -> None:
        before = engine.get("/v1/jobs")["jobs"]
        process = subprocess.Popen(
            [sys.executable, "-m", "engine", "generate", "--url", engine.url, *QUICK, "--steps", "1000"],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            preexec_fn=heed_interrupts,
        )
        known = {job["job_id"] for job in before}
        deadline = time.monotonic() + 60
        # Its own job, running: a busy engine alone might still be at the end of an earlier one.
        while not (mine := [job for job in engine.get("/v1/jobs")["jobs"] if job["job_id"] not in known]) or (
            mine[0]["state"] != "running"
        ):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, words = process.communicate(timeout=60)
        assert process.returncode == 130, words.decode()
        engine.wait_for("ready", 60)
        assert engine.get(f"/v1/jobs/{mine[0]['job_id']}")["state"] == "cancelled"
        assert not (ROOT / "output.mp4").exists()

    def test_ping_says_a_throughput(self, engine: EngineProcess) -> None:
        done = command("ping", "--url", engine.url, "--megabytes", "5")
        assert done.returncode == 0
        assert "5.0 MB there and back" in done.stdout


@pytest.mark.ranks
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_demo_ends_with_the_path_of_a_playable_video(tmp_path: Path) -> None:
    target = tmp_path / "demo.mp4"
    done = command("demo", "-o", str(target))
    assert (done.returncode, done.stdout.strip()) == (0, str(target)), done.stderr
    with av.open(str(target)) as container:
        video, audio = container.streams.video[0], container.streams.audio[0]
        assert (video.frames, video.average_rate) == (124, 24)
        assert (audio.rate, audio.channels) == (32000, 2)
