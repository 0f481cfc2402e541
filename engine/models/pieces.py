"""The part of a stored tensor that one rank reads.

`Piece` is arithmetic on ranges and one read; it knows nothing of ranks' groups. `Division` is what `loading` asks of
whoever divides a model among ranks (``parallel.weights``). A `Piece` that does not fit its tensor is our mistake: an
AssertionError.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

Range = tuple[int, int]
"""Start and end, the end not included."""


@dataclass(frozen=True)
class Piece:
    """Some rows, and of these some columns, of a tensor of one or more dimensions.

    Attributes:
        rows: ranges along dim 0, joined in this order. columns: the range along dim 1, None for all.
        rest: sizes of the dimensions that are read whole: those after ``rows``, without the one of ``columns``.
    """

    rows: tuple[Range, ...]
    columns: Range | None
    rest: tuple[int, ...]

    @classmethod
    def whole(cls, shape: Sequence[int]) -> Piece:
        """All of a tensor of ``shape``, one or more dimensions."""
        return cls(((0, shape[0]),), None, tuple(shape[1:]))

    def part_of_blocks(self, part: int, parts: int, *, blocks: int = 1) -> Piece:
        """Divide each of ``blocks`` equal blocks of a whole tensor's rows into ``parts``; take one part of each."""
        ((start, end),) = self.rows
        block = (end - start) // blocks
        size = block // parts
        assert size * parts * blocks == end - start, (self, parts, blocks)
        begins = [start + index * block + part * size for index in range(blocks)]
        return Piece(tuple((begin, begin + size) for begin in begins), self.columns, self.rest)

    def part_of_columns(self, part: int, parts: int) -> Piece:
        """Divide the columns of a whole matrix into ``parts`` equal ones and take one."""
        assert self.columns is None
        size = self.rest[0] // parts
        assert size * parts == self.rest[0], (self, parts)
        return Piece(self.rows, (part * size, (part + 1) * size), self.rest[1:])

    def chunk(self, part: int, parts: int) -> Piece:
        """Take the chunk ``part`` of these rows as `torch.chunk` cuts them: the last ones may be short or empty."""
        total = sum(end - start for start, end in self.rows)
        size = -(-total // parts)
        low, high = min(part * size, total), min((part + 1) * size, total)
        rows: list[Range] = []
        offset = 0
        for start, end in self.rows:
            first, last = max(low - offset, 0), min(high - offset, end - start)
            if first < last:
                rows.append((start + first, start + last))
            offset += end - start
        return Piece(tuple(rows) or ((0, 0),), self.columns, self.rest)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of what `read` returns."""
        columns = () if self.columns is None else (self.columns[1] - self.columns[0],)
        return (sum(end - start for start, end in self.rows), *columns, *self.rest)

    @property
    def numel(self) -> int:
        """Elements of it."""
        return math.prod(self.shape)

    def read(self, stored: Any) -> torch.Tensor:
        """Read from ``stored`` (safetensors' slice of a file, or a tensor) these bytes alone."""
        index = () if self.columns is None else (slice(*self.columns),)
        parts = [stored[(slice(start, end), *index)] for start, end in self.rows]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


class Division(Protocol):
    """How the weights of one model are divided among ranks, from outside the model."""

    def apply(self, model: Any) -> None:
        """Turn the parameters of ``model``, which have no memory yet, into this rank's shares; every rank calls it."""

    def piece(self, name: str, shape: Sequence[int]) -> Piece | None:
        """Return what this rank reads of the tensor ``name`` of the whole ``shape``; None for all of it."""

    def wrap(self, name: str, local: torch.Tensor) -> torch.Tensor:
        """Return the parameter ``name`` made of what `piece` read."""
