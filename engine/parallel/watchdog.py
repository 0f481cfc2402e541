"""A thread of each rank that sees what the rank's main thread, inside a collective or a kernel, cannot.

It ends the process when the parent (the fleet) is gone, when the store (hosted by the fleet) is gone, or when another
rank has not been heard of for the data timeout, half a minute where a cancellation waits for it (stopped, not dead: a
dead one is noticed by everybody at once). The fleet then restarts all ranks. When a rank announces that it failed, the
others' unfinished data collectives are aborted, where the backend can: as soon as they are in one, not before, and not
once the job has ended.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable

from torch._C._distributed_c10d import Store

from .mesh import Mesh

logger = logging.getLogger(__name__)

_TICK = 0.25
_BEAT = 1.0
_CANCEL_SILENCE = 30.0
"""Seconds of silence that a rank may keep while a cancellation waits for it."""
EXIT_STATUS = 70


class Watchdog:
    """Watches over one rank; `start` it once."""

    def __init__(self, mesh: Mesh, store: Store, *, silence: float, cancelled: Callable[[], bool]) -> None:
        """Watch with a connection of its own to the ``store``.

        Args:
            silence: seconds after which a rank that gives no sign of life counts as lost.
            cancelled: whether this rank was asked to cancel the running job.
        """
        self._mesh = mesh
        self._store = store
        self._silence = silence
        self._cancelled = cancelled
        self._parent = os.getppid()
        self._job: str | None = None
        self._lock = threading.Lock()
        self._last = {rank: ("", time.monotonic()) for rank in range(mesh.layout.world_size)}

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name="watchdog", daemon=True).start()

    def watch_job(self, job: str | None) -> None:
        """Look out for announcements about ``job`` from now on; None: about none. On return no abort is under way."""
        with self._lock:
            self._job = job

    def announce_failure(self, job: str) -> None:
        """Tell the other ranks' watchdogs that this rank failed in ``job``."""
        self._store.set(_failure_key(job), str(self._mesh.layout.rank))

    def _run(self) -> None:
        beat = 0.0
        while True:
            time.sleep(_TICK)
            if os.getppid() != self._parent:
                _end("the fleet is gone")
            try:
                self._look_for_failures()
                if time.monotonic() - beat >= _BEAT:
                    beat = time.monotonic()
                    self._exchange_signs_of_life()
            except RuntimeError as error:
                _end(f"the store is gone: {error}")

    def _look_for_failures(self) -> None:
        job = self._job
        if job is None or not self._store.check([_failure_key(job)]):
            return
        with self._lock:
            # The next job needs the groups; so does this rank when it and the failed one used none of them.
            if self._job == job and self._mesh.dirty:
                self._job = None
                self._mesh.abort_data()

    def _exchange_signs_of_life(self) -> None:
        now = time.monotonic()
        patience = min(self._silence, _CANCEL_SILENCE) if self._cancelled() else self._silence
        self._store.set(f"alive/{self._mesh.layout.rank}", str(now))
        for rank, (sign, since) in self._last.items():
            key = f"alive/{rank}"
            seen = self._store.get(key).decode() if self._store.check([key]) else ""
            if seen != sign:
                self._last[rank] = (seen, now)
            elif now - since > patience:
                _end(f"rank {rank} has given no sign of life for {patience:g} s")


def _failure_key(job: str) -> str:
    return f"failed/{job}"


def _end(reason: str) -> None:
    logger.error("this rank ends: %s", reason)
    # The main thread may be inside a collective for ever: leave without asking it.
    os._exit(EXIT_STATUS)
