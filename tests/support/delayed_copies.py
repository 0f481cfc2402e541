"""Doubles that make a wrong order of copies and computing visible on a CPU, where both are done at once.

`DelayedCopies`: a copy lands only when it is waited for; until then its buffer is full of NaN. A copy into a buffer
that is still computed with is noted. `Clock`: a stream that only keeps count of what comes after what.
"""

from __future__ import annotations

from collections import Counter
from types import TracebackType

import torch

from engine.offload.pool import Slot

NAN_BYTE = 0xFF
"""Of four or two such bytes fp32 and bf16 are NaN, fp8 of one."""


class DelayedCopies:
    """A `stream_sync.Copies`.

    Attributes:
        reused: how often a copy began into a buffer with which something still computed.
    """

    def __init__(self) -> None:
        self.reused = 0
        self._pending: dict[Slot, torch.Tensor] = {}
        self._computing: set[Slot] = set()

    def begin(self, slot: Slot, source: torch.Tensor) -> None:
        """Spoil the buffer; its weights are on their way."""
        self.reused += slot in self._computing
        slot.flat.fill_(NAN_BYTE)
        self._pending[slot] = source

    def wait(self, slot: Slot) -> None:
        """Let the copy land."""
        source = self._pending.pop(slot, None)
        if source is not None:
            slot.flat[: source.numel()].copy_(source)
        self._computing.add(slot)

    def release(self, slot: Slot) -> None:
        """The computing is done."""
        self._computing.discard(slot)

    def settle(self, slot: Slot) -> None:
        """The buffer is given up."""
        self._pending.pop(slot, None)
        self._computing.discard(slot)


class WithoutWait(DelayedCopies):
    """Planted: a block computes without waiting for its copy."""

    def wait(self, slot: Slot) -> None:
        """Go on at once."""
        self._computing.add(slot)


class WithoutRelease(DelayedCopies):
    """Planted: nobody says when a block has computed."""

    def release(self, slot: Slot) -> None:
        """Say nothing."""


class Clock:
    """Stands in for a `torch.Stream`: counts its work, and what of the others' work is done before."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.done: Counter[str] = Counter()

    def work(self) -> Counter[str]:
        """Queue one piece of work; return what is done when it is."""
        self.done[self.name] += 1
        return self.done.copy()

    def record_event(self) -> Counter[str]:
        """Return an event."""
        return self.done.copy()

    def wait_event(self, event: Counter[str]) -> None:
        """Let later work come after ``event``."""
        self.done |= event

    def __enter__(self) -> Clock:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.work()
