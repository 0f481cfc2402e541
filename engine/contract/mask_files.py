"""Pictures as masks: how white a pixel must be to be made anew. Needs numpy; raises nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_LEVELS = 255
_SLACK = 8
"""Levels by which a lossy file may miss black and white: a mask that is 1/255 where it should be 0 changes things."""


def mask_levels(pixels: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return the mask of a picture, 0 keep to 255 make anew.

    Args:
        pixels: uint8, [H, W], or [H, W, C] of which the largest colour counts.
    """
    grey = pixels.max(2) if pixels.ndim == 3 else pixels
    levels = np.where(grey <= _SLACK, 0, np.where(grey >= _LEVELS - _SLACK, _LEVELS, grey))
    return np.asarray(levels, np.uint8)
