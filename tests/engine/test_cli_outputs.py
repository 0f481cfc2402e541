"""Files that the command line writes: refused before a job where they cannot be; nothing sampled is lost after it."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from engine.cli import delivery as cli_delivery
from engine.cli.delivery import Delivery
from engine.cli.files import in_options
from engine.cli.places import check_place, free_name, move
from engine.contract.errors import ConfigError, JobError
from engine.contract.latent_file import describe
from tests.engine.test_cli import QUICK, command
from tests.support.engine_process import ROOT, EngineProcess

NOWHERE = ("--url", "http://127.0.0.1:9")
FOX = ("generate", "--prompt", "a fox", *NOWHERE)


def write_latents(path: Path) -> Path:
    """Write latents of 22 frames, 64 pixels square."""
    video, audio = np.zeros((1, 24, 7, 4, 4), np.float32), np.zeros((1, 32, 2, 37), np.float32)
    save_file({"video": video, "audio": audio}, path, describe(7))
    return path


# --- before the job


@pytest.mark.parametrize("option", ["-o", "--keep-latents"])
@pytest.mark.parametrize("numbers", [False, True])
def test_a_pipe_or_socket_where_a_file_is_to_be_written_is_refused_and_stays(
    tmp_path: Path, option: str, numbers: bool
) -> None:
    name = "x-2.mp4" if numbers else "x.mp4"
    several = ("--num-outputs", "2") if numbers else ()
    for make in (os.mkfifo, lambda path: socket.socket(socket.AF_UNIX).bind(str(path))):
        path = tmp_path / name
        make(path)
        before = path.lstat()
        other = () if option == "-o" else ("-o", str(tmp_path / "y.mp4"))
        done = command(*FOX, *several, *other, option, str(tmp_path / "x.mp4"))
        assert (done.returncode, "no regular file" in done.stderr) == (2, True), done.stderr
        assert (path.lstat().st_ino, path.lstat().st_mode) == (before.st_ino, before.st_mode)
        assert not stat.S_ISREG(before.st_mode)
        path.unlink()


def test_a_link_to_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "x.mp4").symlink_to(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="no regular file"):
        check_place(tmp_path / "x.mp4", "output")


@pytest.mark.parametrize(
    "words",
    [("-o", f"{'x' * 260}.mp4"), ("--keep-latents", "x" * 260), ("--num-outputs", "2", "-o", f"{'x' * 251}.mp4")],
)
def test_a_name_that_is_too_long_is_refused_before_the_job(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = command(*FOX, *words[:-1], str(tmp_path / words[-1]))
    assert done.returncode == 2, done.stderr
    assert "too long" in done.stderr
    assert "Use a shorter name" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("field", ["output", "keep_latents"])
def test_a_disk_that_is_full_already_is_told_before_the_job(tmp_path: Path, field: str) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(ConfigError, match="File too large") as caught:
            check_place(tmp_path / "x.mp4", field)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (caught.value.field, "Make room" in str(caught.value.remedy)) == (field, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        ("-o", "t.mp4", "--keep-latents", "./t.mp4"),
        ("-o", "t.mp4", "--keep-latents", "link/t.mp4"),
        ("-o", "u.mp4", "--keep-latents", "u.mp4", "--num-outputs", "2"),
        ("-o", "u-1", "--keep-latents", "hard", "--num-outputs", "1"),
        ("-o", "source.mp4", "--source-video", "source.mp4"),
        ("-o", "y.mp4", "--keep-latents", "source.mp4", "--ref-video", "link/source.mp4"),
        ("-o", "s.mp4", "--source-video", "s-2.mp4", "--num-outputs", "2"),
        ("-o", "y.mp4", "--keep-latents", "mask.json", "--mask-document", "mask.json", "--source-video", "source.mp4"),
    ],
)
def test_files_that_would_replace_one_another_are_refused_before_the_job(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("source.mp4", "s-2.mp4", "u-1"):
        (tmp_path / name).write_bytes(b"the user's")
    (tmp_path / "hard").hardlink_to(tmp_path / "u-1")
    (tmp_path / "mask.json").write_text(json.dumps({"version": 1, "layers": []}))
    given = [word if word.startswith("-") or word.isdigit() else os.path.join(tmp_path, word) for word in words]
    done = command(*FOX, *given)
    assert done.returncode == 2, done.stderr
    assert "config_conflict" in done.stderr, done.stderr
    assert (tmp_path / "source.mp4").read_bytes() == b"the user's"


def test_latents_are_not_replaced_by_their_video(tmp_path: Path) -> None:
    path = write_latents(tmp_path / "x.mp4")
    done = command("decode", *NOWHERE, "--latents", str(path), "-o", str(path))
    assert (done.returncode, "config_conflict" in done.stderr) == (2, True), done.stderr


def test_latents_that_were_cut_are_said_to_be_cut(tmp_path: Path) -> None:
    path = write_latents(tmp_path / "x.safetensors")
    path.write_bytes(path.read_bytes()[:9_000])
    done = command("decode", *NOWHERE, "--latents", str(path), "-o", str(tmp_path / "x.mp4"))
    assert (done.returncode, "is cut" in done.stderr, "the part" in done.stderr) == (2, True, False), done.stderr


# --- after it


def deliver(delivery: Delivery, *, fail: BaseException | None = None, latents: int = 1) -> None:
    """Let latents arrive, and end as a job does."""
    with delivery:
        for index in range(latents):
            path = delivery.folder / f"{index}.safetensors"
            path.write_bytes(b"latents %d" % index)
            delivery.take({"type": "output", "name": "latents", "path": path, "job_id": "id"})
        if fail is not None:
            raise fail


def fail_to_deliver(delivery: Delivery, *, latents: int = 1) -> None:
    """The same with a job that fails: its error comes through, whatever becomes of the files."""
    with pytest.raises(JobError) as caught:
        deliver(delivery, fail=JobError("out_of_memory", "the job's"), latents=latents)
    assert caught.value.message == "the job's"


def test_latents_of_an_earlier_failure_are_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(3):
        fail_to_deliver(Delivery(tmp_path / "fox.mp4"))
    names = ["fox.latents-2.safetensors", "fox.latents-3.safetensors", "fox.latents.safetensors"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert f"decode --latents {tmp_path / names[1]}" in capsys.readouterr().err.splitlines()[-1]


def test_of_several_videos_latents_are_named_as_the_video_is(tmp_path: Path) -> None:
    fail_to_deliver(Delivery(tmp_path / "fox.mp4", count=3), latents=2)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "fox-1.latents.safetensors": b"latents 0",
        "fox-2.latents.safetensors": b"latents 1",
    }


@pytest.mark.parametrize("stem", ["x" * 240, "Ж" * 120, "x" * 251])
def test_latents_beside_an_output_with_a_long_name_get_a_shorter_one(tmp_path: Path, stem: str) -> None:
    for _ in range(2):
        fail_to_deliver(Delivery(tmp_path / f"{stem}.mp4"))
    kept = list(tmp_path.iterdir())
    assert [path.name[:100] for path in kept] == [stem[:100]] * 2
    assert all(path.name.endswith(".safetensors") for path in kept)


@pytest.mark.parametrize("failing", [False, True])
def test_latents_that_cannot_go_where_they_were_wanted_stay_beside_the_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], failing: bool
) -> None:
    (tmp_path / "gone").mkdir()
    delivery = Delivery(tmp_path / "fox.mp4", keep=str(tmp_path / "gone" / "k.safetensors"))
    (tmp_path / "gone").rmdir()
    if failing:
        fail_to_deliver(delivery)
    else:
        deliver(delivery)
        assert delivery.failure is not None
        assert (delivery.failure.field, delivery.failure.code) == ("keep_latents", "config_bad_value")
    assert [path.name for path in tmp_path.iterdir()] == ["fox.latents.safetensors"]
    told = capsys.readouterr().err
    assert f"the sampled latents are in {tmp_path / 'fox.latents.safetensors'}" in told
    assert ("note: The latents cannot be written: No such file" in told) == failing


def test_latents_that_can_go_nowhere_stay_where_they_were_received(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> Path:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(cli_delivery, "free_name", refuse)
    delivery = Delivery(tmp_path / "fox.mp4")
    fail_to_deliver(delivery)
    kept = delivery.folder / "0.safetensors"
    assert kept.read_bytes() == b"latents 0"
    assert f"decode --latents {kept}" in capsys.readouterr().err


def test_a_video_that_cannot_be_put_in_its_place_is_kept_and_said(tmp_path: Path) -> None:
    output = tmp_path / "fox.mp4"
    delivery = Delivery(output, count=2)
    (tmp_path / "fox-2.mp4").mkdir()
    with delivery:
        made = [delivery.folder / "a.mp4", delivery.folder / "b.mp4"]
        for path in made:
            path.write_bytes(b"video")
        with pytest.raises(ConfigError, match="output cannot be written") as caught:
            delivery.put_videos(made)
    assert f"What was made lies in {tmp_path / 'fox-1.mp4'}, {made[1]}." in str(caught.value.remedy)
    assert made[1].read_bytes() == b"video"


@pytest.mark.parametrize("full", [False, True])
def test_a_move_to_another_file_system_gives_the_whole_file_or_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    source, target = tmp_path / "source", tmp_path / "other" / "target"
    source.write_bytes(b"new")
    target.parent.mkdir()
    target.write_bytes(b"old")
    plain: Callable[[Path, Path], Path] = Path.replace

    def replace(path: Path, place: Path) -> Path:
        if path.parent != place.parent:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        return plain(path, place)

    def cut(_: Path, copy: Path) -> None:
        copy.write_bytes(b"n")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", replace)
    if full:
        monkeypatch.setattr(shutil, "copyfile", cut)
        with pytest.raises(OSError, match="No space"):
            move(source, target)
    else:
        move(source, target)
    assert (target.read_bytes(), source.exists()) == ((b"old", True) if full else (b"new", False))
    assert list(target.parent.iterdir()) == [target]


def test_a_free_name_is_one_at_which_not_even_a_dead_link_is(tmp_path: Path) -> None:
    (tmp_path / "a.x").symlink_to(tmp_path / "nowhere")
    assert free_name(tmp_path, "a", ".x").name == "a-2.x"


def test_a_part_is_named_by_its_option_and_file() -> None:
    parts = {"latents": Path("/x.st"), "first-frame-0": Path("/a.png")}
    assert in_options("parts.latents.video", {}, parts) == "--latents /x.st"
    assert in_options("parts.first-frame-0: bad", {}, parts) == "--first-frame /a.png: bad"
    assert in_options("parts.other.video", {}, parts) == "parts.other.video"


def test_results_that_a_full_disk_does_not_take_are_an_error_in_words() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "engine", "plan", "--gpus", "1", "--gpu-memory", "80"],
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )
    assert (done.returncode, "No space left" in done.stderr, "Traceback" in done.stderr) == (2, True, False)


def small(limit: int, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command line where no file may be longer than ``limit`` bytes."""
    return subprocess.run(
        [sys.executable, "-m", "engine", *words],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )


def test_a_full_disk_of_temporary_files_is_an_error_in_words(tmp_path: Path) -> None:
    done = small(1_000_000, "ping", "--megabytes", "5", *NOWHERE, TMPDIR=str(tmp_path))
    assert (done.returncode, "TMPDIR" in done.stderr, "Traceback" in done.stderr) == (2, True, False), done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.ranks
class TestWithAnEngine:
    """Real jobs whose results find no room."""

    def test_a_video_that_finds_no_room_is_an_error_in_words_and_leaves_nothing(
        self, engine: EngineProcess, tmp_path: Path
    ) -> None:
        latents, output = write_latents(tmp_path / "x.safetensors"), tmp_path / "x.mp4"
        done = small(5_000, "decode", "--url", engine.url, "--latents", str(latents), "-o", str(output))
        assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
        assert "The output cannot be written: File too large." in done.stderr
        assert "Make room" in done.stderr
        assert list(tmp_path.iterdir()) == [latents]

    def test_latents_that_find_no_room_are_still_on_the_engine_and_how_to_get_them_is_said(
        self, engine: EngineProcess, tmp_path: Path
    ) -> None:
        seed = ("--seed", str(os.getpid()), "--steps", "1")
        done = small(2_000, "generate", "--url", engine.url, *QUICK, *seed, "-o", str(tmp_path / "x.mp4"))
        assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
        assert list(tmp_path.iterdir()) == []
        url = done.stderr.rpartition("curl -f -o x.latents.safetensors '")[2].partition("'")[0]
        assert url.startswith(engine.url), done.stderr
        (tmp_path / "x.safetensors").write_bytes(engine.fetch(url.removeprefix(engine.url))[2])
        words = ("--latents", str(tmp_path / "x.safetensors"), "-o", str(tmp_path / "x.mp4"))
        assert command("decode", "--url", engine.url, *words).returncode == 0

    def test_the_video_is_said_when_its_latents_could_not_be_kept(self, engine: EngineProcess, tmp_path: Path) -> None:
        shm = Path("/dev/shm")
        if not shm.is_dir() or shm.stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip("needs a second file system")
        # A file system that refuses only once there is something to write: its folder goes while the job runs.
        keep = shm / f"h3-test-{os.getpid()}"
        keep.mkdir()
        words = ("generate", "--url", engine.url, *QUICK, "--steps", "300", "-o", str(tmp_path / "x.mp4"))
        process = subprocess.Popen(
            [sys.executable, "-m", "engine", *words, "--keep-latents", str(keep / "k.safetensors")],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        process.stderr.readline()
        process.stderr.readline()
        keep.rmdir()
        out, told = process.communicate(timeout=120)
        assert (process.returncode, out.strip()) == (2, str(tmp_path / "x.mp4")), told
        assert "[keep_latents = " in told
        assert sorted(path.name for path in tmp_path.iterdir()) == ["x.latents.safetensors", "x.mp4"]

    def test_latents_of_another_model_are_refused_without_a_word_of_nodes(
        self, engine: EngineProcess, tmp_path: Path
    ) -> None:
        path = tmp_path / "x.safetensors"
        save_file({"video": np.zeros((1, 9, 7, 4, 4), np.float32), "audio": np.zeros((1, 32, 2, 37), np.float32)}, path)
        done = command("decode", "--url", engine.url, "--latents", str(path), "-o", str(tmp_path / "x.mp4"))
        assert (done.returncode, f"[--latents {path} = " in done.stderr) == (2, True), done.stderr
        assert [word for word in ("H3Engine", "Connect", "node", "parts.") if word in done.stderr] == []
