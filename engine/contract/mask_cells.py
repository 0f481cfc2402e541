"""Masks on the latent's grid: 0 keeps, 1 regenerates, fractions blend (h3-facts "Latent masks").

A cell is 16 x 16 pixels of one latent frame; the model's row has 2 x 2 of them. `video_cells` and `audio_cells` say
what an edit's document means (``docs/mask-document.md`` has the formulae; ``web/mask_editor/cells.js`` computes the
same), `cells_of_video_mask` and `cells_of_audio_mask` what a mask that arrives as an array means. Cells are never
rounded; what the model is given is (`rows_of_cells`). Needs numpy, raises `RequestError`, holds no state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from . import geometry, mask_paint
from .errors import RequestError
from .mask_document import MaskDocument

Cells = npt.NDArray[np.float32]

CELL = 16
"""Pixels of a cell's side."""
PATCH = 2
"""Cells of a row's side."""
_ROUNDING = 1e-6
"""What a time may miss an edge of a latent by, in latents, and still end there."""


@dataclass(frozen=True)
class MaskReport:
    """What a mask does, in numbers for a person.

    Attributes:
        video_percent, audio_percent: rows of the stream whose mask is not 0, of 100.
        video_frames: pixel frames [first, end) that are touched, None when none is; whole tokens in time.
        video_seconds: the same in seconds.
        audio_latents: latents [first, end) of 25 ms that are touched in any channel, None when none is.
        audio_seconds: the same in seconds.
        warnings: sentences, for masks that change nothing or everything.
    """

    video_percent: float
    audio_percent: float
    video_frames: tuple[int, int] | None
    video_seconds: tuple[float, float] | None
    audio_latents: tuple[int, int] | None
    audio_seconds: tuple[float, float] | None
    warnings: tuple[str, ...]


def video_cells(
    document: MaskDocument,
    *,
    width: int,
    height: int,
    frames: int,
    rasters: Mapping[str, npt.NDArray[Any]] | None = None,
) -> Cells:
    """Return the picture's mask [T, H/16, W/16] of a document.

    Args:
        width, height: pixels, multiples of 16; another size than the document's canvas keeps the edit in fractions.
        frames: pixel frames on the lattice 17n+5.
        rasters: name of each raster layer's file → [h, w] or [n, h, w] (bool, uint8 of 255, or float of 1), of any
            size; n frames lie from the layer's start on, the last one is held.

    Raises:
        RequestError: ``bad_mask`` for a raster that is not in ``rasters`` or has another shape.
    """
    by_frame = mask_paint.paint(
        document, rows=height // CELL, columns=width // CELL, frames=frames, rasters=rasters or {}
    )
    starts = token_starts(frames)
    return np.stack([_maximum(by_frame[start:stop]) for start, stop in pairwise(starts)])


def audio_cells(document: MaskDocument, *, frames: int) -> Cells:
    """Return the sound's mask [2, A] of a document; each latent of 25 ms takes the maximum over its time."""
    lane, count = document.audio, geometry.audio_latents(frames)
    per_frame = geometry.AUDIO_LATENTS_PER_SECOND / geometry.FPS
    cells = np.empty((geometry.AUDIO_CHANNELS, count), np.float32)
    for channel in range(geometry.AUDIO_CHANNELS):
        runs = [run for run in lane.ranges if lane.linked or run.channel in (None, channel)]
        edges = sorted({0.0, float(frames), *(min(edge, frames) for run in runs for edge in (run.start, run.stop))})
        cells[channel] = 0
        for start, stop in pairwise(edges):
            covering = [run.value for run in runs if run.start <= start and stop <= run.stop]
            first = min(math.floor(start * per_frame + _ROUNDING), count - 1)
            end = count if stop == frames else max(math.ceil(stop * per_frame - _ROUNDING), first + 1)
            touched = cells[channel, first:end]
            np.maximum(touched, covering[-1] if covering else lane.base, out=touched)
    return cells


def token_starts(frames: int) -> list[int]:
    """Return the first pixel frame of each latent frame, and ``frames`` behind the last: T + 1 numbers."""
    return [geometry.frames_of_latents(token) for token in range(geometry.latent_frames(frames) + 1)]


def cells_of_video_mask(
    mask: npt.ArrayLike, *, width: int, height: int, frames: int, average: bool = False, path: str = "video_mask"
) -> tuple[Cells, tuple[str, ...]]:
    """Return a mask that arrived as an array on the grid [T, H/16, W/16], and warnings as sentences.

    Args:
        mask: a scalar; [T, H/32, W/32] or [T, H/16, W/16] on a latent grid; [H, W] or [F, H, W] in pixels. Axes of
            length 1 before these, and ComfyUI's [F, 1, H, W], are taken off. An exact match with a latent grid wins.
            Fewer frames hold the last one, more pixel frames are cut with a warning.
        width, height: pixels. frames: pixel frames on the lattice 17n+5.
        average: a cell takes the average of its 16 x 16 pixels, not the maximum.

    Raises:
        RequestError: ``bad_mask`` naming both canvases for another canvas, or for values that are not numbers.
    """
    values, warnings = _shares(mask, path=path)
    tokens, rows, columns = geometry.latent_frames(frames), height // CELL, width // CELL
    if values.ndim == 0:
        return np.full((tokens, rows, columns), values, np.float32), warnings
    values = _frames_first(values)
    if values.ndim == 3 and len(values) and len(values) <= tokens:
        for factor in (1, 2):
            if values.shape[1:] == (rows // factor, columns // factor):
                values = values.repeat(factor, 1).repeat(factor, 2)
                return np.concatenate([values, values[-1:].repeat(tokens - len(values), 0)]), warnings
    if values.ndim != 3 or not len(values) or values.shape[1:] != (height, width):
        raise RequestError(
            "bad_mask",
            f"The mask is {_in_words(np.shape(mask))}; the latent's canvas is {width}x{height} with {frames} frames.",
            field=path,
            value=_in_words(np.shape(mask)),
            remedy=f"Use a mask of {width}x{height} pixels, with 1 or {frames} frames, "
            f"or one of the latent: {tokens} x {rows} x {columns}.",
        )
    if len(values) > frames:
        warnings += (f"The mask has {len(values)} frames, the video {frames}: those after the last are left out.",)
    pooled = _pooled(values[:frames], average=average)
    pooled = np.concatenate([pooled, pooled[-1:].repeat(max(0, frames - len(pooled)), 0)])
    return np.maximum.reduceat(pooled, token_starts(frames)[:-1], axis=0), warnings


def cells_of_audio_mask(mask: npt.ArrayLike, *, frames: int, path: str = "audio_mask") -> Cells:
    """Return a mask that arrived as an array on the grid [2, A].

    Args:
        mask: a scalar, [A] or [2, A]; axes of length 1 before these are taken off.

    Raises:
        RequestError: ``bad_mask`` naming both lengths for another length, or for values that are not numbers.
    """
    values, _ = _shares(mask, path=path)
    shape = (geometry.AUDIO_CHANNELS, geometry.audio_latents(frames))
    while values.ndim > 2 and len(values) == 1:
        values = values[0]
    if values.ndim == 0 or values.shape in (shape, shape[1:], (1, shape[1])):
        return np.array(np.broadcast_to(values, shape))
    raise RequestError(
        "bad_mask",
        f"The mask of the sound is {_in_words(np.shape(mask))}; the sound of {frames} frames has {shape[1]} latents in "
        f"{shape[0]} channels.",
        field=path,
        value=_in_words(np.shape(mask)),
        remedy=f"Use one number, {shape[1]} numbers, or {shape[0]} x {shape[1]}.",
    )


def rows_of_cells(cells: npt.NDArray[Any]) -> Cells:
    """Return what the model is given: the maximum over a row's cells, rounded up to 1/256.

    Args:
        cells: of video [T, h, w] → [T, h/2, w/2]; of audio [2, A] → the same shape.
    """
    largest = (
        mask_paint.largest_of_tiles(np.asarray(cells, np.float32), PATCH)
        if cells.ndim == 3
        else np.asarray(cells, np.float32)
    )
    return np.asarray(np.ceil(largest * np.float32(256)) / np.float32(256))


def describe_masks(video: Cells | None, audio: Cells | None, *, frames: int) -> MaskReport:
    """Return what the masks do; None stands for no mask, everything regenerated.

    Args:
        video: [T, H/16, W/16]. audio: [2, A]. frames: pixel frames on the lattice 17n+5.
    """
    picture = np.ones((1, 1, 1), bool) if video is None else rows_of_cells(video) > 0
    sound = np.ones((1, 1), bool) if audio is None else audio > 0
    tokens = _extent(np.asarray(picture.any((1, 2))), geometry.latent_frames(frames))
    latents = _extent(np.asarray(sound.any(0)), geometry.audio_latents(frames))
    starts = token_starts(frames)
    video_frames = tokens and (starts[tokens[0]], starts[tokens[1]])
    per_second = geometry.AUDIO_LATENTS_PER_SECOND
    warnings: tuple[str, ...] = ()
    if not picture.any() and not sound.any():
        warnings = ("0% of rows will change: nothing is regenerated, the result is the source.",)
    elif min(float(1 if cells is None else cells.min()) for cells in (video, audio)) >= 1:
        warnings = ("100% of rows will change: everything is regenerated, nothing of the source is kept.",)
    return MaskReport(
        video_percent=100 * float(picture.mean()),
        audio_percent=100 * float(sound.mean()),
        video_frames=video_frames,
        video_seconds=video_frames and (video_frames[0] / geometry.FPS, video_frames[1] / geometry.FPS),
        audio_latents=latents,
        audio_seconds=latents and (latents[0] / per_second, latents[1] / per_second),
        warnings=warnings,
    )


def _extent(touched: npt.NDArray[np.bool_], count: int) -> tuple[int, int] | None:
    """Return the numbers [first, end) of what is touched, None for nothing; a lone flag stands for all ``count``."""
    found = np.flatnonzero(touched if len(touched) > 1 else touched.repeat(count))
    return (int(found[0]), int(found[-1]) + 1) if len(found) else None


def _shares(mask: npt.ArrayLike, *, path: str) -> tuple[Cells, tuple[str, ...]]:
    """Return a mask's numbers, cut to 0..1, and a warning if that changed them by more than 1/256."""
    given = np.asarray(mask)
    numbers = given.dtype.kind in "fiub" and bool(np.isfinite(given).all())
    if not numbers or not given.size:
        raise RequestError(
            "bad_mask",
            "A mask holds numbers from 0 (keep) to 1 (regenerate).",
            field=path,
            value=f"{given.dtype} {_in_words(given.shape)}",
            remedy="Use a mask without NaN or infinite values.",
        )
    values = given.astype(np.float32)
    cut = np.clip(values, 0, 1)
    if abs(values - cut).max() <= 1 / 256:
        return cut, ()
    return cut, (f"The mask holds values from {values.min():g} to {values.max():g}; they were cut to 0 to 1.",)


def _frames_first(values: Cells) -> Cells:
    """Return [frames, rows, columns] of the shapes that masks come in; of others what is left of them."""
    if values.ndim == 4 and values.shape[1] == 1:
        return values[:, 0]
    while values.ndim > 3 and len(values) == 1:
        values = values[0]
    return values[None] if values.ndim == 2 else values


def _in_words(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "one number"


def _pooled(values: Cells, *, average: bool) -> Cells:
    """Return [n, H/16, W/16] of pixels [n, H, W]."""
    if not average:
        return mask_paint.largest_of_tiles(values, CELL)
    count, height, width = values.shape
    tiles = values.reshape(count, height // CELL, CELL, width // CELL, CELL)
    return np.asarray(tiles.mean((2, 4), dtype=np.float64), np.float32)


def _maximum(frames: Sequence[Cells]) -> Cells:
    """Return the maximum of some frames; those that are the same array are looked at once."""
    different = list({id(frame): frame for frame in frames}.values())
    return different[0] if len(different) == 1 else np.maximum.reduce(different)
