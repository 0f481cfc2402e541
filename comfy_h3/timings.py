"""How long the last sampling of a size took, for an estimate of the next; lost with the process. Raises nothing."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

_MOST = 64
_last: OrderedDict[tuple[int, int, int], Sampling] = OrderedDict()


@dataclass(frozen=True)
class Sampling:
    """One output of a run: its forwards, and the seconds that they took."""

    steps: int
    seconds: float


def remember(size: tuple[int, int, int], *, steps: int, seconds: float) -> None:
    """Note a run of ``size``: width, height, pixel frames."""
    _last[size] = Sampling(steps, seconds)
    _last.move_to_end(size)
    while len(_last) > _MOST:
        _last.popitem(last=False)


def last_of(size: tuple[int, int, int]) -> Sampling | None:
    """Return the last run of ``size``: width, height, pixel frames; None before the first one."""
    return _last.get(size)
