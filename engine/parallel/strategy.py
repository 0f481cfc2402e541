"""Which ranks share the rows of a forward, and how: nobody, the Ulysses group, the ring, or both.

A `Strategy` names a sub-mesh that the layout has groups for; a `Shard` is a strategy with the rows of one forward.
What runs is decided by the shard that is active, never by how the fleet was started. Raises `ValueError` for a
strategy that the layout or the weights do not allow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .layout import Layout
from .mesh import Mesh
from .rows import RowPartition, apportion

LOCAL, ULYSSES, RING, BOTH = "local", "ulysses", "ring", "both"
_AXES = {LOCAL: None, ULYSSES: "ulysses", RING: "ring", BOTH: "sequence"}


@dataclass(frozen=True)
class Strategy:
    """How one forward is divided, as this rank sees it.

    Attributes:
        name: ``local``, ``ulysses``, ``ring`` or ``both``.
        axis: the axis whose ranks share the rows; None when this rank has them all.
        ulysses_degree, ring_degree: of this strategy, 1 where it does not use the axis.
        index: this rank's place among those that share the rows.
        weights: of the ranks that share the rows, in their order.
        head_weights: of the Ulysses group, in its order; alike in every Ulysses group of one ring.
    """

    name: str
    axis: str | None
    ulysses_degree: int
    ring_degree: int
    index: int
    weights: tuple[float, ...]
    head_weights: tuple[float, ...]

    @property
    def ulysses_index(self) -> int:
        """This rank's place in the Ulysses group."""
        return self.index % self.ulysses_degree

    @property
    def ring_index(self) -> int:
        """This rank's place on the ring."""
        return self.index // self.ulysses_degree

    def shard(self, rows: int, *, used: int | None = None) -> Shard:
        """Divide ``rows`` of which ``used`` (all by default) are not padding."""
        return Shard(self, RowPartition.divide(rows, used=used, weights=self.weights))

    def heads(self, count: int) -> tuple[int, ...]:
        """Return how many of ``count`` heads each rank of the Ulysses group attends with."""
        return apportion(count, self.head_weights)


@dataclass(frozen=True)
class Shard:
    """The rows of one forward under a strategy."""

    strategy: Strategy
    rows: RowPartition

    @property
    def bounds(self) -> tuple[int, int]:
        """This rank's first row and the one after its last."""
        return self.rows.bounds(self.strategy.index)

    @property
    def valid(self) -> int:
        """How many of this rank's rows are used; the leading ones."""
        return self.rows.valid[self.strategy.index]

    @property
    def plain(self) -> bool:
        """Whether this is what the unwrapped model does: all rows here, no padding."""
        return self.strategy.axis is None and self.rows.used == self.rows.total

    @property
    def ulysses_rows(self) -> tuple[int, ...]:
        """Used rows of each rank of this rank's Ulysses group."""
        degree = self.strategy.ulysses_degree
        first = self.strategy.ring_index * degree
        return self.rows.valid[first : first + degree]

    @property
    def ring_blocks(self) -> tuple[int, ...]:
        """Used rows of each block on the ring: what each Ulysses group holds together."""
        degree, valid = self.strategy.ulysses_degree, self.rows.valid
        return tuple(sum(valid[first : first + degree]) for first in range(0, len(valid), degree))


def full_strategy(layout: Layout) -> str:
    """Return the name of the strategy that uses all ranks of ``layout``."""
    ulysses, ring = layout.ulysses_degree > 1, layout.ring_degree > 1
    return {(False, False): LOCAL, (True, False): ULYSSES, (False, True): RING, (True, True): BOTH}[ulysses, ring]


def build_strategy(name: str, mesh: Mesh, *, rank_weights: Sequence[float] | None = None) -> Strategy:
    """Return strategy ``name`` on ``mesh``.

    Args:
        rank_weights: how many rows each of the U*R ranks takes in proportion, in the order of their rows; alike by
            default.

    Raises:
        ValueError: there is no such strategy, or the layout has no ranks for it.
    """
    layout = mesh.layout
    if name not in _AXES:
        raise ValueError(f"there is no strategy {name!r}; use one of {', '.join(_AXES)}")
    ulysses = layout.ulysses_degree if name in (ULYSSES, BOTH) else 1
    ring = layout.ring_degree if name in (RING, BOTH) else 1
    if (name in (ULYSSES, BOTH) and ulysses == 1) or (name in (RING, BOTH) and ring == 1):
        raise ValueError(f"strategy {name!r} needs ranks on its axes; the layout is {layout}")
    weights = tuple(rank_weights or (1.0,) * layout.sequence_degree)
    assert len(weights) == layout.sequence_degree, weights
    u_span = range(layout.ulysses_degree) if ulysses > 1 else (layout.ulysses_index,)
    r_span = range(layout.ring_degree) if ring > 1 else (layout.ring_index,)
    u_index = layout.ulysses_index if ulysses > 1 else 0
    r_index = layout.ring_index if ring > 1 else 0
    return Strategy(
        name=name,
        axis=_AXES[name],
        ulysses_degree=ulysses,
        ring_degree=ring,
        index=r_index * ulysses + u_index,
        weights=tuple(weights[r * layout.ulysses_degree + u] for r in r_span for u in u_span),
        # One head split for all Ulysses groups, since a ring passes the blocks of one set of heads.
        head_weights=tuple(
            sum(weights[r * layout.ulysses_degree + u] for r in range(layout.ring_degree)) for u in u_span
        ),
    )
