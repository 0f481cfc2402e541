"""The order between copies into a slot and the computing that uses it.

The host runs ahead of its device: it asks for a forward and a copy, and neither is done when the call returns. Copies
run on a stream of their own beside the computing, so that two things must never happen:

1. *Use before the copy ended*: a block computes with a slot into which its weights are still being copied. So the
   computing stream waits for an event that the copy stream records after the copy (`Copies.wait`).
2. *Reuse before the compute ended*: the next block's weights are copied into a slot with which a block still computes.
   So the copy stream waits for an event that the computing stream records after the block (`Copies.release`).

The same holds where memory changes hands: before the first copy into a new slot the copy stream waits for what was
computed in that memory before, and a slot is not given back before its last copy ended (`Copies.settle`). The host's
copy is never written while it is read: it does not change. On a device without streams (the CPU) a copy is done when
the call returns, and there is nothing to order. Raises what torch raises.
"""

from __future__ import annotations

from typing import Protocol

import torch

from .pool import Slot


class Copies(Protocol):
    """Copies into slots. Called by one thread, in the order of `begin`, `wait`, `release` for each slot."""

    def begin(self, slot: Slot, source: torch.Tensor) -> None:
        """Begin to copy the host's ``source`` [n] uint8 to the begin of ``slot``, which nobody uses any more."""
        ...

    def wait(self, slot: Slot) -> None:
        """Let what is computed from now on come after the copy into ``slot``."""
        ...

    def release(self, slot: Slot) -> None:
        """Let the next copy into ``slot`` come after what was computed up to now."""
        ...

    def settle(self, slot: Slot) -> None:
        """Let the memory of ``slot``, which is given up, be used by what comes after its copy."""
        ...


class PlainCopies:
    """On a device without streams."""

    def begin(self, slot: Slot, source: torch.Tensor) -> None:
        """See `Copies`."""
        slot.flat[: source.numel()].copy_(source)

    def wait(self, slot: Slot) -> None:
        """The copy is done."""

    def release(self, slot: Slot) -> None:
        """The computing is done."""

    def settle(self, slot: Slot) -> None:
        """The copy is done."""


class StreamCopies:
    """On an accelerator: a copy stream, and two events for each slot."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.Stream(device)
        self._copied: dict[Slot, torch.Event] = {}
        self._computed: dict[Slot, torch.Event] = {}

    def begin(self, slot: Slot, source: torch.Tensor) -> None:
        """See `Copies`."""
        if slot not in self._computed:
            # A new slot: its memory may be that of something that is still computed with.
            self.release(slot)
        self._stream.wait_event(self._computed[slot])
        with self._stream:
            slot.flat[: source.numel()].copy_(source, non_blocking=True)
        self._copied[slot] = self._stream.record_event()

    def wait(self, slot: Slot) -> None:
        """See `Copies`."""
        torch.accelerator.current_stream(self._device).wait_event(self._copied[slot])

    def release(self, slot: Slot) -> None:
        """See `Copies`."""
        self._computed[slot] = torch.accelerator.current_stream(self._device).record_event()

    def settle(self, slot: Slot) -> None:
        """See `Copies`."""
        if slot in self._copied:
            self.wait(slot)
            del self._copied[slot], self._computed[slot]


def copies_for(device: torch.device) -> Copies:
    """Return how copies to ``device`` are ordered."""
    return PlainCopies() if device.type == "cpu" else StreamCopies(device)
