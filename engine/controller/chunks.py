"""The chunks of frames of the running job that its client has not taken, and how long it may take none.

Rank 0, and all ranks with it, waits while more than `CHUNKS_AHEAD` chunks are not taken (`backlog`). A client that
reads slowly so slows its own job down; one that takes no chunk for ``--client-timeout`` seconds ends it, so that the
jobs behind it run. A client that lost its connection has the time to come back instead (`Limits.resume_seconds`). Lives
on the server's event loop. Raises nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ..contract.errors import JobError
from ..contract.limits import CHUNKS_AHEAD


class Chunks:
    """Counts one job's chunks; `close` it when the ranks have ended the job."""

    def __init__(
        self,
        *,
        patience: float,
        taken: Callable[[], None],
        connected: Callable[[], bool],
        late: Callable[[JobError], None],
    ) -> None:
        """Begin with none.

        Args:
            patience: seconds that the ranks wait for a chunk to be taken.
            taken: told of each chunk that was taken.
            connected: whether a client is being sent the job's events.
            late: told once, of a client that took nothing for so long.
        """
        self._patience = patience
        self._taken = taken
        self._connected = connected
        self._late = late
        self._waiting = 0
        self._timer: asyncio.TimerHandle | None = None

    def add(self) -> None:
        """Count a chunk that was announced."""
        self._waiting += 1
        if self._timer is None:
            self._watch()

    def take(self) -> None:
        """Count a chunk that was taken."""
        self._waiting -= 1
        self.close()
        self._watch()
        self._taken()

    def close(self) -> None:
        """Wait for nobody any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _watch(self) -> None:
        """Give the client its time, if the ranks may be waiting for it."""
        if self._waiting > CHUNKS_AHEAD:
            self._timer = asyncio.get_running_loop().call_later(self._patience, self._end)

    def _end(self) -> None:
        if self._connected():
            self._late(_too_slow(self._patience))
        else:
            self._watch()


def _too_slow(seconds: float) -> JobError:
    return JobError(
        "client_too_slow",
        f"The client took no chunk of frames for {seconds:g} s, while the ranks waited for it.",
        field="request.container",
        remedy="Read the job's events while they come, ask for an MP4, which is kept until it is fetched, or raise "
        "--client-timeout.",
    )
