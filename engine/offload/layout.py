"""How the tensors of a unit lie in one flat buffer, and what a model's tensors are to `placement`.

Each plain tensor (wrappers, such as DTensors and torchao's, are taken apart) begins at a multiple of
`placement.ALIGNMENT` and keeps the order of its elements, transposed or not. The buffer's size is that of
`placement.flat_bytes`. Raises `ValueError` for a tensor whose elements do not lie side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from ..models.home import Place, places, plain_parts, rebuilt
from ..placement import ALIGNMENT, Held

DTYPES = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float8_e4m3fn: "fp8",
    torch.int8: "int8",
    torch.int64: "int64",
    torch.bool: "bool",
}
"""Names of torch's types in `placement.ITEM_BYTES`."""


def held_tensors(model: nn.Module) -> dict[str, Held]:
    """Return the tensors of ``model`` as this rank holds them (on any device), by their dotted names."""
    return {
        f"{place.name}.{name}" if name else place.name: Held(tuple(part.shape), DTYPES[part.dtype])
        for place in places(model)
        for name, part in plain_parts(place.tensor)
    }


@dataclass(frozen=True)
class _Part:
    """A plain tensor of a unit: ``name`` within the tensor in whose place it is, and where it lies in the buffer."""

    name: str
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize

    def view(self, flat: torch.Tensor) -> torch.Tensor:
        """Return it in the buffer ``flat``."""
        return flat[self.offset : self.offset + self.bytes].view(self.dtype).as_strided(self.shape, self.stride)


class UnitLayout:
    """The layout of the tensors in some places; the places' tensors may be on the meta device.

    Attributes:
        bytes: of the flat buffer.
    """

    def __init__(self, where: Sequence[Place]) -> None:
        """Lay out what stands at ``where``, in this order.

        Raises:
            ValueError: see the module.
        """
        self.bytes = 0
        self._entries: list[tuple[Place, torch.Tensor, list[_Part]]] = []
        for place in where:
            parts = [self._append(place.name, name, part) for name, part in plain_parts(place.tensor)]
            # Remembers how a wrapper is made, without holding its elements.
            self._entries.append((place, _emptied(place.tensor), parts))

    def _append(self, place: str, name: str, tensor: torch.Tensor) -> _Part:
        if not _is_dense(tensor):
            raise ValueError(f"{place}: the elements of a streamed weight must lie side by side: {tensor.stride()}")
        part = _Part(name, self.bytes, tuple(tensor.shape), tensor.stride(), tensor.dtype)
        self.bytes += -(-part.bytes // ALIGNMENT) * ALIGNMENT
        return part

    def fill(self, flat: torch.Tensor) -> None:
        """Copy what stands at the places now into the buffer ``flat`` [bytes] uint8."""
        for place, _, parts in self._entries:
            tensors = dict(plain_parts(place.tensor))
            for part in parts:
                part.view(flat).copy_(tensors[part.name])

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Return the unit's tensors in the buffer ``flat`` [bytes or more], as they can stand at its places."""
        return [
            place.as_in(rebuilt(like, {part.name: part.view(flat) for part in parts}))
            for place, like, parts in self._entries
        ]

    def put(self, tensors: Sequence[torch.Tensor]) -> None:
        """Let ``tensors`` (of `views`) stand at the unit's places."""
        for (place, _, _), tensor in zip(self._entries, tensors, strict=True):
            place.put(tensor)

    def stands(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether ``tensors`` are what stands at the unit's places."""
        return all(place.tensor is tensor for (place, _, _), tensor in zip(self._entries, tensors, strict=True))


def _emptied(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor made as ``tensor`` is, without memory."""
    return rebuilt(
        tensor,
        {
            name: torch.empty_strided(part.shape, part.stride(), dtype=part.dtype, device="meta")
            for name, part in plain_parts(tensor)
        },
    )


def _is_dense(tensor: torch.Tensor) -> bool:
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True
