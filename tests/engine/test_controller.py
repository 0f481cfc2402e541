"""The controller's decisions, driven by what the fleet would say; the fleet process itself is not started."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from engine.checkpoint import Checkpoint, open_checkpoint
from engine.config import build_config
from engine.contract.checks import Plan
from engine.contract.errors import EngineBusyError, EngineDeadError, RequestError
from engine.contract.limits import Limits
from engine.contract.messages import StageFinished, event_to_dict
from engine.contract.requests import EncodePrompt, Generate
from engine.controller.controller import Controller
from engine.controller.fleet import FleetProcess
from engine.controller.folder import open_run_folder
from engine.controller.jobs import Job
from engine.planner.capacity import Capacity
from engine.rank_options import VaeOptions
from tests.support.jobs import new_id

PLAN = Plan(EncodePrompt("encode_prompt", "a boat"))
READY = {"op": "ready", "info": {"device": "cpu", "pids": [1, 2]}}
LIMITS = Limits(max_queue=2, keep_results=2, resume_seconds=0.1, max_prompt_tokens=8)


@pytest.fixture(scope="module")
def checkpoint(tiny_checkpoint: Path) -> Checkpoint:
    return open_checkpoint(tiny_checkpoint)


class Fleet:
    """What the controller sent to rank 0."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[dict[str, Any]] = []
        monkeypatch.setattr(FleetProcess, "send", lambda _, message: self.sent.append(message))
        monkeypatch.setattr(FleetProcess, "log_tail", lambda _, lines: "the last line")

    def runs(self) -> list[str]:
        return [message["job_id"] for message in self.sent if message["op"] == "run"]


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Fleet:
    return Fleet(monkeypatch)


@pytest.fixture
async def controller(checkpoint: Checkpoint, tmp_path: Path, fleet: Fleet) -> Controller:
    # Most jobs here are the same: each is to run.
    config = build_config({"model": str(checkpoint.folder), "device": "cpu", "cache_mb": 0})
    return Controller(dataclasses.replace(config, limits=LIMITS), checkpoint, open_run_folder(tmp_path, room=0))


def submit(controller: Controller, owner: object = None) -> Job:
    return controller.submit(new_id(), PLAN, inputs={}, owner=owner)


async def end(
    controller: Controller,
    job: Job,
    error: dict[str, Any] | None = None,
    facts: Any = None,
    restarting: bool = False,
) -> None:
    message = {"op": "end", "job_id": job.id, "error": error, "facts": facts or {}, "memory": {}}
    await controller.fleet_said({**message, "restarting": restarting, "gather_workspace_bytes": 12})


async def say_video(controller: Controller, job: Job, path: str) -> None:
    message = {"op": "output", "job_id": job.id, "output": 0, "name": "video", "index": 0, "last": True}
    await controller.fleet_said({**message, "format": "mp4", "path": path})


async def give_video(controller: Controller, job: Job) -> Path:
    path = job.folder / "video.mp4"
    path.write_bytes(b"frames")
    await say_video(controller, job, str(path))
    return path


async def settle() -> None:
    """Let files be deleted in their threads, and timers of `LIMITS` run out."""
    await asyncio.sleep(0.3)


async def kinds(job: Job) -> list[str]:
    return [sent.data["type"] async for sent in job.follow(0)]


async def test_jobs_wait_while_the_ranks_load_and_run_one_after_the_other(controller: Controller, fleet: Fleet) -> None:
    first, second = submit(controller), submit(controller)
    progress = {"component": "vae", "bytes_done": 1, "bytes_total": 4}
    await controller.fleet_said({"op": "loading", **progress})
    assert controller.health() == {"status": "loading", "progress": progress, "reason": None}
    assert [(job.queued.position, job.queued.reason) for job in (first, second) if job.queued] == [
        (1, "loading"),
        (2, "loading"),
    ]
    assert fleet.runs() == []
    await controller.fleet_said(READY)
    assert fleet.runs() == [first.id]
    assert controller.status == "busy"
    assert (second.queued.position, second.queued.reason) == (1, "busy")  # type: ignore[union-attr]
    await end(controller, first, facts={"tokens": 3})
    assert (first.state, first.facts) == ("done", {"tokens": 3})
    assert fleet.runs() == [first.id, second.id]
    await end(controller, second)
    assert controller.status == "ready"


async def test_a_full_queue_and_a_used_id_are_refused(controller: Controller) -> None:
    first = submit(controller)
    with pytest.raises(RequestError) as caught:
        controller.submit(first.id, PLAN, inputs={})
    assert (caught.value.code, caught.value.status) == ("duplicate_job", 409)
    submit(controller)
    with pytest.raises(EngineBusyError):
        submit(controller)


async def test_a_lost_rank_fails_the_running_job_and_keeps_the_waiting_one(
    controller: Controller, fleet: Fleet
) -> None:
    await controller.fleet_said(READY)
    running, waiting = submit(controller), submit(controller)
    controller.fleet_lost()
    assert running.error is not None
    assert (running.error.code, running.error.details) == ("rank_lost", {"log": "the last line"})
    assert controller.status == "restarting"
    assert waiting.queued is not None
    assert (waiting.queued.position, waiting.queued.reason) == (1, "restarting")
    await end(controller, running)
    assert running.state == "error"
    await controller.fleet_said(READY)
    assert fleet.runs() == [running.id, waiting.id]
    assert controller.stats.restarts == 1


async def test_a_job_that_waits_behind_one_after_which_the_ranks_restart_starts_when_they_are_ready(
    controller: Controller, fleet: Fleet
) -> None:
    await controller.fleet_said(READY)
    failing, waiting = submit(controller), submit(controller)
    error = {"code": "job_failed", "kind": "JobError", "message": "It failed."}
    await end(controller, failing, error, restarting=True)
    assert (failing.state, waiting.state, controller.status) == ("error", "queued", "restarting")
    late = submit(controller)
    assert [job.queued and (job.queued.position, job.queued.reason) for job in (waiting, late)] == [
        (1, "restarting"),
        (2, "restarting"),
    ]
    assert controller.info()["pids"] is None
    # Rank 0 leaves only now.
    controller.fleet_lost()
    assert (waiting.state, controller.status, controller.stats.restarts) == ("queued", "restarting", 1)
    assert fleet.runs() == [failing.id]
    await controller.fleet_said(READY)
    assert fleet.runs() == [failing.id, waiting.id]


async def test_a_fleet_that_ended_fails_every_job_with_its_reason(controller: Controller) -> None:
    await controller.fleet_said(READY)
    jobs = [submit(controller), submit(controller)]
    error = {"code": "checkpoint_invalid", "kind": "ConfigError", "message": "The vae is cut."}
    await controller.fleet_said({"op": "failed", "error": error})
    controller.fleet_lost()
    controller.fleet_ended(1)
    assert [job.error.code for job in jobs if job.error] == ["rank_lost", "engine_dead"]
    assert controller.status == "dead"
    assert controller.health()["reason"] == "The vae is cut.\nthe last line"
    with pytest.raises(EngineDeadError, match="The vae is cut") as caught:
        submit(controller)
    assert caught.value.details == {"log": "the last line"}


async def test_cancelling_a_waiting_job_moves_the_others_up(controller: Controller, fleet: Fleet) -> None:
    first, second = submit(controller), submit(controller)
    controller.cancel(first)
    assert first.state == "cancelled"
    assert second.queued is not None
    assert second.queued.position == 1
    assert fleet.sent == []


async def test_cancelling_a_running_job_asks_the_ranks_and_one_that_is_over_stays(
    controller: Controller, fleet: Fleet
) -> None:
    await controller.fleet_said(READY)
    job = submit(controller)
    controller.cancel(job)
    assert fleet.sent[-1] == {"op": "cancel", "job_id": job.id}
    assert job.state == "running"
    await end(controller, job)
    controller.cancel(job)
    assert (job.state, len(fleet.sent)) == ("done", 2)


async def test_a_lost_connection_that_does_not_come_back_cancels_its_job(controller: Controller, fleet: Fleet) -> None:
    await controller.fleet_said(READY)
    lost, back = object(), object()
    job = submit(controller, owner=lost)
    controller.leave(lost, normally=False)
    controller.adopt(job, back)
    await settle()
    assert fleet.sent[-1]["op"] == "run"
    controller.leave(back, normally=False)
    await settle()
    assert fleet.sent[-1] == {"op": "cancel", "job_id": job.id}


async def test_a_job_of_no_connection_is_not_adopted(controller: Controller, fleet: Fleet) -> None:
    await controller.fleet_said(READY)
    job, watcher = submit(controller), object()
    controller.adopt(job, watcher)
    controller.leave(watcher, normally=True)
    assert fleet.sent[-1]["op"] == "run"


async def test_files_go_when_their_time_is_over_and_the_last_results_stay(controller: Controller) -> None:
    await controller.fleet_said(READY)
    videos = []
    for _ in range(3):
        job = submit(controller, owner=object())
        latents = job.folder / "latents"
        latents.write_bytes(b"x")
        message = {"op": "output", "output": 0, "job_id": job.id, "name": "latents", "index": 0, "last": True}
        await controller.fleet_said({**message, "format": "safetensors", "path": str(latents)})
        videos.append(await give_video(controller, job))
        await end(controller, job)
        assert latents.exists()
    await settle()
    assert [video.exists() for video in videos] == [False, True, True]
    assert not list(controller.folder.path.glob("job-*/latents"))
    assert [job.results for job in controller.jobs] == [{}, *({0: video} for video in videos[1:])]


async def test_a_failed_job_leaves_no_files_and_a_follower_keeps_them(controller: Controller) -> None:
    await controller.fleet_said(READY)
    job = submit(controller, owner=object())
    (job.folder / "half-written").write_bytes(b"x")
    with job.following():
        await end(controller, job, {"code": "job_failed", "kind": "JobError", "message": "no"})
        await settle()
        assert job.folder.exists()
    await settle()
    assert not job.folder.exists()
    assert await kinds(job) == ["error"]


async def test_events_of_another_job_and_late_outputs_are_dropped(controller: Controller) -> None:
    await controller.fleet_said(READY)
    job = submit(controller)
    event = event_to_dict(StageFinished("encode_prompt", 2.0, 0.5), job_id="", seq=0)
    await controller.fleet_said({"op": "event", "job_id": new_id(), "event": event})
    await controller.fleet_said({"op": "event", "job_id": job.id, "event": event})
    await end(controller, job)
    await say_video(controller, job, "/no/such/file")
    assert (controller.stats.stage_count["encode_prompt"], job.results) == (1, {})


async def test_what_a_job_took_is_compared_with_what_was_planned_for_it(controller: Controller) -> None:
    told: list[Any] = []
    planned = {"denoise": (7, 8)}
    controller.capacity = cast(
        "Capacity", SimpleNamespace(check=lambda *_: planned, compare=lambda *about: told.append(about), describe=dict)
    )
    plan = await controller.check(Generate("generate", "boat"), {})
    assert plan.planned == planned
    await controller.fleet_said(READY)
    job = controller.submit(new_id(), plan, inputs={})
    await end(controller, job)
    assert told == [(job.id, plan, {})]


async def test_decoding_in_untrained_tiles_is_warned_of(controller: Controller) -> None:
    request = Generate("generate", "a boat", frames=124)
    assert (await controller.check(request, {})).warnings == ()
    controller.config = dataclasses.replace(controller.config, vae=VaeOptions(vae_tile=128))
    assert [warning.code for warning in (await controller.check(request, {})).warnings] == ["untrained_tiles"]
    assert (await controller.check(EncodePrompt("encode_prompt", "a boat"), {})).warnings == ()


async def test_the_prompts_tokens_are_counted_before_queueing(controller: Controller) -> None:
    plan = await controller.check(Generate("generate", "boat"), {})
    assert plan.facts["frames"] == 124
    with pytest.raises(RequestError) as caught:
        await controller.check(Generate("generate", "boat " * 50), {})
    assert caught.value.code == "prompt_too_long"
    assert isinstance(caught.value.value, int)
    assert caught.value.value > 8


async def test_an_output_that_cannot_be_read_fails_its_job_alone(controller: Controller, fleet: Fleet) -> None:
    await controller.fleet_said(READY)
    job, following = submit(controller), submit(controller)
    await say_video(controller, job, "/no/such/file")
    assert fleet.sent[-1] == {"op": "cancel", "job_id": job.id}
    await end(controller, job, {"code": "cancelled", "kind": "JobCancelled", "message": "cancelled"})
    assert job.error is not None
    assert job.error.code == "job_failed"
    assert "No such file" in job.error.message
    assert fleet.runs() == [job.id, following.id]
    await end(controller, following)
    assert following.state == "done"


async def test_a_result_stays_while_its_connection_may_still_come_for_it(controller: Controller) -> None:
    await controller.fleet_said(READY)
    owned = submit(controller, owner=object())
    video = await give_video(controller, owned)
    await end(controller, owned)
    with owned.following():
        for _ in range(LIMITS.keep_results + 1):
            other = submit(controller)
            await give_video(controller, other)
            await end(controller, other)
        await settle()
        assert video.exists()
        assert owned.results == {0: video}
    await settle()
    assert not video.exists()
    assert owned.results == {}


async def test_records_are_kept_beyond_their_number_while_they_may_be_asked_for(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.controller.store.KEEP_RECORDS", 1)
    await controller.fleet_said(READY)
    owned = submit(controller, owner=object())
    await end(controller, owned)
    for _ in range(2):
        await end(controller, submit(controller))
    assert owned.id in controller.jobs
    await settle()
    assert owned.id not in controller.jobs
    assert len(list(controller.jobs)) == 1


async def test_while_the_ranks_restart_nothing_is_told_of_the_old_ones(controller: Controller) -> None:
    await controller.fleet_said(READY)
    assert controller.info()["pids"] == [1, 2]
    controller.fleet_lost()
    assert (controller.info()["pids"], controller.info()["device"]) == (None, None)
