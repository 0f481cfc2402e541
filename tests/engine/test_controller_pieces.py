"""The controller's parts that need no ranks: jobs, the run folder, uploads, metrics' text."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path

import pytest

from engine.contract.checks import Plan
from engine.contract.errors import ConfigError, EngineBusyError, JobCancelled, JobError, RequestError
from engine.contract.framing import pack_slice, unpack_slice
from engine.contract.messages import Done, Output, Part, Queued, StageStarted, Started, Step, Submit
from engine.contract.requests import Echo, Generate
from engine.controller.chunks import Chunks
from engine.controller.folder import LEAST_ROOM, RunFolder, open_run_folder
from engine.controller.jobs import Job, with_latents
from engine.server.uploads import Upload, check_announcement
from engine.wire import PartWriter, describe_part, hash_file, read_slice

ECHO = Echo("echo")


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return open_run_folder(tmp_path, room=0)


def make_job(path: Path) -> Job:
    return Job("id", Plan(ECHO), path, None, {})


# --- jobs


async def test_a_follower_sees_every_event_once_however_late_it_comes(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    job.emit(Queued(1, "loading"))

    async def follow(after: int) -> list[int]:
        return [sent.data["seq"] async for sent in job.follow(after)]

    early, late = asyncio.create_task(follow(0)), asyncio.create_task(follow(2))
    await asyncio.sleep(0)
    for event in (Started([], {}), StageStarted("denoise", 0.1), Done(1.0)):
        job.emit(event)
        await asyncio.sleep(0)
    assert await early == [1, 2, 3, 4]
    assert await late == [3, 4]
    assert await follow(4) == []


def test_progress_of_a_job_never_goes_back(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    job.emit(Step("denoise", 3, 4, 1.0, 0.7))
    job.emit(StageStarted("decode_audio", 0.5))
    assert job.to_dict()["progress"] == 0.7


async def test_a_released_job_keeps_its_last_event_and_its_result(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    for name, kind in (("latents", "safetensors"), ("video", "mp4")):
        job.add_output(Output(name, 0, True, kind, parts=(Part(name, 1, ""),)), tmp_path / name)  # type: ignore[arg-type]
    job.emit(Done(1.0))
    assert job.release() == [tmp_path / "latents"]
    assert [sent.data["type"] async for sent in job.follow(0)] == ["done"]
    assert (job.last_seq, job.results) == (3, {0: tmp_path / "video"})


def add_chunks(job: Job, folder: Path) -> list[Path]:
    """Give a job three chunks of frames, events 2 to 4, and its sound before them; return the chunks' files."""
    job.add_output(Output("audio", 0, True, "safetensors", parts=(Part("audio", 1, ""),)), folder / "audio")
    files = [folder / f"frames-{index}" for index in range(3)]
    for index, file in enumerate(files):
        job.add_output(Output("frames", index, index == 2, "safetensors", parts=(Part("frames", 1, ""),)), file)
    return files


def watch(job: Job, *, connected: bool = True) -> tuple[list[int], list[JobError]]:
    """Watch a job's chunks with little patience; return where it says what was taken, and who was late."""
    taken: list[int] = []
    late: list[JobError] = []
    job.chunks = Chunks(
        patience=0.1, taken=lambda: taken.append(job.last_seq), connected=lambda: connected, late=late.append
    )
    return taken, late


async def test_a_chunk_counts_as_taken_once_however_often_it_is_sent(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    taken, late = watch(job)
    add_chunks(job, tmp_path)
    counts = []
    for seq in (1, 2, 1, 2, 4, 3):
        job.sent(seq)
        counts.append(len(taken))
    assert counts == [0, 1, 1, 1, 3, 3]
    await asyncio.sleep(0.2)
    assert not late


@pytest.mark.parametrize(("connected", "sent", "ends"), [(True, 1, True), (True, 2, False), (False, 1, False)])
async def test_a_client_that_takes_nothing_is_late_when_the_ranks_wait_for_it(
    tmp_path: Path, connected: bool, sent: int, ends: bool
) -> None:
    """Which they do while more than two chunks are there; one that lost its connection has time to come back."""
    job = make_job(tmp_path)
    _, late = watch(job, connected=connected)
    add_chunks(job, tmp_path)
    job.sent(sent)
    await asyncio.sleep(0.25)
    assert [error.code for error in late] == ["client_too_slow"] * ends


async def test_each_chunk_that_is_taken_gives_the_client_its_time_anew_and_the_ranks_end_takes_it_away(
    tmp_path: Path,
) -> None:
    job = make_job(tmp_path)
    _, late = watch(job)
    add_chunks(job, tmp_path)
    add_chunks(job, tmp_path)
    for seq in (2, 3, 4):
        await asyncio.sleep(0.06)
        job.sent(seq)
    assert not late
    add_chunks(job, tmp_path)
    assert job.chunks is not None
    job.chunks.close()
    await asyncio.sleep(0.2)
    assert not late


def test_chunks_that_a_client_has_may_be_deleted_once_and_nothing_else(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    files = add_chunks(job, tmp_path)
    assert [job.received(seq) for seq in (1, 3, 3, 2, 99)] == [[], files[:2], [], [], files[2:]]
    job.emit(Done(1.0))
    job.release()
    assert job.received(99) == []


def test_latents_are_kept_of_generate_alone_and_survive_its_error(tmp_path: Path) -> None:
    for plan, kept in ((Plan(Generate("generate", "boat")), [tmp_path / "latents"]), (Plan(ECHO), [])):
        job = Job("id", plan, tmp_path, None, {})
        latents = Output("latents", 0, True, "safetensors", parts=(Part("latents", 1, ""),))
        job.add_output(latents, tmp_path / "latents")
        for name in ("latents", "movie-frames-0.safetensors"):
            (tmp_path / name).touch()
        error = with_latents(JobError("out_of_memory", "full", remedy="Less."), job)
        job.fail(error)
        assert job.latents == kept
        assert job.keeps == bool(kept)
        assert ("latents" in error.details, "Less." in str(error.remedy)) == (bool(kept), True)
        assert job.release() == sorted({tmp_path / "latents", tmp_path / "movie-frames-0.safetensors"} - set(kept))


def test_a_cancelled_job_is_in_a_state_of_its_own(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    job.fail(JobCancelled())
    assert (job.state, job.over, job.to_dict()["error"]["code"]) == ("cancelled", True, "cancelled")


# --- the run folder


def test_leftovers_of_a_dead_engine_are_removed_and_a_living_ones_are_not(tmp_path: Path) -> None:
    living, dead = open_run_folder(tmp_path, room=0), open_run_folder(tmp_path, room=0)
    os.close(dead._lock)
    fresh = open_run_folder(tmp_path, room=0)
    assert sorted(tmp_path.iterdir()) == sorted([living.path, fresh.path])
    assert fresh.path.stat().st_mode & 0o777 == 0o700
    living.close()
    fresh.close()
    assert not list(tmp_path.iterdir())


def test_folders_that_were_never_finished_are_removed_once_they_are_old(tmp_path: Path) -> None:
    for name in ("young", "old", "locked"):
        (tmp_path / f".new-h3-engine-{name}").mkdir()
    (tmp_path / ".new-h3-engine-locked" / "lock").touch()
    for name in ("old", "locked"):
        os.utime(tmp_path / f".new-h3-engine-{name}", (0, 0))
    fresh = open_run_folder(tmp_path, room=0)
    assert sorted(tmp_path.iterdir()) == sorted([tmp_path / ".new-h3-engine-young", fresh.path])
    fresh.close()


def test_a_path_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 90)
    deep.mkdir()
    with pytest.raises(ConfigError, match="too long"):
        open_run_folder(deep, room=0)
    assert not list(deep.iterdir())


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError) as caught:
        open_run_folder(tmp_path / "file", room=0)
    assert caught.value.field == "run_dir"


def test_without_room_in_memory_the_temp_folder_is_taken() -> None:
    folder = open_run_folder(None, room=2**60)
    try:
        assert not folder.path.is_relative_to("/dev/shm")
    finally:
        folder.close()


# --- parts


def test_a_file_goes_through_slices_and_comes_out_the_same(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(10_000))
    part = describe_part("data", source)
    assert (part.bytes, part.sha256) == hash_file(source)
    writer = PartWriter(part, tmp_path / "copy", field="parts.data")
    with source.open("rb") as file:
        for start in range(0, 10_000, 4_000):
            frame = read_slice(file, message=7, part=0, start=start, end=min(start + 4_000, 10_000))
            message, index, offset, payload = unpack_slice(frame)
            assert (message, index) == (7, 0)
            writer.write(offset, payload)
    writer.finish()
    assert (tmp_path / "copy").read_bytes() == source.read_bytes()


def test_a_file_that_was_cut_is_not_sent(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"short")
    with source.open("rb") as file, pytest.raises(OSError, match="cut"):
        read_slice(file, message=1, part=0, start=0, end=10)


@pytest.mark.parametrize(("offset", "size"), [(1, 4), (0, 11), (2, 1)])
def test_a_slice_that_does_not_follow_is_refused(tmp_path: Path, offset: int, size: int) -> None:
    writer = PartWriter(Part("data", 10, "0" * 64), tmp_path / "file", field="parts.data")
    with pytest.raises(RequestError) as caught:
        writer.write(offset, memoryview(bytes(size)))
    assert (caught.value.code, caught.value.field) == ("bad_tensor", "parts.data")


def test_an_upload_without_room_is_refused(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunFolder, "free_bytes", lambda self: LEAST_ROOM)
    submit = Submit(1, "id", {}, 1, (Part("data", LEAST_ROOM + 1, "0" * 64),))
    with pytest.raises(EngineBusyError) as caught:
        Upload(submit, ECHO, folder)
    assert (caught.value.code, caught.value.value) == ("queue_full", LEAST_ROOM + 1)


def test_nothing_is_accepted_into_a_run_folder_that_is_full(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunFolder, "free_bytes", lambda self: LEAST_ROOM - 1)
    with pytest.raises(EngineBusyError) as caught:
        folder.make("job")
    assert caught.value.code == "queue_full"
    assert "No space left" in caught.value.message
    assert "--run-dir" in str(caught.value.remedy)
    assert not list(folder.path.glob("job-*"))


def test_an_upload_is_complete_when_all_its_parts_are(folder: RunFolder) -> None:
    header = b'{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}'
    blob = len(header).to_bytes(8, "little") + header + b"abc"
    part = Part("one", len(blob), hashlib.sha256(blob).hexdigest())
    upload = Upload(Submit(1, "id", {}, 1, (part, Part("two", part.bytes, part.sha256))), ECHO, folder)
    upload.write(1, 0, memoryview(blob))
    assert not upload.complete
    with pytest.raises(RequestError, match="no part 2"):
        upload.write(2, 0, memoryview(blob))
    upload.write(0, 0, memoryview(blob))
    assert upload.complete
    assert {name: list(tensors) for name, tensors in upload.finish().items()} == {"one": ["a"], "two": ["a"]}


def test_an_announcement_over_the_limit_is_refused_by_its_sum() -> None:
    parts = tuple(Part(name, 600, "0" * 64) for name in ("a", "b"))
    check_announcement(Submit(1, "id", {}, 1, parts), ECHO, max_body_bytes=1200)
    with pytest.raises(RequestError) as caught:
        check_announcement(Submit(1, "id", {}, 1, parts), ECHO, max_body_bytes=1199)
    assert (caught.value.code, caught.value.value) == ("body_too_large", 1200)


def test_a_frame_has_at_most_four_mebibytes() -> None:
    frame = pack_slice(1, 0, 0, bytes(4 * 1024 * 1024 - 16))
    assert len(frame) == 4 * 1024 * 1024
    assert unpack_slice(frame)[0] == 1
    with pytest.raises(RequestError):
        unpack_slice(frame + b"x")
