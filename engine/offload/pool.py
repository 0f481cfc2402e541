"""The flat buffers on the device through which a stack's streamed units pass: a fixed number, reused.

Their sizes are the placement's. Raises `torch.OutOfMemoryError` when the device has no room for them.
"""

from __future__ import annotations

import torch


class Slot:
    """One buffer.

    Attributes:
        flat: [bytes] uint8 on the device.
        unit: the number of the unit whose weights are in it, or on their way; None: none yet.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        self.flat = torch.empty(size, dtype=torch.uint8, device=device)
        self.unit: int | None = None


def make_slots(count: int, size: int, device: torch.device) -> list[Slot]:
    """Return ``count`` buffers of ``size`` bytes."""
    return [Slot(size, device) for _ in range(count)]
