"""Walking through a forward on paper: which tensors are alive at each operation, and how many bytes at most.

A closed form of a peak is a walk through the library's code: a tensor is held from the operation that makes it to the
one after which no name and no caller refers to it. Python's rules count: a caller's variable lives until it is bound
anew, so that a block's input is alive while the block runs, whatever the block does with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Walk:
    """What is alive, and the most that ever was, in bytes."""

    def __init__(self) -> None:
        self.live = 0
        self.peak = 0

    @contextmanager
    def holding(self, *tensors: int) -> Iterator[None]:
        """Have ``tensors`` alive inside the block."""
        self.live += sum(tensors)
        self.peak = max(self.peak, self.live)
        try:
            yield
        finally:
            self.live -= sum(tensors)

    def at_once(self, *tensors: int) -> None:
        """Have ``tensors`` alive together for one operation, its results included."""
        self.peak = max(self.peak, self.live + sum(tensors))
