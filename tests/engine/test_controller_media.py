"""Media are read by a process of its own: killed when nobody wants it any more, blamed when it dies."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.checkpoint import Checkpoint, open_checkpoint
from engine.config import build_config
from engine.contract.checks import check_request
from engine.contract.errors import JobError, RequestError
from engine.contract.limits import Limits, ModelFacts
from engine.contract.requests import STAGES, Generate, parse_request
from engine.controller import media as controller_media
from engine.controller.controller import Controller
from engine.controller.fleet import FleetProcess
from engine.controller.folder import open_run_folder
from engine.controller.jobs import Job
from engine.controller.media import ReadMedia, read_media
from tests.support.jobs import QUICK, new_id
from tests.support.media_files import encoded, gradient
from tests.support.processes import command_of

PICTURE = encoded(gradient(64, 64))
READY = {"op": "ready", "info": {"device": "cpu"}}
KEYFRAMES = {**QUICK, "keyframes": [{"media": {"part": "a"}}, {"media": {"part": "b"}, "at": "last"}]}
REQUEST = parse_request(KEYFRAMES)


def files(folder: Path, **parts: bytes | None) -> dict[str, Path]:
    """Write ``parts``; one that is None never ends: whoever opens it waits."""
    made = {}
    for name, blob in parts.items():
        made[name] = folder / f"{name}.part"
        if blob is None:
            os.mkfifo(made[name])
        else:
            made[name].write_bytes(blob)
    return made


def readers() -> list[psutil.Process]:
    """Return the processes that read media below this one."""
    return [process for process in psutil.Process().children(recursive=True) if "engine.media" in command_of(process)]


async def until(condition: Callable[[], Any], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)


def read(folder: Path, parts: dict[str, Path], **limits: Any) -> asyncio.Task[ReadMedia]:
    folder = folder / "reading"
    folder.mkdir()
    made = read_media(REQUEST, parts, folder=folder, facts=ModelFacts(), limits=Limits(**limits))
    return asyncio.create_task(made)


def announced(folder: Path) -> str:
    path = folder / "reading" / "reading"
    return path.read_text().split()[-1] if path.exists() and path.read_text() else ""


async def test_what_was_read_comes_back_with_its_files(tmp_path: Path) -> None:
    media = await read(tmp_path, files(tmp_path, a=PICTURE, b=PICTURE))
    assert sorted(media.parts) == ["keyframes.0", "keyframes.1"]
    assert all(path.is_file() for path in media.parts.values())
    assert [condition["frame"] for condition in media.facts["conditions"]] == [0, 4]
    assert readers() == []


async def test_a_process_that_takes_too_long_is_killed_and_the_media_named(tmp_path: Path) -> None:
    task = read(tmp_path, files(tmp_path, a=PICTURE, b=None), media_timeout=2.5)
    with pytest.raises(RequestError) as caught:
        await task
    assert (caught.value.code, caught.value.field) == ("bad_media", "request.keyframes[1].media")
    assert "--media-timeout" in str(caught.value.remedy)
    assert readers() == []


async def test_a_process_that_dies_of_a_file_is_blamed_on_it(tmp_path: Path) -> None:
    task = read(tmp_path, files(tmp_path, a=PICTURE, b=None))
    await until(lambda: announced(tmp_path) == "keyframes[1].media")
    readers()[0].send_signal(signal.SIGSEGV)
    with pytest.raises(RequestError) as caught:
        await task
    assert (caught.value.code, caught.value.field) == ("bad_media", "request.keyframes[1].media")
    assert "SIGSEGV" in caught.value.message


async def test_a_process_that_fails_by_itself_is_not_the_callers_fault(tmp_path: Path) -> None:
    parts = files(tmp_path, a=PICTURE, b=PICTURE)
    (tmp_path / "reading").mkdir()
    (tmp_path / "reading" / "result.json.part").mkdir()
    with pytest.raises(JobError) as caught:
        await read_media(REQUEST, parts, folder=tmp_path / "reading", facts=ModelFacts(), limits=Limits())
    assert "IsADirectoryError" in caught.value.message


async def test_a_cancelled_reading_leaves_no_process(tmp_path: Path) -> None:
    task = read(tmp_path, files(tmp_path, a=None, b=PICTURE))
    await until(lambda: announced(tmp_path))
    [process] = readers()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not process.is_running()


async def test_its_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_media, "MEMORY_BYTES", 2**30)
    task = read(tmp_path, files(tmp_path, a=None, b=PICTURE))
    await until(lambda: announced(tmp_path))
    limits = readers()[0].rlimit(psutil.RLIMIT_DATA), readers()[0].rlimit(psutil.RLIMIT_FSIZE)
    killed_first = int(Path(f"/proc/{readers()[0].pid}/oom_score_adj").read_text())
    task.cancel()
    await asyncio.wait([task])
    assert limits == ((2**30, 2**30), (2**30, 2**30))
    assert killed_first > int(Path("/proc/self/oom_score_adj").read_text())


# --- jobs that wait for their media -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkpoint(tiny_checkpoint: Path) -> Checkpoint:
    return open_checkpoint(tiny_checkpoint)


class Desk:
    """A controller without a fleet, and what it sent to rank 0."""

    def __init__(self, checkpoint: Checkpoint, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        config = build_config({"model": str(checkpoint.folder), "device": "cpu"})
        config = dataclasses.replace(config, limits=Limits(resume_seconds=0.1))
        self.run_folder = open_run_folder(folder, room=0)
        self.controller = Controller(config, checkpoint, self.run_folder)
        self.sent: list[dict[str, Any]] = []
        monkeypatch.setattr(FleetProcess, "send", lambda _, message: self.sent.append(message))

    def submit(self, request: dict[str, Any], **parts: bytes | None) -> Job:
        parsed = parse_request(request)
        headers: Any = {name: {} for name in parts}
        facts, limits = self.controller.checkpoint.facts, self.controller.config.limits
        plan = check_request(parsed, facts=facts, limits=limits, headers=headers, stages=STAGES)
        upload = self.run_folder.make("upload") if parts else None
        if upload is None:
            return self.controller.submit(new_id(), plan, inputs={})
        return self.controller.submit(new_id(), plan, inputs=files(upload, **parts), upload=upload)

    async def end(self, job: Job) -> None:
        message = {"op": "end", "job_id": job.id, "error": None, "facts": {}, "memory": {}}
        await self.controller.fleet_said({**message, "restarting": False, "gather_workspace_bytes": 0})

    def runs(self) -> list[str]:
        return [message["job_id"] for message in self.sent if message["op"] == "run"]

    def left(self) -> set[str]:
        """Return the kinds of folders in the run folder."""
        return {path.name.partition("-")[0] for path in self.run_folder.path.iterdir() if path.is_dir()}


@pytest.fixture
async def desk(checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Desk]:
    made = Desk(checkpoint, tmp_path, monkeypatch)
    await made.controller.fleet_said(READY)
    yield made
    made.controller.fleet_ended(0)
    await until(lambda: not readers())


async def test_a_job_runs_on_what_was_read_with_its_canvas_resolved(desk: Desk) -> None:
    request = {name: value for name, value in KEYFRAMES.items() if name not in ("width", "height")}
    job = desk.submit(request, a=encoded(gradient(64, 128)), b=PICTURE)
    assert job.queued is not None
    assert (job.state, job.queued.reason, job.queued.position) == ("queued", "media", 1)
    upload = job.upload
    await until(lambda: job.state == "running")
    [message] = [message for message in desk.sent if message["op"] == "run"]
    assert sorted(message["inputs"]) == ["keyframes.0", "keyframes.1"]
    assert message["request"]["width"] == 2 * message["request"]["height"] == job.facts["width"]
    assert isinstance(job.plan.request, Generate)
    await until(lambda: upload is not None and not upload.exists())
    await desk.end(job)
    await until(lambda: "media" not in desk.left())


async def test_a_job_that_is_ready_goes_before_one_that_reads(desk: Desk) -> None:
    slow = desk.submit(KEYFRAMES, a=None, b=PICTURE)
    quick = desk.submit(QUICK)
    assert (slow.state, quick.state) == ("queued", "running")
    desk.controller.cancel(slow)
    assert slow.state == "cancelled"
    await until(lambda: not readers() and "media" not in desk.left() and "upload" not in desk.left())
    await desk.end(quick)
    assert desk.runs() == [quick.id]


async def test_media_that_cannot_be_read_end_their_job_alone(desk: Desk) -> None:
    bad = desk.submit(KEYFRAMES, a=PICTURE, b=b"no picture")
    good = desk.submit(KEYFRAMES, a=PICTURE, b=PICTURE)
    await until(lambda: bad.over and good.state == "running")
    assert bad.error is not None
    assert (bad.state, bad.error.code, bad.error.field) == ("error", "bad_media", "request.keyframes[1].media")
    assert desk.runs() == [good.id]


async def test_as_many_are_read_at_once_as_are_allowed(desk: Desk) -> None:
    jobs = [desk.submit(KEYFRAMES, a=None, b=PICTURE) for _ in range(4)]
    await until(lambda: len(readers()) == controller_media.AT_ONCE)
    await asyncio.sleep(0.3)
    assert len(readers()) == controller_media.AT_ONCE
    for job in jobs[:2]:
        desk.controller.cancel(job)
    await until(lambda: len(readers()) == controller_media.AT_ONCE)
    assert [job.state for job in jobs] == ["cancelled", "cancelled", "queued", "queued"]


async def test_nothing_is_read_ahead_into_a_full_folder(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(desk.run_folder), "free_bytes", lambda _: 10**9)
    first, second = desk.submit(KEYFRAMES, a=None, b=PICTURE), desk.submit(KEYFRAMES, a=None, b=PICTURE)
    await until(readers)
    await asyncio.sleep(0.3)
    assert len(readers()) == 1
    desk.controller.cancel(first)
    await until(lambda: readers() and second.reading)
    desk.controller.cancel(second)
    await until(lambda: not readers())


async def test_a_fleet_that_ends_stops_the_reading(desk: Desk) -> None:
    job = desk.submit(KEYFRAMES, a=None, b=PICTURE)
    await until(readers)
    desk.controller.fleet_ended(1)
    assert job.error is not None
    assert job.error.code == "engine_dead"
    await until(lambda: not readers())
