"""The buffers in which tiles are gathered, kept from request to request.

Promise: the same geometry gets the same memory, at the same address, as long as it is kept; all that is kept stays
within a budget, the least recently used geometry going first. A buffer that alone is over the budget is lent, not kept;
what such a one takes while it is used is told all the same. Whoever takes a buffer has it alone until the next `take`
of that geometry. Raises what the allocator raises.
"""

from __future__ import annotations

import math
import weakref
from collections import OrderedDict

import torch

_Geometry = tuple[tuple[int, ...], torch.dtype]


class GatherWorkspace:
    """The buffers of one rank on its device."""

    def __init__(self, device: torch.device, *, budget: int) -> None:
        """Keep at most ``budget`` bytes on ``device``."""
        self._device = device
        self._budget = budget
        self._kept: OrderedDict[_Geometry, torch.Tensor] = OrderedDict()
        self._taken: weakref.ref[torch.Tensor] | None = None

    @property
    def bytes(self) -> int:
        """Bytes that are kept."""
        return sum(buffer.nbytes for buffer in self._kept.values())

    @property
    def bytes_lent(self) -> int:
        """Bytes of the buffer that was taken last, while somebody has it and it is not kept."""
        taken = None if self._taken is None else self._taken()
        return 0 if taken is None or any(taken is kept for kept in self._kept.values()) else taken.nbytes

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return a contiguous buffer of ``shape`` whose values are what was left in it."""
        geometry = (shape, dtype)
        size = math.prod(shape) * dtype.itemsize
        kept = size <= self._budget
        buffer = self._kept.pop(geometry, None)
        if buffer is None:
            # Room is made before the new one is there, so that both never lie side by side over the budget.
            while kept and self.bytes + size > self._budget:
                self._kept.popitem(last=False)
            buffer = torch.empty(shape, dtype=dtype, device=self._device)
        if kept:
            self._kept[geometry] = buffer
        self._taken = weakref.ref(buffer)
        return buffer

    def release(self) -> None:
        """Forget all buffers; their memory is free when nobody uses them any more."""
        self._kept.clear()
