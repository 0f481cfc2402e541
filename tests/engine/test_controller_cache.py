"""What the controller knows of a job already, driven by what rank 0 would say; the ranks are not started."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from engine.checkpoint import Checkpoint, open_checkpoint
from engine.config import build_config
from engine.contract.checks import Plan
from engine.contract.limits import Limits
from engine.contract.messages import Warned, event_to_dict
from engine.contract.requests import Decode, EncodePrompt, Generate, Request
from engine.controller.controller import Controller
from engine.controller.fleet import FleetProcess
from engine.controller.folder import open_run_folder
from engine.controller.jobs import Job
from tests.support.jobs import new_id

READY = {"op": "ready", "info": {"device": "cpu", "dtype": "float32", "backend": "gloo"}}
PROMPT = EncodePrompt("encode_prompt", "a boat")
VIDEO = Generate("generate", "a boat", frames=22, width=32, height=32)
ERROR = {"code": "job_failed", "kind": "JobError", "message": "It broke."}


class Desk:
    """A controller, and what it sent to rank 0."""

    def __init__(self, controller: Controller, sent: list[dict[str, Any]]) -> None:
        self.controller, self.sent = controller, sent

    def submit(self, request: Request = PROMPT, **hashes: str) -> Job:
        inputs = {name: Path(name) for name in hashes}
        # A job of nobody would forget its events at its end.
        return self.controller.submit(new_id(), Plan(request), inputs=inputs, hashes=hashes, owner=self)

    @property
    def told(self) -> dict[str, Any]:
        """The last job that the ranks were given."""
        return next(message for message in reversed(self.sent) if message["op"] == "run")

    @property
    def runs(self) -> int:
        return sum(message["op"] == "run" for message in self.sent)

    async def say(self, job: Job, op: str, **words: Any) -> None:
        await self.controller.fleet_said({"op": op, "job_id": job.id, **words})

    async def give(self, job: Job, name: str = "conditioning", blob: bytes = b"rows") -> None:
        path = job.folder / name
        path.write_bytes(blob)
        await self.say(job, "output", output=0, name=name, index=0, last=True, format="safetensors", path=str(path))

    async def keep(self, job: Job, kind: str = "text", blob: bytes = b"rows") -> None:
        path = job.folder / f"kept-{kind}"
        path.write_bytes(blob)
        await self.say(job, "kept", kind=kind, path=str(path), facts={"tokens": 3})

    async def end(self, job: Job, error: dict[str, Any] | None = None) -> None:
        await self.say(
            job, "end", error=error, facts={"tokens": 3}, memory={}, restarting=False, gather_workspace_bytes=0
        )


@pytest.fixture(scope="module")
def checkpoint(tiny_checkpoint: Path) -> Checkpoint:
    return open_checkpoint(tiny_checkpoint)


def desk_with(checkpoint: Checkpoint, folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Desk:
    sent: list[dict[str, Any]] = []
    monkeypatch.setattr(FleetProcess, "send", lambda _, message: sent.append(message))
    monkeypatch.setattr(FleetProcess, "log_tail", lambda _, lines: "")
    config = build_config({"model": str(checkpoint.folder), "device": "cpu", **options})
    config = dataclasses.replace(config, limits=Limits(resume_seconds=0.1))
    return Desk(Controller(config, checkpoint, open_run_folder(folder, room=0)), sent)


@pytest.fixture
async def desk(checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    made = desk_with(checkpoint, tmp_path, monkeypatch)
    await made.controller.fleet_said(READY)
    return made


async def made_once(desk: Desk) -> None:
    job = desk.submit()
    await desk.give(job)
    await desk.end(job)


async def test_what_is_known_is_answered_with_its_bytes_facts_and_warnings(desk: Desk) -> None:
    first = desk.submit()
    warning = Warned("nan_result", "black")
    await desk.say(first, "event", event=event_to_dict(warning, job_id="", seq=0))
    await desk.give(first)
    await desk.end(first)
    second = desk.submit()
    assert (second.state, second.facts, desk.runs) == ("done", {"tokens": 3}, 1)
    assert warning in [sent.event for sent in second.history]
    (file,) = [sent.file for sent in second.history if sent.file]
    assert file.parent == second.folder
    assert file.read_bytes() == b"rows"
    assert (desk.controller.cache.hits["encode_prompt"], desk.controller.cache.misses["encode_prompt"]) == (1, 1)
    assert desk.controller.stats.jobs_started == 1


async def test_what_waits_is_answered_as_soon_as_it_is_known(desk: Desk) -> None:
    first, second, other = desk.submit(), desk.submit(), desk.submit(EncodePrompt("encode_prompt", "a fox"))
    assert second.state == "queued"
    await desk.give(first)
    await desk.end(first)
    assert (second.state, other.state) == ("done", "running")
    assert desk.controller.waiting == 0


@pytest.mark.parametrize("how", ["failed", "cancelled"])
async def test_a_job_without_a_good_end_leaves_nothing(desk: Desk, how: str) -> None:
    job = desk.submit(VIDEO)
    await desk.keep(job)
    await desk.give(job, "latents")
    if how == "cancelled":
        desk.controller.cancel(job)
    await desk.end(job, ERROR if how == "failed" else {**ERROR, "code": "cancelled", "kind": "JobCancelled"})
    assert job.over
    assert (desk.controller.cache.entries, desk.controller.cache.bytes) == (0, 0)
    desk.submit(VIDEO)
    assert (desk.told["cached"], desk.told["keep"]) == ({}, ["text"])


async def test_the_ranks_are_given_what_is_known_and_asked_for_the_rest(desk: Desk) -> None:
    first = desk.submit(VIDEO)
    assert (desk.told["cached"], desk.told["keep"]) == ({}, ["text"])
    await desk.keep(first, blob=b"encoded")
    await desk.end(first)
    second = desk.submit(dataclasses.replace(VIDEO, seed=1))
    assert desk.told["keep"] == []
    given = Path(desk.told["cached"]["text"])
    # Its own link: what is thrown out meanwhile stays readable to the ranks.
    assert given.parent == second.folder
    desk.controller.cache.close()
    assert given.read_bytes() == b"encoded"


async def test_lost_ranks_take_what_they_made_with_them(desk: Desk) -> None:
    await made_once(desk)
    assert (desk.controller.cache.entries, desk.controller.cache.bytes) == (1, 4)
    desk.controller.fleet_lost()
    assert (desk.controller.cache.entries, desk.controller.cache.bytes) == (0, 0)
    waiting = desk.submit()
    assert waiting.state == "queued"
    await desk.controller.fleet_said(READY)
    assert (waiting.state, desk.runs) == ("running", 2)


async def test_files_of_unknown_bytes_are_never_known(desk: Desk) -> None:
    decode = Decode("decode")
    first = desk.submit(decode, latents="1")
    await desk.give(first, "frames")
    await desk.end(first)
    assert desk.submit(decode, latents="1").state == "done"
    assert desk.submit(decode, latents="2").state == "running"
    unhashed = desk.controller.submit(new_id(), Plan(decode), inputs={"latents": Path("latents")})
    assert unhashed.state == "queued"


async def test_without_room_nothing_is_kept(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = desk_with(checkpoint, tmp_path, monkeypatch, cache_mb=0)
    await desk.controller.fleet_said(READY)
    await made_once(desk)
    assert desk.submit().state == "running"
    assert (desk.told["cached"], desk.told["keep"]) == ({}, [])
    assert desk.controller.cache.entries == 0
