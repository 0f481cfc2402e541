"""Pictures onto a canvas, with diffusers' arithmetic and PIL's LANCZOS filter.

Pictures are [H, W, 3] uint8; one that has the size already is returned untouched. Raises `RequestError` ``media_limit``
for a picture so narrow that it would be huge before it is cropped.
"""

from __future__ import annotations

import numpy as np
from PIL import Image

from ..contract.media_limits import check_pixels
from .clock import Pixels


def stretch(pixels: Pixels, width: int, height: int) -> Pixels:
    """Return the picture at ``width`` x ``height``, each axis scaled on its own."""
    if pixels.shape[:2] == (height, width):
        return pixels
    return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.LANCZOS))


def cover_crop(pixels: Pixels, width: int, height: int, *, field: str) -> Pixels:
    """Return the picture scaled until it covers ``width`` x ``height``, and what is in the middle of that.

    Args:
        field: named in errors.
    """
    own_height, own_width = pixels.shape[:2]
    scale = max(width / own_width, height / own_height)
    covering = max(width, round(own_width * scale)), max(height, round(own_height * scale))
    check_pixels(*covering, field=field)
    left, top = (covering[0] - width) // 2, (covering[1] - height) // 2
    return stretch(pixels, *covering)[top : top + height, left : left + width]
