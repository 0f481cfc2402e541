"""The controller: the queue, the jobs, and what the ranks are doing. It runs in the server process, without torch.

One job is with the ranks at a time; the others wait with a position and a reason. A job whose media are still being
read lets the ones behind it go first. A job that is accepted always ends: with its result, an error, or a cancellation.
Every method runs on the event loop. What fails:

- a lost rank fails the running job with ``rank_lost``; the next one runs when the fleet has restarted the ranks, as
  it does after a job whose failure the ranks could not recover from without a restart;
- a fleet that ended fails every job, present and coming, with ``engine_dead`` and the end of its log;
- `RequestError` is the caller's, raised by `check` and `submit` before any rank is woken.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..checkpoint import Checkpoint
from ..config import EngineConfig
from ..config_vae import tile_warnings
from ..contract.checks import Plan, check_request, check_tokens, finish_media
from ..contract.errors import (
    EngineBusyError,
    EngineDeadError,
    EngineError,
    JobCancelled,
    JobError,
    RequestError,
    error_from_dict,
)
from ..contract.messages import Done, Output, Queued, StageFinished, Started, event_from_dict
from ..contract.requests import EncodePrompt, Generate, Request
from ..contract.tensors import Headers
from ..planner.capacity import Capacity
from ..wire import describe_part
from .abilities import check_abilities
from .cache import JobCache, stage_result
from .chunks import Chunks
from .fleet import FleetProcess
from .folder import RunFolder, folder_busy
from .info import describe_engine
from .jobs import Job, finish_movies, with_latents
from .media import MediaDesk, ReadMedia
from .movies import MovieListener, Movies
from .stats import Stats
from .store import JobStore, delete_files

logger = logging.getLogger(__name__)

_REASON_LINES = 30


class Controller:
    """Jobs of one engine. `start` it, then `submit`; `stop` ends the ranks."""

    def __init__(
        self, config: EngineConfig, checkpoint: Checkpoint, folder: RunFolder, capacity: Capacity | None = None
    ) -> None:
        """Describe the engine; `start` spawns its ranks.

        Args:
            capacity: what it can take; None: nobody planned, every request is let through.
        """
        self.config = config
        self.capacity = capacity
        self.checkpoint = checkpoint
        self.folder = folder
        self.stats = Stats()
        self.jobs = JobStore(config.limits)
        self.cache = JobCache(config, folder)
        self._fleet = FleetProcess(config, folder, self, needs=capacity.needs if capacity else ())
        self._desk = MediaDesk(config, checkpoint.facts, folder, self._media_ended)
        self._queue: deque[Job] = deque()
        self._places: set[str] = set()
        self._failure: EngineError | None = None
        self._running: Job | None = None
        self._phase = "loading"
        self._reason: str | None = None
        self._progress: dict[str, Any] | None = None
        self._ranks: dict[str, Any] = {}
        self._stopping = False

    async def start(self) -> None:
        """Spawn the ranks; they load while the server already answers.

        Raises:
            ConfigError: ``start_failed``.
        """
        await self._fleet.start()

    async def stop(self) -> None:
        """Fail what is not finished and stop the ranks; the run folder is its owner's to close."""
        self._stopping = True
        if self._running is not None:
            self.cancel(self._running)
        self._phase, self._reason = "dead", "The engine is stopping."
        self._fail_all(EngineDeadError("engine_dead", "The engine was stopped.", remedy="Start it again."))
        await self._desk.stop()
        await self._fleet.stop()

    # --- what it looks like from outside

    @property
    def status(self) -> str:
        """``loading``, ``ready``, ``busy``, ``restarting`` or ``dead``; ``ready`` only when a job would start now."""
        return "busy" if self._phase == "ready" and self._running else self._phase

    @property
    def waiting(self) -> int:
        """Jobs in the queue."""
        return len(self._queue)

    def health(self) -> dict[str, Any]:
        """Return the answer of ``GET /v1/health``."""
        return {"status": self.status, "progress": self._progress, "reason": self._reason}

    def info(self) -> dict[str, Any]:
        """Return the answer of ``GET /v1/info``; what only the ranks know is null until they are ready."""
        return describe_engine(self.config, self.checkpoint, self.capacity, self._ranks)

    # --- accepting

    async def check(self, request: Request, headers: Headers, files: Mapping[str, Path] | None = None) -> Plan:
        """Check a request with its parts ``files``, its prompt's length included, without waking a rank.

        Raises:
            RequestError: naming field, value and remedy. EngineBusyError: ``queue_full``, a part cannot be read now.
        """
        facts, limits = self.checkpoint.facts, self.config.limits
        # A mask document may hold 100,000 keys, seconds of reading: others are served meanwhile.
        plan = await asyncio.to_thread(
            check_request, request, facts=facts, limits=limits, headers=headers, stages=self.config.stages
        )
        check_abilities(plan.request, self.checkpoint)
        if isinstance(request, (EncodePrompt, Generate)):
            tokens = await asyncio.to_thread(
                self.checkpoint.count_tokens, request.prompt, limit=limits.max_prompt_tokens
            )
            plan = check_tokens(plan, tokens, facts=facts, limits=limits)
        if self.capacity:
            try:
                planned = await asyncio.to_thread(self.capacity.check, plan, headers, files or {})
            except OSError as error:
                raise folder_busy(error) from error
            plan = dataclasses.replace(plan, planned=planned)
        if "decode_video" in plan.stages:
            plan = dataclasses.replace(plan, warnings=(*plan.warnings, *tile_warnings(self.config.vae)))
        return plan

    def check_new(self, job_id: str) -> None:
        """Check that a job with this id could be accepted now.

        Raises:
            RequestError: ``duplicate_job``.
            EngineDeadError: the ranks are gone.
            EngineBusyError: the queue is full.
        """
        if job_id in self.jobs:
            raise RequestError(
                "duplicate_job",
                f"There is already a job {job_id}.",
                field="job_id",
                value=job_id,
                remedy="Pick a new UUID for each job.",
            )
        if self._phase == "dead":
            raise self._dead_error()
        taken = self.waiting + len(self._places - {job_id})
        if taken >= self.config.limits.max_queue:
            raise EngineBusyError(
                "queue_full",
                f"{taken} jobs wait or are being received already.",
                field="job_id",
                value=job_id,
                remedy="Try again later, or raise --max-queue.",
            )

    def keep_place(self, job_id: str) -> None:
        """Keep a place in the queue for a job whose parts are on their way; `submit` takes it, or `free_place`.

        Raises:
            EngineError: as `check_new`; ``duplicate_job`` also for a job that is being received.
        """
        if job_id in self._places:
            raise RequestError(
                "duplicate_job",
                f"The job {job_id} is being received.",
                field="job_id",
                value=job_id,
                remedy="Pick a new UUID for each job.",
            )
        self.check_new(job_id)
        self._places.add(job_id)

    def free_place(self, job_id: str) -> None:
        """Give up a place that `keep_place` kept."""
        self._places.discard(job_id)

    def submit(
        self,
        job_id: str,
        plan: Plan,
        *,
        inputs: dict[str, Path],
        hashes: Mapping[str, str] | None = None,
        upload: Path | None = None,
        owner: object = None,
    ) -> Job:
        """Queue a checked job; it starts at once on idle ranks, as soon as its media are read.

        Args:
            inputs: part name → file. hashes: their sha256; without them nothing of the job is known already or kept.
            upload: their folder, the job's from now on.
            owner: the connection whose normal close cancels the job.

        Raises:
            EngineError: as `check_new`.
        """
        self.check_new(job_id)
        job = Job(job_id, plan, self.folder.make("job"), upload, inputs, owner, plan.has_media, hashes or {})
        self.jobs.add(job)
        self.free_place(job_id)
        self._queue.append(job)
        self.stats.jobs_submitted += 1
        self._tell_positions()
        for warning in plan.warnings:
            job.emit(warning)
        self._desk.start(self._queue)
        self._start_next()
        return job

    def _media_ended(self, job: Job, outcome: ReadMedia | EngineError | None) -> None:
        """Take what came of reading a job's media; None of a job that ended meanwhile."""
        if isinstance(outcome, ReadMedia):
            try:
                self._take_media(job, outcome)
            except EngineError as error:
                delete_files([outcome.folder])
                outcome = error
        if isinstance(outcome, EngineError) and job in self._queue:
            self._queue.remove(job)
            self._end(job, outcome)
        self._tell_positions()
        self._desk.start(self._queue)
        self._start_next()

    def _take_media(self, job: Job, media: ReadMedia) -> None:
        if job not in self._queue:
            raise JobCancelled()
        facts, limits, known = self.checkpoint.facts, self.config.limits, job.plan.warnings
        job.plan = finish_media(
            job.plan, media.request, found=media.facts, warnings=media.warnings, facts=facts, limits=limits
        )
        if self.capacity and isinstance(job.plan.request, Generate):
            planned = self.capacity.check_generate(
                job.plan.request, text_tokens=job.plan.text_tokens, parts=media.parts, found=media.facts
            )
            job.plan = dataclasses.replace(job.plan, planned=planned)
        self.jobs.replace_inputs(job, dict(media.parts), media.folder)
        job.hashes, job.reading = media.hashes, False
        for warning in job.plan.warnings[len(known) :]:
            job.emit(warning)

    # --- cancelling, owning

    def cancel(self, job: Job) -> None:
        """Cancel a job: at once when it waits, at its next boundary when it runs, not at all when it is over."""
        if job in self._queue:
            self._queue.remove(job)
            self._end(job, JobCancelled())
            self._tell_positions()
        elif job is self._running:
            self._fleet.send({"op": "cancel", "job_id": job.id})
            if job.ranks_done and job.movies is not None:
                job.movies.kill()

    def adopt(self, job: Job, owner: object) -> None:
        """Let ``owner`` take over a job whose connection was lost; a job of no connection stays so."""
        if job.owner is not None:
            job.owner = owner

    def leave(self, owner: object, *, normally: bool) -> None:
        """``owner`` is gone: cancel its jobs when it left normally, else give it time to come back."""
        for job in [job for job in self.jobs if job.owner is owner]:
            if normally:
                self.cancel(job)
                self.jobs.release(job)
            else:
                asyncio.get_running_loop().call_later(self.config.limits.resume_seconds, self._expire, job, owner)

    def _expire(self, job: Job, owner: object) -> None:
        if job.owner is owner and not job.over:
            logger.warning("job %s: its connection did not come back, cancelling", job.id)
            self.cancel(job)

    # --- running

    def _start_next(self) -> None:
        self._answer_known()
        job = next((job for job in self._queue if not job.reading), None)
        if self.status != "ready" or job is None:
            return
        self._queue.remove(job)
        self._running = job
        self._failure = None
        self._listen(job)
        self.stats.jobs_started += 1
        self._fleet.send(
            {
                "op": "run",
                "job_id": job.id,
                "request": dataclasses.asdict(job.plan.request),
                "inputs": {name: str(path) for name, path in job.inputs.items()},
                "folder": str(job.folder),
                **self.cache.for_ranks(job),
            }
        )
        job.emit(Started(list(job.plan.stages), job.plan.facts))
        self._tell_positions()

    def _answer_known(self) -> None:
        """End the waiting jobs whose results were made before, whatever the ranks do."""
        for job in [job for job in self._queue if not job.reading]:
            facts = self.cache.answer(job)
            if facts is not None:
                self._queue.remove(job)
                self._end(job, None, facts)
                self._tell_positions()

    def _tell_positions(self) -> None:
        for position, job in enumerate(self._queue, start=1):
            event = Queued(position, "media" if job.reading else self.status)
            if job.queued != event:
                job.emit(event)

    def _listen(self, job: Job) -> None:
        """Attend to what the job's ranks will make: the MP4s, and the frames that its client takes."""

        def taken() -> None:
            self._fleet.send({"op": "taken", "job_id": job.id})

        async def made(number: int, path: Path) -> None:
            await self._give(job, {"name": "video", "format": "mp4", "output": number}, path)

        def failed(error: EngineError) -> None:
            if job is self._running and not job.ranks_done:
                self._failure = self._failure or error
                self.cancel(job)

        job.movies = Movies(job.folder, MovieListener(taken, made, failed))
        patience = self.config.limits.client_timeout
        job.chunks = Chunks(patience=patience, taken=taken, connected=lambda: job.followers > 0, late=failed)

    def _end(self, job: Job, error: EngineError | None, facts: dict[str, Any] | None = None) -> None:
        if job.movies is not None:
            job.movies.kill()
        if job.chunks is not None:
            job.chunks.close()
        if error is None:
            job.emit(Done(time.time() - (job.started or job.created), {**job.plan.facts, **(facts or {})}))
        else:
            logger.info("job %s ended: %s %s", job.id, error.code, error.message)
            job.fail(with_latents(error, job))
        self._desk.drop(job)
        self.stats.jobs_ended[job.state] += 1
        self.jobs.settle(job)

    def _fail_all(self, error: EngineError) -> None:
        jobs = [*([self._running] if self._running else []), *self._queue]
        self._running = None
        self._queue.clear()
        for job in jobs:
            self._end(job, error)

    # --- what the fleet tells (FleetListener)

    async def fleet_said(self, message: dict[str, Any]) -> None:
        """Take one message of rank 0."""
        op = message["op"]
        if op == "loading":
            self._progress = {key: message[key] for key in ("component", "bytes_done", "bytes_total")}
        elif op == "ready":
            self._ranks, self._phase, self._progress, self._reason = message["info"], "ready", None, None
            self.cache.open(self._ranks)
            logger.info("ready: %d ranks on %s", self.config.nproc_per_node, self._ranks.get("device"))
            self._start_next()
        elif op == "failed":
            self._reason = str(error_from_dict(message["error"]))
        elif self._running is not None and message["job_id"] == self._running.id:
            job = self._running
            try:
                await self._job_said(job, message)
            except Exception as error:
                # This job's alone (no file descriptor left, an output that is gone): the ranks go on.
                logger.exception("job %s: what rank 0 said of it could not be handled", job.id)
                text = f"The server could not take what the ranks made: {error}"
                self._failure = JobError("job_failed", text, remedy="Look at the log.")
                self.cancel(job)

    async def _job_said(self, job: Job, message: dict[str, Any]) -> None:
        if message["op"] == "event":
            event = event_from_dict(message["event"])
            if isinstance(event, StageFinished):
                self.stats.finish_stage(event.stage, event.seconds)
            job.emit(event)
        elif message["op"] == "output":
            await self._give(job, message, Path(message["path"]))
        elif message["op"] == "movie":
            assert job.movies is not None
            await job.movies.take(message["output"], message["name"], message["path"])
        elif message["op"] == "kept":
            job.kept[message["kind"]] = await asyncio.to_thread(stage_result, message)
        elif message["op"] == "end":
            self.stats.gather_workspace_bytes = message["gather_workspace_bytes"]
            error = self._failure or (error_from_dict(message["error"]) if message["error"] else None)
            job.ranks_done = True
            if job.chunks is not None:
                job.chunks.close()
            error = await finish_movies(job, error)
            if job is self._running:
                self._running = None
                if error is None:
                    self.cache.keep(job, message["facts"])
                    job.memory = message["memory"]
                    if self.capacity:
                        self.capacity.compare(job.id, job.plan, job.memory)
                self._end(job, error, message["facts"])
                if message["restarting"]:
                    # Only after an error, so that nothing was awaited. `fleet_lost` follows when rank 0 has left.
                    self._restarting()
                self._start_next()

    async def _give(self, job: Job, message: dict[str, Any], path: Path) -> None:
        """Announce a finished file to the job's listeners."""
        part = await asyncio.to_thread(describe_part, message["name"], path)
        output = Output(
            message["name"],
            message.get("index", 0),
            message.get("last", True),
            message["format"],
            parts=(part,),
            output=message["output"],
        )
        if job is self._running:
            job.add_output(output, path)

    def _restarting(self) -> None:
        """Keep the queue until the ranks are ready again."""
        self._phase, self._progress, self._ranks = "restarting", None, {}
        self._tell_positions()

    def fleet_lost(self) -> None:
        """The ranks are gone for now: fail the running job, keep the queue."""
        if self._stopping or self._phase == "dead":
            return
        self.stats.restarts += 1
        self.stats.gather_workspace_bytes = 0
        self.cache.close()
        job, self._running = self._running, None
        if job is not None:
            self._end(
                job,
                JobError(
                    "rank_lost",
                    "A rank died or stopped answering while it ran this job; the ranks restart.",
                    remedy="Run it again; if it happens again, look at the log.",
                    details={"log": self._fleet.log_tail(_REASON_LINES)},
                ),
            )
        self._restarting()

    def fleet_ended(self, status: int) -> None:
        """The fleet is gone for good: nothing runs any more."""
        if self._stopping:
            return
        words = self._reason or f"The ranks' process ended with status {status}."
        self._reason = f"{words}\n{self._fleet.log_tail(_REASON_LINES)}"
        self._phase, self._progress, self._ranks = "dead", None, {}
        logger.error("the ranks are gone: %s", words)
        self._fail_all(self._dead_error())

    def _dead_error(self) -> EngineDeadError:
        words, _, log = (self._reason or "").partition("\n")
        return EngineDeadError(
            "engine_dead",
            f"The ranks are gone. {words}",
            remedy="Read the log, mend the cause and start the engine again.",
            details={"log": log},
        )
