"""Reading a job's media in a process of its own, before any rank wakes.

The process is ``python -m engine.media JOB.json``; the controller never imports it. JOB.json is an object of

- ``request``: the request, checked as far as it can be without reading (frames snapped, guides' starts resolved);
- ``parts``: part name → path of what the client sent; ``facts`` and ``limits``: fields of `ModelFacts` and `Limits`;
- ``out``: an empty folder for what it makes; ``result``: the JSON file that it writes last;
- ``parent``: the process id of the engine, which it does not outlive.

The result is ``{"request", "facts", "warnings": [{"code", "message"}], "parts": {name: path}}`` or ``{"error": …}``,
with exit status 0 either way. Before each of its media the process writes a line with the path of its field
(``references[1].media``) to standard output: a process that crashes or hangs is blamed on the last of these.

The process is killed when its job is cancelled, when it takes longer than ``--media-timeout``, and by its own limits of
memory and file size. Raises `RequestError` for media that cannot be used and `JobError` for a process that failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import json
import logging
import os
import resource
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import env
from ..config import EngineConfig
from ..contract.errors import EngineError, JobError, RequestError, error_from_dict
from ..contract.limits import Limits, ModelFacts
from ..contract.messages import Warned
from ..contract.requests import Request, media_of, parse_request
from ..wire import hash_files
from .folder import RunFolder, folder_busy
from .jobs import Job

logger = logging.getLogger(__name__)

AT_ONCE = 2
"""Jobs whose media are read at the same time."""
MEMORY_BYTES = 16 * 2**30
"""Memory that one process may have for itself, and the largest file that it may write."""
_KILLED_FIRST = "800"
_ROOT = Path(__file__).resolve().parents[2]
_TAIL_BYTES = 4000


@dataclass(frozen=True)
class ReadMedia:
    """What reading came to.

    Attributes:
        request: the request with its canvas resolved.
        facts: of the media. warnings: what to tell the user.
        parts: name → safetensors file, the ranks' inputs. folder: holds them.
        hashes: part name → sha256, if results are kept.
    """

    request: Request
    facts: Mapping[str, Any]
    warnings: tuple[Warned, ...]
    parts: Mapping[str, Path]
    folder: Path
    hashes: Mapping[str, str] = field(default_factory=dict)


async def read_media(
    request: Request, parts: Mapping[str, Path], *, folder: Path, facts: ModelFacts, limits: Limits
) -> ReadMedia:
    """Read the media of ``request`` into ``folder``; a cancelled call kills the process.

    Raises:
        RequestError: naming the media, their limit, or why they cannot be read.
        JobError: the process failed.
        EngineBusyError: ``queue_full`` when the run folder is full.
    """
    out, result, job_file = folder / "out", folder / "result.json", folder / "job.json"
    job = {
        "request": dataclasses.asdict(request),
        "parts": {name: str(path) for name, path in parts.items()},
        "facts": dataclasses.asdict(facts),
        "limits": dataclasses.asdict(limits),
        "out": str(out),
        "result": str(result),
        "parent": os.getpid(),
    }
    try:
        out.mkdir()
        job_file.write_text(json.dumps(job), encoding="utf-8")
        process = await _spawn(job_file, folder)
    except OSError as error:
        raise folder_busy(error) from error
    try:
        async with asyncio.timeout(limits.media_timeout):
            status = await process.wait()
    except TimeoutError as error:
        raise _blame(
            request, folder, f"took longer than {limits.media_timeout:g} s", "Send less, or raise --media-timeout."
        ) from error
    finally:
        await _end(process)
    return _result_of(request, folder, status)


async def _spawn(job_file: Path, folder: Path) -> asyncio.subprocess.Process:
    with (folder / "log").open("wb") as log, (folder / "reading").open("wb") as reading:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "engine.media", str(job_file)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=reading,
            stderr=log,
            # The package is found from there, whatever folder the user stands in.
            cwd=_ROOT,
            env=env.child_environment(_ROOT),
            # What it starts is killed with it.
            start_new_session=True,
        )
    _bound(process.pid)
    return process


def _bound(pid: int) -> None:
    """Have a file that unpacks to more than the machine has end its reader, not the engine."""
    with contextlib.suppress(ProcessLookupError):
        for limit in (resource.RLIMIT_DATA, resource.RLIMIT_FSIZE):
            _, hard = resource.prlimit(pid, limit)
            most = MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_BYTES, hard)
            resource.prlimit(pid, limit, (most, most))
    # Where memory runs out before that, the kernel should choose it rather than a rank.
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/oom_score_adj").write_text(_KILLED_FIRST, encoding="ascii")


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill the process and what it started, if it still runs."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _result_of(request: Request, folder: Path, status: int) -> ReadMedia:
    try:
        data = json.loads((folder / "result.json").read_text(encoding="utf-8")) if status == 0 else None
    except (OSError, ValueError):
        data = None
    if data is None:
        log = _tail(folder / "log")
        logger.error("reading media ended with status %d: %s", status, log)
        if status < 0:
            raise _blame(
                request,
                folder,
                f"ended the process that read it with {signal.Signals(-status).name}",
                "Convert it to an ordinary MP4, PNG or WAV file, or make it smaller.",
            )
        last = log.rpartition("\n")[2] or f"exit status {status}"
        raise JobError("job_failed", f"Reading the media failed: {last}", remedy="The engine's log says more.")
    if "error" in data:
        raise error_from_dict(data["error"])
    return ReadMedia(
        request=parse_request(data["request"]),
        facts=data["facts"],
        warnings=tuple(Warned(warning["code"], warning["message"]) for warning in data["warnings"]),
        parts={name: Path(path) for name, path in data["parts"].items()},
        folder=folder,
    )


def _blame(request: Request, folder: Path, what: str, remedy: str) -> RequestError:
    """Return the error that names the media which were being read last."""
    names = [name for name, _ in media_of(request)]
    last = _tail(folder / "reading").strip().rpartition("\n")[2]
    field = last if last in names else names[0] if len(names) == 1 else None
    return RequestError(
        "bad_media",
        f"{field or 'One of ' + ', '.join(names)} {what}.",
        field=f"request.{field}" if field else "request",
        remedy=remedy,
    )


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return file.read().decode(errors="replace").strip()
    except OSError:
        return ""


class MediaDesk:
    """Reads the media of waiting jobs, a few at a time, first come first served.

    What was read waits in the run folder until its job runs, so it is read ahead only while there is room for it.
    """

    def __init__(
        self,
        config: EngineConfig,
        facts: ModelFacts,
        folder: RunFolder,
        ended: Callable[[Job, ReadMedia | EngineError | None], None],
    ) -> None:
        """``ended`` is told on the event loop what came of each job; None of one that was dropped."""
        self._config = config
        self._facts = facts
        self._folder = folder
        self._ended = ended
        self._tasks: dict[str, asyncio.Task[ReadMedia]] = {}

    def start(self, queue: Iterable[Job]) -> None:
        """Start on the next jobs of ``queue`` whose media are to be read, as far as there is room."""
        waiting = [job for job in queue if job.plan.has_media]
        ahead = sum(not job.reading for job in waiting)
        for job in waiting:
            if job.reading and job.id not in self._tasks and self._has_room(ahead + len(self._tasks)):
                task = self._tasks[job.id] = asyncio.create_task(self._read(job))
                task.add_done_callback(functools.partial(self._end, job))

    def _has_room(self, ahead: int) -> bool:
        if len(self._tasks) >= AT_ONCE:
            return False
        # One job must always be able to start; another only where it cannot fill up the folder.
        return ahead == 0 or self._folder.free_bytes() >= self._config.limits.max_body_bytes * (len(self._tasks) + 1)

    def drop(self, job: Job) -> None:
        """Stop reading for ``job``: the process is killed and its folder deleted."""
        task = self._tasks.get(job.id)
        if task is not None:
            task.cancel()

    async def stop(self) -> None:
        """Kill every process and wait for their end."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, job: Job) -> ReadMedia:
        folder = self._folder.make("media")
        try:
            media = await read_media(
                job.plan.request, job.inputs, folder=folder, facts=self._facts, limits=self._config.limits
            )
            if self._config.cache_mb:
                media = dataclasses.replace(media, hashes=await asyncio.to_thread(hash_files, media.parts))
            return media
        except BaseException:
            await asyncio.to_thread(shutil.rmtree, folder, True)
            raise

    def _end(self, job: Job, task: asyncio.Task[ReadMedia]) -> None:
        del self._tasks[job.id]
        outcome: ReadMedia | EngineError | None = None
        if not task.cancelled():
            error = task.exception()
            if error is None:
                outcome = task.result()
            elif isinstance(error, EngineError):
                outcome = error
            else:
                logger.error("job %s: its media could not be read", job.id, exc_info=error)
                outcome = JobError("job_failed", f"Reading the media failed: {error}", remedy="Look at the log.")
        self._ended(job, outcome)
