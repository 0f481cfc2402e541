"""The MP4s of the running job, each written by a program of its own (``python -m engine.mux_process``).

Rank 0 announces files, this module hands their names on, and tells rank 0 of each chunk that was taken: that is what
bounds how many lie in the run folder. A program that fails or dies fails its job alone. Lives on the server's event
loop. Raises `JobError` from `Movies.finish`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import env
from ..contract.errors import EngineError, JobCancelled, JobError, error_from_dict

logger = logging.getLogger(__name__)

_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class MovieListener:
    """Who is told about a job's movies.

    Attributes:
        taken: a chunk of frames was taken.
        made: (number, path) of a finished MP4; awaited before the movie counts as finished.
        failed: a movie cannot be written.
    """

    taken: Callable[[], None]
    made: Callable[[int, Path], Awaitable[None]]
    failed: Callable[[EngineError], None]


class Movies:
    """All MP4s of one job."""

    def __init__(self, folder: Path, listener: MovieListener) -> None:
        """Write them in ``folder``."""
        self._folder = folder
        self._listener = listener
        self._writers: dict[int, _Writer] = {}

    async def take(self, number: int, name: str, path: str | None) -> None:
        """Hand a piece of movie ``number`` on: its ``audio``, a chunk of its ``frames``, or ``finish``.

        Raises:
            JobError: the program cannot be started.
        """
        if number not in self._writers:
            self._writers[number] = await _start(number, self._folder / f"video-{number}.mp4", self._listener)
        self._writers[number].send({name: path or True})

    async def finish(self, *, whole_only: bool = False) -> None:
        """Wait until all movies that were begun are made.

        Args:
            whole_only: leave out those that lack pictures.

        Raises:
            EngineError: why one cannot be; ``cancelled`` after `kill`.
        """
        for writer in self._writers.values():
            if writer.whole or not whole_only:
                await writer.end

    def kill(self) -> None:
        """Stop what is still being written; the unfinished files go."""
        for writer in self._writers.values():
            writer.kill()


class _Writer:
    """One program and its movie.

    Attributes:
        end: done when the movie is made; holds the error otherwise.
        whole: it was told that it has everything.
    """

    def __init__(self, process: asyncio.subprocess.Process, number: int, path: Path, listener: MovieListener) -> None:
        self._process = process
        self._number = number
        self._path = path
        self._listener = listener
        self._killed = False
        self.whole = False
        self.end = asyncio.create_task(self._attend())
        # A job that fails for another reason never asks.
        self.end.add_done_callback(lambda end: end.cancelled() or end.exception())

    def send(self, message: dict[str, Any]) -> None:
        """Send one line; a program that is gone is noticed by `_attend`."""
        assert self._process.stdin is not None
        self.whole = self.whole or "finish" in message
        with contextlib.suppress(ConnectionError, RuntimeError):
            self._process.stdin.write(json.dumps(message).encode() + b"\n")

    def kill(self) -> None:
        """Kill the program, unless it has ended."""
        if not self.end.done():
            self._killed = True
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def _attend(self) -> None:
        """Listen to the program until it ends."""
        try:
            if not await self._listen():
                raise await self._died()
        except Exception as error:
            told = error if isinstance(error, EngineError) else _failed(f"The video cannot be used: {error}")
            self._path.unlink(missing_ok=True)
            self._listener.failed(told)
            raise told from error
        finally:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    async def _listen(self) -> bool:
        """Return whether the movie was made.

        Raises:
            EngineError: what the program says.
        """
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            message = json.loads(line)
            if "taken" in message:
                self._listener.taken()
            elif "error" in message:
                raise error_from_dict(message["error"])
            elif "done" in message and not self._killed:
                await self._listener.made(self._number, self._path)
                return True
        return False

    async def _died(self) -> EngineError:
        status = await self._process.wait()
        if self._killed:
            return JobCancelled()
        return _failed(f"The program that writes the video ended with status {status}.")


def _failed(message: str) -> JobError:
    remedy = "Look at the engine's log, and decode again: the engine goes on, and sampled latents are not lost."
    return JobError("job_failed", message, field="video", remedy=remedy)


async def _start(number: int, path: Path, listener: MovieListener) -> _Writer:
    """Start the program that writes ``path``.

    Raises:
        JobError: ``job_failed``.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "engine.mux_process", str(path)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=_ROOT,
            env=env.child_environment(_ROOT),
            # Ctrl-C in a terminal is the server's to handle.
            start_new_session=True,
        )
    except OSError as error:
        raise _failed(f"The program that writes the video cannot be started: {error}") from error
    logger.info("process %d writes %s", process.pid, path)
    return _Writer(process, number, path, listener)
