"""Pictures made small for the page. Knows nothing of ComfyUI; raises nothing."""

from __future__ import annotations

import io

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

SIDE = 640
"""Pixels of the longer side, at most."""
_QUALITY = 82


def jpeg(picture: Image.Image) -> bytes:
    """Return a picture as a JPEG of at most 640 pixels a side."""
    small = picture.convert("RGB")
    small.thumbnail((SIDE, SIDE), Image.Resampling.BILINEAR, reducing_gap=2.0)
    out = io.BytesIO()
    small.save(out, "JPEG", quality=_QUALITY)
    return out.getvalue()


def picture_of(image: torch.Tensor) -> Image.Image:
    """Return one frame of an IMAGE [H, W, C], or of a MASK [H, W], in 0..1."""
    data: npt.NDArray[np.uint8] = image.detach().float().clamp(0, 1).mul(255).round().to("cpu", torch.uint8).numpy()
    if data.ndim == 3:
        data = data[..., :3] if data.shape[2] >= 3 else data[..., 0]
    return Image.fromarray(data)


def pooled(masks: npt.NDArray[np.uint8], *, width: int, height: int) -> npt.NDArray[np.uint8]:
    """Return masks [n, h, w] on a grid [n, height, width]; each square takes the largest pixel under it.

    The squares are those of ``docs/mask-document.md``: floor(x0 w + 1e-6) up to ceil(x1 w - 1e-6), one pixel at least.
    """
    return _pooled_axis(_pooled_axis(masks, 1, height), 2, width)


def _pooled_axis(masks: npt.NDArray[np.uint8], axis: int, count: int) -> npt.NDArray[np.uint8]:
    size = masks.shape[axis]
    edges = np.arange(count + 1) * size / count
    starts = np.minimum(np.floor(edges[:-1] + 1e-6).astype(int), size - 1)
    ends = np.maximum(np.ceil(edges[1:] - 1e-6).astype(int), starts + 1)
    columns = [
        masks.take(range(start, end), axis).max(axis, keepdims=True) for start, end in zip(starts, ends, strict=True)
    ]
    return np.concatenate(columns, axis)
