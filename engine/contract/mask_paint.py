"""Painting a mask document's layers and ranges: the mask of each pixel frame, before time is pooled.

Frames that look alike are painted once, and only where layers act. Raises `RequestError` for a raster that is not
there; holds no state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from . import mask_shapes
from .errors import RequestError
from .mask_document import Layer, MaskDocument
from .mask_shapes import SAMPLES, Grid, Values, Window

Rasters = Mapping[str, npt.NDArray[Any]]
_SAMPLES_AT_ONCE = 1 << 22


def paint(document: MaskDocument, *, rows: int, columns: int, frames: int, rasters: Rasters) -> list[Values]:
    """Return the mask [rows, columns] of each pixel frame; frames that look alike share one array.

    Args:
        rows, columns: cells. rasters: file → [h, w] or [n, h, w].

    Raises:
        RequestError: ``bad_mask``.
    """
    _check_rasters(document, rasters)
    layers = [layer for layer in document.layers if layer.enabled and layer.strength]
    looks: dict[tuple[object, ...], int] = {}
    looks_like = [
        looks.setdefault(tuple(_look(layer, frame, rasters) for layer in layers), len(looks)) for frame in range(frames)
    ]
    painted = np.full((len(looks), rows, columns), document.video.base, np.float32)
    if document.canvas is not None and layers:
        grid = Grid(document.canvas, columns * SAMPLES, rows * SAMPLES)
        first_frames = [looks_like.index(look) for look in range(len(looks))]
        block = max(1, _SAMPLES_AT_ONCE // (grid.rows * grid.columns))
        for start in range(0, len(looks), block):
            part = first_frames[start : start + block]
            drawn = [_Drawn(layer, part, grid, feather=document.feather, rasters=rasters) for layer in layers]
            _combine(painted[start : start + block], [layer for layer in drawn if 0 not in layer.values.shape])
    by_frame = [painted[look] for look in looks_like]
    for run in document.video.ranges:
        flat = np.full((rows, columns), run.value, np.float32)
        for frame in range(int(run.start), min(int(run.stop), frames)):
            by_frame[frame] = flat
    return by_frame


class _Drawn:
    """A layer's values at those of some frames in which it acts.

    Attributes:
        acting: numbers of those frames. window: where ``values`` [acting, rows, columns] lie on the grid.
    """

    def __init__(self, layer: Layer, frames: Sequence[int], grid: Grid, *, feather: float, rasters: Rasters) -> None:
        self.erases = layer.mode == "erase"
        self.acting = [i for i, frame in enumerate(frames) if layer.start <= frame < layer.stop]
        own = [frames[i] for i in self.acting]
        if not own:
            self.window, self.values = Window(0, 0, 0, 0), np.zeros((0, 0, 0), np.float32)
        elif layer.kind == "raster":
            self.window = Window(0, grid.rows, 0, grid.columns)
            self.values = _raster_values(layer, own, grid, rasters[layer.file])
        else:
            self.window, self.values = mask_shapes.values(layer, own, grid, feather=feather)


def _raster_values(layer: Layer, frames: Sequence[int], grid: Grid, raster: npt.NDArray[Any]) -> Values:
    found = [
        mask_shapes.raster_values(raster[_shown(layer, frame, raster)] if raster.ndim == 3 else raster, move, grid)
        for frame, move in zip(frames, mask_shapes.moves(layer, frames), strict=True)
    ]
    return np.stack(found) * np.float32(layer.strength)


def _combine(painted: Values, drawn: Sequence[_Drawn]) -> None:
    """Combine layers in order over ``painted`` [n, rows, columns], at the samples; a cell takes their maximum."""
    if not drawn:
        return
    tops, bottoms, lefts, rights = zip(*(layer.window.sides for layer in drawn), strict=True)
    top, bottom = min(tops) // SAMPLES, -(-max(bottoms) // SAMPLES)
    left, right = min(lefts) // SAMPLES, -(-max(rights) // SAMPLES)
    cells = painted[:, top:bottom, left:right]
    samples = cells.repeat(SAMPLES, 1).repeat(SAMPLES, 2)
    for layer in drawn:
        rows = slice(layer.window.top - top * SAMPLES, layer.window.bottom - top * SAMPLES)
        columns = slice(layer.window.left - left * SAMPLES, layer.window.right - left * SAMPLES)
        acting = slice(None) if len(layer.acting) == len(samples) else layer.acting
        below = samples[acting, rows, columns]
        above = below * (1 - layer.values) if layer.erases else np.maximum(below, layer.values)
        samples[acting, rows, columns] = above
    cells[:] = largest_of_tiles(samples, SAMPLES)


def largest_of_tiles(values: Values, side: int) -> Values:
    """Return the maximum of each tile of ``side`` x ``side`` of the last two axes of [n, rows, columns]."""
    count, rows, columns = values.shape
    tall = values.reshape(count, rows // side, side, columns).max(2)
    return np.asarray(tall.reshape(count, rows // side, columns // side, side).max(3))


def _look(layer: Layer, frame: int, rasters: Rasters) -> object:
    """Return something that is equal for frames in which a layer looks the same; None where it does not act."""
    if not layer.start <= frame < layer.stop:
        return None
    return *mask_shapes.keys_at(layer, frame), _shown(layer, frame, rasters.get(layer.file))


def _shown(layer: Layer, frame: int, raster: npt.NDArray[Any] | None) -> int:
    """Return which frame of its file a raster layer shows."""
    return min(frame - layer.start, len(raster) - 1) if raster is not None and raster.ndim == 3 else 0


def _check_rasters(document: MaskDocument, rasters: Rasters) -> None:
    for i, layer in enumerate(document.layers):
        if layer.kind != "raster" or not layer.enabled:
            continue
        raster = rasters.get(layer.file)
        if raster is None or raster.ndim not in (2, 3) or 0 in raster.shape or raster.dtype.kind not in "fub":
            raise RequestError(
                "bad_mask",
                f"The layer {layer.name or layer.id!r} paints with a file that is missing or no mask.",
                field=f"mask_document.layers[{i}].file",
                value=layer.file,
                remedy="Upload the file again, or remove the layer.",
            )
