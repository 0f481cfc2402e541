"""Frames leave while later ones are decoded, memory does not grow with the length, and nothing sampled is lost."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.client import Channel, EngineClient
from engine.contract.errors import JobError
from engine.contract.geometry import audio_latents, latent_frames
from engine.contract.limits import CHUNKS_AHEAD
from engine.devices import convolves_with_avx512
from tests.support.engine_process import ROOT, EngineProcess
from tests.support.jobs import QUICK, events_until_final, new_id, wait_for_event
from tests.support.video import video_facts

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(180)]

DECODER = "MiniMaxH3VideoViTDecoder3d"
MP4 = {"task": "decode", "container": "mp4"}
FRAMES = {"task": "decode"}
CLIENT_TIMEOUT = 12.0


@pytest.fixture(scope="module")
def engine(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """An engine of two ranks in which faults can be planted, and whose freed memory goes back to the system at once."""
    options = ("--cache-mb", "0", "--client-timeout", str(CLIENT_TIMEOUT))
    folder = tmp_path_factory.mktemp("streaming")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MALLOC_MMAP_THRESHOLD_", "65536")
        with EngineProcess(tiny_checkpoint, folder, options=options, faults=True) as process:
            yield process


@pytest.fixture
async def client(engine: EngineProcess) -> AsyncIterator[EngineClient]:
    async with EngineClient(engine.url) as made:
        yield made


def write_latents(folder: Path, *, frames: int, side: int = 64) -> Path:
    """Write latents of a square video; return the file."""
    noise = torch.Generator().manual_seed(frames)
    video = torch.randn(1, 24, latent_frames(frames), side // 16, side // 16, generator=noise)
    audio = torch.randn(1, 32, 2, audio_latents(frames), generator=noise)
    path = folder / f"latents-{frames}.safetensors"
    save_file({"video": video, "audio": audio}, path)
    return path


async def next_output(channel: Channel, name: str) -> dict[str, Any]:
    """Return the next piece of ``name``, which has arrived whole."""
    async for event in channel.events():
        if event["type"] == "output" and event["name"] == name:
            return event
        assert event["type"] not in ("done", "error"), event
    raise AssertionError("the connection ended")


def writers(engine: EngineProcess) -> list[psutil.Process]:
    """Return the programs that write an MP4."""
    return [process for process in engine.descendants() if "engine.mux_process" in process.cmdline()]


async def test_with_decoding_stalled_after_its_first_chunks_the_client_has_their_frames(
    engine: EngineProcess, client: EngineClient, tmp_path: Path
) -> None:
    latents = write_latents(tmp_path, frames=124)
    async with client.connect(tmp_path) as channel:
        with engine.fault(rank=0, module=DECODER, call=1, do="stall"):
            job_id = new_id()
            await channel.submit(FRAMES, job_id=job_id, inputs={"latents": latents})
            first = await asyncio.wait_for(next_output(channel, "frames"), 30)
            early = load_file(first["path"])["frames"]
            assert (first["index"], early.shape) == (0, (17, 64, 64, 3))
            # It stays stalled: nothing is left to come but what was decoded with the first chunk.
            job = engine.get(f"/v1/jobs/{job_id}")
            assert (job["state"], job["stage"]) == ("running", "decode_video")
        events = await asyncio.wait_for(events_until_final(channel, job_id), 60)
    rest = [load_file(event["path"])["frames"] for event in events if event.get("name") == "frames"]
    assert sum(map(len, rest)) == 124 - 17
    whole = await client.run(FRAMES, inputs={"latents": latents}, folder=tmp_path)
    assert torch.equal(torch.cat([early, *rest]), torch.cat([load_file(f)["frames"] for f in whole.outputs["frames"]]))


async def test_an_mp4_is_written_while_its_decoding_goes_on_with_a_preview_of_each_chunk(
    engine: EngineProcess, client: EngineClient, tmp_path: Path
) -> None:
    latents = write_latents(tmp_path, frames=124)
    async with client.connect(tmp_path) as channel:
        with engine.fault(rank=0, module=DECODER, call=1, do="stall"):
            job_id = new_id()
            await channel.submit(MP4, job_id=job_id, inputs={"latents": latents})
            preview = await asyncio.wait_for(next_output(channel, "preview"), 30)
            assert load_file(preview["path"])["preview"].shape == (64, 64, 3)
            (writer,) = writers(engine)
            assert writer.ppid() == engine.process.pid
        events = await asyncio.wait_for(events_until_final(channel, job_id), 60)
    previews = [event["index"] for event in events if event.get("name") == "preview"]
    assert previews == list(range(1, 7))
    facts = video_facts(next(event["path"] for event in events if event.get("name") == "video"))
    assert (facts.frames, facts.width, facts.height) == (124, 64, 64)
    assert not writers(engine)


async def test_a_killed_mp4_writer_is_an_error_of_its_job_alone(
    engine: EngineProcess, client: EngineClient, tmp_path: Path
) -> None:
    before = engine.get("/v1/info")["pids"]
    async with client.connect(tmp_path) as channel:
        with engine.fault(rank=0, module=DECODER, call=1, do="stall"):
            job_id = new_id()
            latents = write_latents(tmp_path, frames=124)
            await channel.submit(MP4, job_id=job_id, inputs={"latents": latents})
            await asyncio.wait_for(next_output(channel, "preview"), 30)
            writers(engine)[0].send_signal(signal.SIGKILL)
        error = (await asyncio.wait_for(events_until_final(channel, job_id), 30))[-1]["error"]
    assert (error["code"], error["kind"], error["field"]) == ("job_failed", "JobError", "video")
    assert "status -9" in error["message"]
    assert "latents" in error["remedy"]
    outcome = await client.run(QUICK, folder=tmp_path)
    assert video_facts(outcome.outputs["video"][0]).frames == 5
    assert engine.get("/v1/info")["pids"] == before


async def test_a_job_cancelled_while_its_mp4_is_written_leaves_no_program(
    engine: EngineProcess, client: EngineClient, tmp_path: Path
) -> None:
    async with client.connect(tmp_path) as channel:
        with engine.fault(rank=0, module=DECODER, call=1, do="stall"):
            job_id = new_id()
            latents = write_latents(tmp_path, frames=124)
            await channel.submit(MP4, job_id=job_id, inputs={"latents": latents})
            await asyncio.wait_for(next_output(channel, "preview"), 30)
            (writer,) = writers(engine)
            await channel.cancel(job_id)
        assert (await asyncio.wait_for(events_until_final(channel, job_id), 30))[-1]["error"]["code"] == "cancelled"
    await asyncio.to_thread(writer.wait, 10)


def waiting_chunks(engine: EngineProcess) -> list[Path]:
    """Return the chunks of frames that lie in the engine's run folder."""
    commands = [process.cmdline() for process in engine.descendants()]
    folder = next(words[words.index("--run-dir") + 1] for words in commands if "--run-dir" in words)
    return list(Path(folder).glob("job-*/frames-*.safetensors"))


async def test_a_client_that_does_not_read_holds_the_decoding_back_and_one_that_does_leaves_nothing_behind(
    engine: EngineProcess, client: EngineClient, tmp_path: Path
) -> None:
    latents = write_latents(tmp_path, frames=124, side=256)
    async with client.connect(tmp_path) as channel:
        job_id = new_id()
        # 13 MB a chunk: more than the sockets' buffers take.
        await channel.submit({**FRAMES, "frame_dtype": "float32"}, job_id=job_id, inputs={"latents": latents})
        while not waiting_chunks(engine):
            await asyncio.sleep(0.1)
        # Time enough for all seven chunks, did it not wait, and a third of what the ranks would wait.
        for _ in range(14):
            await asyncio.sleep(0.3)
            assert len(waiting_chunks(engine)) <= CHUNKS_AHEAD + 2
        assert len(waiting_chunks(engine)) > CHUNKS_AHEAD
        job = engine.get(f"/v1/jobs/{job_id}")
        assert (job["state"], job["stage"]) == ("running", "decode_video")
        indices = []
        async for event in channel.events():
            if event["type"] == "output" and event["name"] == "frames":
                indices.append(event["index"])
                await channel.received(job_id, event["seq"])
            if event["type"] in ("done", "error"):
                break
        assert (event["type"], indices) == ("done", list(range(7)))
        for _ in range(100):
            if not waiting_chunks(engine):
                return
            await asyncio.sleep(0.05)
    raise AssertionError("chunks that the client has were kept")


async def test_a_client_that_stops_reading_ends_its_job_in_time_and_the_next_one_runs(
    engine: EngineProcess, client: EngineClient, tmp_path: Path
) -> None:
    before = engine.get("/v1/info")["pids"]
    latents = write_latents(tmp_path, frames=124, side=256)
    async with client.connect(tmp_path) as channel:
        job_id = new_id()
        await channel.submit({**FRAMES, "frame_dtype": "float32"}, job_id=job_id, inputs={"latents": latents})
        await wait_for_event(channel, "queued")
        begun = time.monotonic()
        # It waits behind, until the ranks have waited long enough.
        outcome = await client.run(QUICK, folder=tmp_path)
        assert time.monotonic() - begun > CLIENT_TIMEOUT
        assert video_facts(outcome.outputs["video"][0]).frames == 5
        told = engine.get(f"/v1/jobs/{job_id}")
        assert (told["state"], told["error"]["code"]) == ("error", "client_too_slow")
        # Whoever reads on is given what there is, and why it ended.
        events = await asyncio.wait_for(events_until_final(channel, job_id), 60)
    assert events[-1]["error"] == told["error"]
    assert "--client-timeout" in told["error"]["remedy"]
    assert 0 < sum(event.get("name") == "frames" for event in events) < 7
    assert engine.get("/v1/info")["pids"] == before


@contextlib.contextmanager
def largest_file(pid: int, size: int) -> Iterator[None]:
    """Let the kernel refuse a process files of more than ``size`` bytes, as a quota does, for the time of the block."""
    process = psutil.Process(pid)
    soft, hard = process.rlimit(psutil.RLIMIT_FSIZE)
    process.rlimit(psutil.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        process.rlimit(psutil.RLIMIT_FSIZE, (soft, hard))


async def test_a_run_folder_without_room_for_the_frames_is_told_as_such_and_leaves_the_latents(
    engine: EngineProcess, client: EngineClient, tmp_path: Path
) -> None:
    before = engine.get("/v1/info")["pids"]
    asked = {**QUICK, "frames": 22, "width": 128, "height": 128}
    # Room for latents and sound, 230 kB, and not for a chunk of 830 kB.
    with largest_file(before[0], 300_000), pytest.raises(JobError) as caught:
        await client.run({**asked, "container": "tensors"}, folder=tmp_path)
    error = caught.value
    assert (error.code, error.field) == ("disk_full", "run_dir")
    assert "--run-dir" in str(error.remedy)
    assert error.details["latents"] in str(error.remedy)
    latents = tmp_path / "kept.safetensors"
    latents.write_bytes(engine.fetch(error.details["latents"])[2])
    outcome = await client.run(MP4, inputs={"latents": latents}, folder=tmp_path)
    assert video_facts(outcome.outputs["video"][0]).frames == 22
    assert engine.get("/v1/info")["pids"] == before


async def test_what_was_made_before_a_later_output_failed_is_there_and_so_are_the_latents_of_both(
    engine: EngineProcess, client: EngineClient, tmp_path: Path
) -> None:
    async with client.connect(tmp_path) as channel:
        # A video of five frames is one tile: rank 0 decodes, once for each output.
        with engine.fault(rank=0, module=DECODER, call=1, do="raise"):
            job_id = new_id()
            await channel.submit({**QUICK, "num_outputs": 2}, job_id=job_id)
            error = (await asyncio.wait_for(events_until_final(channel, job_id), 60))[-1]["error"]
    made, missing = (f"/v1/jobs/{job_id}/result?output={number}" for number in (0, 1))
    assert (error["code"], error["details"]["latents"]) == ("job_failed", f"/v1/jobs/{job_id}/latents?output=1")
    assert engine.get(f"/v1/jobs/{job_id}")["results"] == [made]
    (tmp_path / "first.mp4").write_bytes(engine.fetch(made)[2])
    assert video_facts(tmp_path / "first.mp4").frames == 5
    status, answer = engine.call("GET", missing)
    assert (status, answer["error"]["code"]) == (404, "no_result")
    # The error says where the latents are whose decoding failed; they decode to what is missing.
    kept = [tmp_path / f"latents-{number}.safetensors" for number in (0, 1)]
    for path, route in zip(kept, (f"/v1/jobs/{job_id}/latents", error["details"]["latents"]), strict=True):
        path.write_bytes(engine.fetch(route)[2])
    assert not torch.equal(*(load_file(path)["video"] for path in kept))
    outcome = await client.run(MP4, inputs={"latents": kept[1]}, folder=tmp_path)
    assert video_facts(outcome.outputs["video"][0]).frames == 5


def memory_of(pid: int, row: str) -> int:
    """Return ``VmRSS`` or ``VmHWM`` (the peak since the last reset) of a process, bytes."""
    text = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith(row))


@pytest.mark.parametrize("request_", [MP4, FRAMES], ids=["mp4", "tensors"])
async def test_the_answering_rank_needs_no_more_memory_for_the_pictures_of_a_longer_video(
    engine: EngineProcess, client: EngineClient, tmp_path: Path, request_: dict[str, Any]
) -> None:
    pid = engine.get("/v1/info")["pids"][0]
    growth = {}
    before = 0

    def reset(event: Mapping[str, Any]) -> None:
        nonlocal before
        if event["type"] == "stage_started" and event["stage"] == "decode_video":
            before = memory_of(pid, "VmRSS")
            Path(f"/proc/{pid}/clear_refs").write_text("5")

    for frames in (22, 124, 362):  # the first one warms up
        latents = write_latents(tmp_path, frames=frames, side=128)
        outcome = await client.run(request_, inputs={"latents": latents}, folder=tmp_path, on_event=reset)
        growth[frames] = memory_of(pid, "VmHWM") - before
        assert outcome.facts["frames"] == frames
    # The pictures of 238 more frames alone are 12 MB as bytes and 47 MB as floats; their sound, which is whole, 2.5 MB
    # and a copy while it is given.
    assert growth[362] - growth[124] < 8_000_000, growth


async def test_the_answering_rank_holds_hardly_more_for_15_seconds_of_sound_and_pictures_than_for_five(
    engine: EngineProcess, client: EngineClient, tmp_path: Path
) -> None:
    peaks: dict[int, dict[str, int]] = {}
    for frames in (362, 124, 362):  # the first one warms up
        outcome = await client.run(FRAMES, inputs={"latents": write_latents(tmp_path, frames=frames)}, folder=tmp_path)
        # The kernel's peak, which the rank lets start again with every stage.
        stages = engine.get(f"/v1/jobs/{outcome.job_id}")["memory"]["stages"]
        peaks[frames] = {stage: ranks[0] for stage, ranks in stages.items()}
    assert peaks[124].keys() == {"decode_audio", "decode_video"}
    short, long = (max(peaks[frames].values()) for frames in (124, 362))
    # Five results of the sound's last layers, 12.8 kB a latent each, are whole: 25 MB. Not in slices it is 163 MB.
    # Without AVX-512 the last convolutions run whole too, and take as much again.
    results = 5 if convolves_with_avx512(torch.device("cpu")) else 10
    grown = results * 12_800 * (audio_latents(362) - audio_latents(124))
    assert long - short < grown + 5e6, peaks


async def test_a_decoding_that_is_killed_midway_leaves_the_latents_usable(
    engine: EngineProcess, client: EngineClient, tmp_path: Path
) -> None:
    async with client.connect(tmp_path) as channel:
        with engine.fault(rank=0, module=DECODER, do="kill"):
            job_id = new_id()
            await channel.submit({**QUICK, "frames": 22}, job_id=job_id)
            error = (await asyncio.wait_for(events_until_final(channel, job_id), 60))[-1]["error"]
    assert (error["code"], error["details"]["latents"]) == ("rank_lost", f"/v1/jobs/{job_id}/latents")
    assert error["details"]["latents"] in error["remedy"]
    assert engine.get(f"/v1/jobs/{job_id}")["latents"] == error["details"]["latents"]
    latents = tmp_path / "kept.safetensors"
    latents.write_bytes(engine.fetch(error["details"]["latents"])[2])
    engine.wait_for("ready")
    outcome = await client.run(MP4, inputs={"latents": latents}, folder=tmp_path)
    assert video_facts(outcome.outputs["video"][0]).frames == 22


def generate(engine: EngineProcess, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the command line's ``generate`` for a small video ``fox.mp4``."""
    words = ("--prompt", "a fox", "--frames", "22", "--width", "32", "--height", "32", "--steps", "1")
    return run_cli(engine, "generate", *words, "-o", str(folder / "fox.mp4"), *options)


def run_cli(engine: EngineProcess, command: str, *options: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "engine", command, "--url", engine.url, *options]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def test_the_command_line_keeps_latents_whose_decoding_failed_and_decodes_them_again(
    engine: EngineProcess, tmp_path: Path
) -> None:
    with engine.fault(module=DECODER, do="oom"):
        done = generate(engine, tmp_path)
    assert done.returncode == 3
    kept = tmp_path / "fox.latents.safetensors"
    assert list(tmp_path.iterdir()) == [kept]
    assert f"h3-engine decode --latents {kept}" in done.stderr
    done = run_cli(engine, "decode", "--latents", str(kept), "-o", str(tmp_path / "again.mp4"))
    assert (done.returncode, done.stdout.strip()) == (0, str(tmp_path / "again.mp4")), done.stderr
    assert video_facts(tmp_path / "again.mp4").frames == 22


def test_the_command_line_keeps_latents_when_asked(engine: EngineProcess, tmp_path: Path) -> None:
    done = generate(engine, tmp_path, "--keep-latents", str(tmp_path / "fox.safetensors"))
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fox.mp4", "fox.safetensors"]
    assert load_file(tmp_path / "fox.safetensors")["video"].shape == (1, 24, 7, 2, 2)


async def test_memory_that_runs_out_in_decoding_names_its_holders_and_where_the_latents_are(
    engine: EngineProcess, client: EngineClient, tmp_path: Path
) -> None:
    with engine.fault(rank=0, module=DECODER, do="oom"), pytest.raises(JobError) as caught:
        await client.run({**QUICK, "frames": 22}, folder=tmp_path)
    error = caught.value
    assert error.code == "out_of_memory"
    assert error.details["held"]["vae"] > 0
    assert "vae" in error.message
    assert error.details["latents"] in (error.remedy or "")
    status, headers, body = engine.fetch(error.details["latents"])
    (tmp_path / "kept.safetensors").write_bytes(body)
    assert load_file(tmp_path / "kept.safetensors")["video"].shape == (1, 24, 7, 2, 2)
    assert (status, headers["Content-Type"]) == (200, "application/octet-stream")
    missing = error.details["latents"] + "?output=1"
    assert engine.call("GET", missing)[1]["error"]["code"] == "no_result"
