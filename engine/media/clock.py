"""Clips on the model's clock: 24 pictures a second, by holding and dropping whole pictures.

A picture starts at the slot nearest to its time and is held until the next one's. At a constant rate this is the
arithmetic of diffusers' reference pipeline on the picture's index, slot i = floor(i * 24 / rate + 0.5), bit for bit; a
picture that is off that grid by more than its container's clock can say is placed by its own time stamp.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..contract import geometry

Pixels = npt.NDArray[np.uint8]
"""One picture [H, W, 3]."""


@dataclass(frozen=True)
class Picture:
    """One picture of a clip.

    Attributes:
        pixels: makes its pixels [H, W, 3] uint8 RGB; not called for pictures that are dropped.
        start: seconds from the clip's first picture; None: the clip's rate says.
        seconds: how long it is shown; 0: not known.
    """

    pixels: Callable[[], Pixels]
    start: float | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Clip:
    """Pictures in the order they are shown.

    Attributes:
        pictures: read once, while the file is read.
        rate: pictures a second, the mean if it varies.
        tick: resolution of their time stamps, seconds.
        promised: seconds that the file claims to last; None: it does not say.
    """

    pictures: Iterator[Picture]
    rate: float = float(geometry.FPS)
    tick: float = 0.0
    promised: float | None = None


def held_pictures(clip: Clip) -> Iterator[tuple[Picture, int]]:
    """Yield each picture with the number of slots at 24 fps that it is held for, which may be 0."""
    scale = geometry.FPS / clip.rate
    tolerance = min(clip.tick, 0.25 / clip.rate) + 1e-6
    held: Picture | None = None
    slot = index = 0
    gap = 1 / clip.rate
    for index, picture in enumerate(clip.pictures):
        begins = max(slot, _slot(picture.start, index, scale=scale, rate=clip.rate, tolerance=tolerance))
        if held is not None:
            yield held, begins - slot
            if picture.start is not None and held.start is not None:
                gap = max(0.0, picture.start - held.start)
        held, slot = picture, begins
    if held is not None:
        # The end is where a picture after the last one would start.
        end = None if held.start is None else held.start + (held.seconds or gap)
        yield held, max(0, _slot(end, index + 1, scale=scale, rate=clip.rate, tolerance=tolerance) - slot)


def _slot(start: float | None, index: int, *, scale: float, rate: float, tolerance: float) -> int:
    if start is None or abs(start - index / rate) <= tolerance:
        return math.floor(index * scale + 0.5)
    return math.floor(start * geometry.FPS + 0.5)
