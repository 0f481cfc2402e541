"""The jobs an engine remembers, and how long their files stay.

Input files go when their job is over. Outputs stay for `Limits.resume_seconds` after that, for a client that lost its
connection, and as long as somebody reads them; of the last `Limits.keep_results` jobs that have MP4s or latents of
``generate``, those stay for ``/result`` and ``/latents``. Chunks of frames go as soon as the client says it has them.
`get` raises `RequestError` (``unknown_job``). Lives on the server's event loop; files are deleted in threads.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..contract.errors import RequestError
from ..contract.limits import Limits
from .jobs import Job

KEEP_RECORDS = 256
"""Finished jobs that can still be asked for."""


class JobStore:
    """All jobs by id, oldest first."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._jobs: dict[str, Job] = {}

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs.values())

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._jobs

    def add(self, job: Job) -> None:
        """Remember a new job."""
        self._jobs[job.id] = job

    def get(self, job_id: str) -> Job:
        """Return a job.

        Raises:
            RequestError: ``unknown_job``.
        """
        if job_id not in self._jobs:
            raise RequestError(
                "unknown_job",
                f"There is no job {job_id}.",
                field="job_id",
                value=job_id,
                remedy=f"List the jobs with GET /v1/jobs; the last {KEEP_RECORDS} finished ones are remembered.",
            )
        return self._jobs[job_id]

    def replace_inputs(self, job: Job, inputs: dict[str, Path], folder: Path) -> None:
        """Give ``job`` other ``inputs``, in ``folder``; what the client sent is deleted."""
        if job.upload is not None:
            delete_files([job.upload])
        job.inputs, job.upload = inputs, folder

    def settle(self, job: Job) -> None:
        """Take note that ``job`` is over: its inputs go now, its outputs and the oldest jobs in their time."""
        if job.upload is not None:
            delete_files([job.upload])
        if job.owner is None:
            self.release(job)
        else:
            self._release_later(job)
        self._trim()

    def _trim(self) -> None:
        """Let go of the oldest results and jobs, but of none that a client may still be reading."""
        over = sorted((job for job in self if job.over), key=lambda job: job.ended or 0.0)
        keeping = [job for job in over if job.keeps]
        for old in keeping[: -self._limits.keep_results]:
            if old.released:
                old.results, old.latents = {}, []
                delete_files([old.folder])
        for old in over[:-KEEP_RECORDS]:
            if old.released:
                self.forget(old)

    def release(self, job: Job) -> None:
        """Delete the outputs of a finished job, but for its MP4s and latents, once nobody reads them any more."""
        if not job.over or job.released:
            return
        if job.followers:
            self._release_later(job)
            return
        files = job.release()
        # Else there is nothing to keep, half-written files included.
        delete_files(files if job.keeps else [job.folder])
        self._trim()

    def _release_later(self, job: Job) -> None:
        asyncio.get_running_loop().call_later(self._limits.resume_seconds, self.release, job)

    def received(self, job: Job, seq: int) -> None:
        """Delete the chunks of frames up to event ``seq``, which their client has."""
        delete_files(job.received(seq))

    def forget(self, job: Job) -> None:
        """Remove a finished job with its files."""
        assert job.over, job.state
        del self._jobs[job.id]
        delete_files([job.folder])


def delete_files(paths: Iterable[Path]) -> None:
    """Delete files and folders in a thread."""
    asyncio.get_running_loop().run_in_executor(None, _remove, list(paths))


def _remove(paths: list[Path]) -> None:
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
