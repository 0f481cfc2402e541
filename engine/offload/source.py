"""The host's copy of a unit's weights: one flat buffer, from which it is brought to the device.

Promise: the copy is made once and never written again; while the unit is not on the device, what stands in its places
are views of this copy with the strides that the weights came with. Nothing is copied back: use does not change weights.
Raises what `UnitLayout` and the memory raise.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from ..models.home import Place
from .layout import UnitLayout


class HostMemory(Protocol):
    """Where host copies lie."""

    def take(self, name: str, size: int) -> tuple[torch.Tensor, bool]:
        """Return memory for the copy ``name``, [size] uint8, and whether it is (or will be, by another rank) filled.

        What is filled by another rank must not be read before the ranks have met.
        """
        ...


class OwnMemory:
    """Host memory of this process alone, which ``device`` can read on its own (pinned), if it does such a thing."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def take(self, name: str, size: int) -> tuple[torch.Tensor, bool]:
        """See `HostMemory`."""
        if self._device.type == "cuda":
            # torch's own pinned memory comes in powers of two: up to twice the bytes.
            return register(torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8)), False
        return torch.empty(size, dtype=torch.uint8, pin_memory=self._device.type not in ("cpu", "meta")), False


def register(flat: torch.Tensor) -> torch.Tensor:
    """Return the host's ``flat``, which CUDA can from now on read on its own; it is kept as long as the process.

    Raises:
        RuntimeError: CUDA cannot pin it.
    """
    runtime: Any = torch.cuda
    runtime.check_error(runtime.cudart().cudaHostRegister(flat.data_ptr(), flat.nbytes, 0))
    return flat


class HostUnit:
    """A unit and its host copy, which stands in its places from now on.

    Attributes:
        name: of the unit in its model. flat: the copy, [bytes] uint8.
    """

    def __init__(self, name: str, where: Sequence[Place], memory: HostMemory, *, component: str) -> None:
        """Copy what stands at ``where``; it may be on the meta device if the memory is filled by another rank."""
        self.name = name
        self._layout = UnitLayout(where)
        self.flat, filled = memory.take(f"{component}/{name}", self._layout.bytes)
        if not filled:
            self._layout.fill(self.flat)
        self._home = self.views(self.flat)
        self.go_home()

    @property
    def bytes(self) -> int:
        """Bytes of the copy."""
        return self._layout.bytes

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Return the unit's tensors in another buffer."""
        return self._layout.views(flat)

    def put(self, tensors: Sequence[torch.Tensor]) -> None:
        """Let ``tensors`` (of `views`) stand in the unit's places."""
        self._layout.put(tensors)

    def go_home(self) -> None:
        """Let the host copy stand in the unit's places."""
        self._layout.put(self._home)

    @property
    def at_home(self) -> bool:
        """Whether the host copy stands in the unit's places."""
        return self._layout.stands(self._home)
