"""A job: its state, its numbered events, its files, and who listens.

Lives on the server's event loop and is touched from nowhere else. Raises nothing of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..cache import Entry
from ..contract.checks import Plan
from ..contract.errors import EngineError, JobCancelled, error_from_dict
from ..contract.messages import (
    Done,
    Event,
    Failed,
    Output,
    Queued,
    StageFinished,
    StageStarted,
    Started,
    Step,
    event_to_dict,
)
from .chunks import Chunks
from .movies import Movies

STATES = ("queued", "running", "done", "error", "cancelled")
"""A job is in one of these; the last three are final."""


@dataclass(frozen=True)
class Sent:
    """One numbered event as it goes to clients; ``file`` is the bytes of an ``output``."""

    event: Event
    data: dict[str, Any]
    file: Path | None = None


@dataclass
class Job:
    """One job from its acceptance to the deletion of its files.

    Attributes:
        id: the client's UUID.
        plan: the checked request.
        folder: where the ranks write its outputs.
        upload: the folder of its input parts, or None. inputs: part name → file in it.
        reading: its media were not read yet; ``upload`` and ``inputs`` are the client's until then.
        hashes: part name → sha256 of the files in ``inputs``, as far as they were told.
        kept: what its stages made that later jobs may use, by kind (`cache_keys.STAGE_OF`).
        owner: the connection that cancels it by closing normally, or None.
        results: the MP4s that ``/result`` gives, by the number of their output.
        latents: of ``generate``, what was sampled, in the order of the outputs; kept like a result.
        followers: connections that are being sent its events.
        movies: its MP4s while they are written. chunks: its ``frames`` that are not taken yet, while it runs.
        ranks_done: the ranks ended it; what is left is the controller's.
        memory: what its stages took, see `runner.JobResult`; empty until it is done.
    """

    id: str
    plan: Plan
    folder: Path
    upload: Path | None
    inputs: dict[str, Path]
    owner: object | None = None
    reading: bool = False
    hashes: Mapping[str, str] = field(default_factory=dict)
    kept: dict[str, Entry] = field(default_factory=dict)
    state: str = "queued"
    progress: float = 0.0
    stage: str | None = None
    step: int | None = None
    total: int | None = None
    queued: Queued | None = None
    error: EngineError | None = None
    results: dict[int, Path] = field(default_factory=dict)
    latents: list[Path] = field(default_factory=list)
    movies: Movies | None = None
    chunks: Chunks | None = None
    ranks_done: bool = False
    memory: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    followers: int = 0
    created: float = field(default_factory=time.time)
    started: float | None = None
    ended: float | None = None
    released: bool = False
    _events: list[Sent] = field(default_factory=list)
    _dropped: int = 0
    _sent: int = 0
    _received: int = 0
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def over(self) -> bool:
        """Whether the state is final."""
        return self.state not in ("queued", "running")

    @property
    def last_seq(self) -> int:
        """Number of the latest event."""
        return self._dropped + len(self._events)

    @property
    def keeps(self) -> bool:
        """Whether it has files that outlive its connection."""
        return bool(self.results or self.latents)

    @property
    def latents_path(self) -> str | None:
        """The route that gives its latents, None without."""
        return f"/v1/jobs/{self.id}/latents" if self.latents else None

    @property
    def history(self) -> tuple[Sent, ...]:
        """Its events that are not forgotten."""
        return tuple(self._events)

    def emit(self, event: Event, file: Path | None = None) -> None:
        """Number ``event``, keep it, note what it says about the job, and wake the followers."""
        self._note(event)
        self._events.append(Sent(event, event_to_dict(event, job_id=self.id, seq=self.last_seq + 1), file))
        self._changed.set()
        self._changed = asyncio.Event()

    def _note(self, event: Event) -> None:
        if isinstance(event, Queued):
            self.queued = event
        elif isinstance(event, Started):
            self.state, self.started, self.queued = "running", time.time(), None
            self.facts = dict(event.facts)
        elif isinstance(event, (StageStarted, Step, StageFinished)):
            self.stage, self.progress = event.stage, max(self.progress, event.progress)
            self.step, self.total = (event.step, event.total) if isinstance(event, Step) else (None, None)
        elif isinstance(event, Done):
            self.state, self.progress, self.ended, self.facts = "done", 1.0, time.time(), dict(event.facts)

    def fail(self, error: EngineError) -> None:
        """End the job with ``error``."""
        self.state = "cancelled" if isinstance(error, JobCancelled) else "error"
        self.error, self.queued, self.ended = error, None, time.time()
        self.emit(Failed(error.to_dict()))

    def add_output(self, output: Output, file: Path) -> None:
        """Announce a finished output file."""
        if output.name == "video" and output.format == "mp4":
            self.results[output.output] = file
        elif output.name == "latents" and self.plan.request.task == "generate":
            self.latents.append(file)
        elif output.name == "frames" and self.chunks is not None:
            self.chunks.add()
        self.emit(output, file)

    def sent(self, seq: int) -> None:
        """Take note that event ``seq``, with its bytes, and all before it were sent to a client."""
        for entry in self._between(self._sent, seq):
            if _is_frames(entry) and self.chunks is not None:
                self.chunks.take()
        self._sent = max(self._sent, seq)

    def received(self, seq: int) -> list[Path]:
        """Take note that a client has everything up to event ``seq``; return the chunks that may be deleted."""
        files = [entry.file for entry in self._between(self._received, seq) if _is_frames(entry) and entry.file]
        self._received = max(self._received, seq)
        return files

    def _between(self, after: int, last: int) -> list[Sent]:
        """Return the events after number ``after`` up to number ``last`` that are not forgotten."""
        return self._events[max(0, after - self._dropped) : max(0, last - self._dropped)]

    async def follow(self, after: int) -> AsyncIterator[Sent]:
        """Yield the events after number ``after``, the coming ones included, until the job is over."""
        seq = max(after, self._dropped)
        while True:
            while seq < self.last_seq:
                sent = self._events[seq - self._dropped]
                seq += 1
                yield sent
                seq = max(seq, self._dropped)
            if self.over:
                return
            await self._changed.wait()

    @contextlib.contextmanager
    def following(self) -> Iterator[None]:
        """Count a follower for as long as the block lasts."""
        self.followers += 1
        try:
            yield
        finally:
            self.followers -= 1

    def release(self) -> list[Path]:
        """Forget all events but the last; return the output files that may be deleted (not what is kept)."""
        # What was never announced counts too: pieces of a movie that was not finished.
        files = {*(sent.file for sent in self._events if sent.file is not None), *self.folder.glob("*")}
        files -= {*self.results.values(), *self.latents}
        self._dropped += len(self._events) - 1
        self._events = self._events[-1:]
        self.released = True
        return sorted(files)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form of ``GET /v1/jobs/{id}``."""
        return {
            "job_id": self.id,
            "task": self.plan.request.task,
            "state": self.state,
            "position": self.queued.position if self.queued else None,
            "reason": self.queued.reason if self.queued else None,
            "progress": self.progress,
            "stage": self.stage,
            "step": self.step,
            "total": self.total,
            "facts": self.facts or self.plan.facts,
            "warnings": [{"code": warning.code, "message": warning.message} for warning in self.plan.warnings],
            "error": self.error.to_dict() if self.error else None,
            "result": f"/v1/jobs/{self.id}/result" if self.results else None,
            "results": [f"/v1/jobs/{self.id}/result?output={output}" for output in sorted(self.results)],
            "latents": self.latents_path,
            "memory": self.memory or None,
            "created": self.created,
            "started": self.started,
            "ended": self.ended,
            "last_seq": self.last_seq,
        }


def _is_frames(sent: Sent) -> bool:
    return (sent.data["type"], sent.data.get("name")) == ("output", "frames")


async def finish_movies(job: Job, error: EngineError | None) -> EngineError | None:
    """Wait for the MP4s of a job that the ranks ended with ``error``; return that, or why there is no MP4.

    After an error too those are waited for that have all their pictures: outputs before the one that failed.
    """
    if job.movies is None or isinstance(error, JobCancelled):
        return error
    try:
        await job.movies.finish(whole_only=error is not None)
    except EngineError as failure:
        return error or failure
    return error


def with_latents(error: EngineError, job: Job) -> EngineError:
    """Return ``error``, telling where the latents are that ``job`` sampled before it failed."""
    if job.latents_path is None:
        return error
    # An error may end several jobs.
    told = error_from_dict(error.to_dict())
    last = len(job.latents) - 1
    # Of several outputs the last one sampled is the one that was being decoded.
    where = f"{job.latents_path}?output={last}" if last else job.latents_path
    told.details = {**told.details, "latents": where}
    if not isinstance(told, JobCancelled):
        remedy = f"The sampled latents are kept at {where}: h3-engine decode, or the task decode, takes them."
        told.remedy = f"{told.remedy or ''} {remedy}".lstrip()
    return told
