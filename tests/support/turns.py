"""Tests that measure time have the machine to themselves, also when pytest runs several processes (``-n``)."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def turn(folder: Path, *, alone: bool) -> Iterator[None]:
    """Wait until a test may run, and keep others from running for the time of the block if it must be ``alone``.

    Args:
        folder: where all processes that take turns have their locks.
    """
    with (folder / "next_turn").open("w") as queue, (folder / "turn").open("w") as running:
        # Whoever waits here keeps those that come later behind: a test that must be alone is not passed over.
        fcntl.flock(queue, fcntl.LOCK_EX)
        fcntl.flock(running, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(queue, fcntl.LOCK_UN)
        yield
