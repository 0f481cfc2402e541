"""How an engine's ranks are laid out, and which layouts work.

Three axes: *ring* outside, *ulysses* inside it (together they share the rows of one sequence), *tp* innermost (ranks
that share the weights of each layer and hold the same rows). Promise: pure arithmetic without torch, the same on the
server's side and in the ranks. Raises nothing but the assertions of its own invariants: the configuration asks
`layout_problem` first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType


@dataclass(frozen=True)
class Layout:
    """Where a rank stands: ``rank = (ring_index * ulysses_degree + ulysses_index) * tp_degree + tp_index``.

    Attributes:
        rank: 0 … world_size - 1. world_size: ranks of the engine, U * R * T.
        ulysses_degree: U, ranks that trade rows for heads.
        ring_degree: R, ranks among which keys and values travel.
        tp_degree: T, ranks that share each layer's weights.
    """

    rank: int
    world_size: int
    ulysses_degree: int
    ring_degree: int = 1
    tp_degree: int = 1

    def __post_init__(self) -> None:
        assert self.ulysses_degree * self.ring_degree * self.tp_degree == self.world_size, self
        assert 0 <= self.rank < self.world_size, self

    @property
    def tp_index(self) -> int:
        """Place on the tp axis, 0 … T - 1."""
        return self.rank % self.tp_degree

    @property
    def sequence_index(self) -> int:
        """Place among the ranks that share the sequence, in the order of their rows, 0 … U*R - 1."""
        return self.rank // self.tp_degree

    @property
    def sequence_degree(self) -> int:
        """Ranks that share the sequence, U*R."""
        return self.ulysses_degree * self.ring_degree

    @property
    def ulysses_index(self) -> int:
        """Place on the ulysses axis, 0 … U - 1."""
        return self.sequence_index % self.ulysses_degree

    @property
    def ring_index(self) -> int:
        """Place on the ring axis, 0 … R - 1."""
        return self.sequence_index // self.ulysses_degree

    def ranks_along(self, axis: str) -> tuple[int, ...]:
        """Return the ranks that share ``axis`` (world, sequence, ulysses, ring or tp) with this one, in its order."""
        return _ranks_along(self, axis)

    @property
    def degrees(self) -> tuple[int, int, int]:
        """(U, R, T)."""
        return self.ulysses_degree, self.ring_degree, self.tp_degree

    def _beside(self, other: Layout, axis: str) -> bool:
        """Whether both differ in nothing but the place on ``axis``."""
        same_tp = self.tp_index == other.tp_index
        return {
            "world": True,
            "sequence": same_tp,
            "ulysses": same_tp and self.ring_index == other.ring_index,
            "ring": same_tp and self.ulysses_index == other.ulysses_index,
            "tp": self.sequence_index == other.sequence_index,
        }[axis]


@cache
def _ranks_along(layout: Layout, axis: str) -> tuple[int, ...]:
    places = [Layout(rank, layout.world_size, *layout.degrees) for rank in range(layout.world_size)]
    return tuple(place.rank for place in places if place._beside(layout, axis))


_SHOWN = 12
"""Layouts that a message lists."""
AXES = ("world", "sequence", "ulysses", "ring", "tp")
_UNKNOWN: Mapping[str, int] = MappingProxyType({})


def possible_layouts(world: int, *, shared: Mapping[str, int] = _UNKNOWN) -> list[tuple[int, int, int]]:
    """Return every (U, R, T) that ``world`` ranks can take, U largest first.

    Rows and heads need not divide by U or R.

    Args:
        shared: how much there is of what T must divide, by its name: ``{"attention heads": 56}``.
    """
    found = [
        (world // (ring * tp), ring, tp)
        for tp in _divisors(world)
        if all(size % tp == 0 for size in shared.values())
        for ring in _divisors(world // tp)
    ]
    return sorted(found, key=lambda degrees: (degrees[2], degrees[1]))


def layout_problem(world: int, degrees: tuple[int, int, int], *, shared: Mapping[str, int] = _UNKNOWN) -> str | None:
    """Return why ``world`` ranks cannot take ``degrees`` (U, R, T), as one sentence; None when they can.

    Args:
        shared: as for `possible_layouts`.
    """
    ulysses, ring, tp = degrees
    if ulysses * ring * tp != world:
        product = f"ulysses_degree {ulysses} x ring_degree {ring} x tp_degree {tp} is {ulysses * ring * tp}"
        return f"{product}, but there are {world} ranks, and every rank must have a place."
    undivided = [f"{size} {name}" for name, size in shared.items() if size % tp]
    return f"tp_degree {tp} does not divide the transformer's {' and '.join(undivided)}." if undivided else None


def layouts_remedy(world: int, *, shared: Mapping[str, int] = _UNKNOWN) -> str:
    """Return the layouts that work for ``world`` ranks, as one sentence in the options' words.

    Args:
        shared: as for `possible_layouts`.
    """
    layouts = possible_layouts(world, shared=shared)
    choices = [f"--ulysses-degree {u} --ring-degree {r} --tp-degree {t}" for u, r, t in layouts[:_SHOWN]]
    more = f"; and {len(layouts) - _SHOWN} more" if len(layouts) > _SHOWN else ""
    return f"Working layouts of {world} {'ranks' if world > 1 else 'rank'}: {'; '.join(choices)}{more}."


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]
