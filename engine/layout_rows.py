"""Which rows of the packed sequence each rank holds.

A sequence has P rows, of which the first S are used (P > S when a length is pinned: the rest is padding). Each of the n
ranks that share it holds a run of rows, in their order: as many as its weight asks for, one more or less for the
remainder, none if there are too few. Promise: the runs cover the P rows once and depend on P, not on S, so that a
pinned length means the same shapes for every prompt. Pure arithmetic; raises nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate


def apportion(total: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Divide ``total`` things in proportion to positive ``weights``; the largest remainders get the odd ones.

    Equal weights give equal parts, the first ``total % n`` of them larger by one.
    """
    # By the largest, so that the sum of finite weights is finite.
    largest = max(weights)
    shares = [weight / largest for weight in weights]
    whole = sum(shares)
    # Rounded, so that equal weights such as 0.1 have equal remainders.
    exact = [round(total * share / whole, 9) for share in shares]
    parts = [int(number) for number in exact]
    by_remainder = sorted(range(len(parts)), key=lambda i: (parts[i] - exact[i], i))
    for i in by_remainder[: total - sum(parts)]:
        parts[i] += 1
    return tuple(parts)


@dataclass(frozen=True)
class RowPartition:
    """The rows of one packed sequence over the ranks that share it.

    Attributes:
        counts: rows of each rank, padding included; their sum is P.
        used: S, rows that are not padding, the leading ones.
    """

    counts: tuple[int, ...]
    used: int

    @classmethod
    def divide(cls, rows: int, *, used: int | None = None, weights: Sequence[float] = (1.0,)) -> RowPartition:
        """Divide ``rows`` (P) over ``len(weights)`` ranks; ``used`` rows (S, all by default) are not padding."""
        used = rows if used is None else used
        assert 0 <= used <= rows, (used, rows)
        return cls(apportion(rows, weights), used)

    @property
    def total(self) -> int:
        """P, all rows."""
        return sum(self.counts)

    @property
    def starts(self) -> tuple[int, ...]:
        """The first row of each rank."""
        return (0, *accumulate(self.counts[:-1]))

    @property
    def valid(self) -> tuple[int, ...]:
        """Used rows of each rank, the leading ones of its run; their sum is S."""
        return tuple(
            min(max(self.used - start, 0), count) for start, count in zip(self.starts, self.counts, strict=True)
        )

    def bounds(self, index: int) -> tuple[int, int]:
        """Return the first row of rank ``index`` and the one after its last."""
        start = self.starts[index]
        return start, start + self.counts[index]
