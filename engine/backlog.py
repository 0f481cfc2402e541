"""How many chunks of frames rank 0 may be ahead of those who take them: the MP4 writer or the client's connection.

Rank 0 alone waits, and only where all ranks meet (no collective that could time out is open), so that a slow taker
slows the decoding down and nothing piles up in the run folder. A cancellation ends the wait; the controller cancels
when it lasts too long (`controller.chunks`). Raises nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from .contract.limits import CHUNKS_AHEAD


class Backlog:
    """The chunks of one job that were announced and not yet taken. Safe to use from any thread."""

    def __init__(self, stopped: Callable[[], bool]) -> None:
        """``stopped``: whether nobody should wait any more; call `wake` when it becomes true."""
        self._stopped = stopped
        self._waiting = 0
        self._changed = threading.Condition()

    def add(self) -> None:
        """Count a chunk that was announced."""
        with self._changed:
            self._waiting += 1

    def take(self) -> None:
        """Count a chunk that was taken."""
        with self._changed:
            self._waiting -= 1
            self._changed.notify_all()

    def wake(self) -> None:
        """Have `wait_for_room` look again whether it should stop."""
        with self._changed:
            self._changed.notify_all()

    def wait_for_room(self) -> None:
        """Wait until at most `CHUNKS_AHEAD` chunks wait to be taken, or until stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting <= CHUNKS_AHEAD or self._stopped())
