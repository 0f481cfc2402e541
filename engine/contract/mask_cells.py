"""Masks on the latent's grid: 0 keeps, 1 regenerates, fractions blend (h3-facts "Latent masks").

A cell is 16 x 16 pixels of one latent frame; the model's row has 2 x 2 of them. `video_cells` and `audio_cells` say what an
edit's document means (``docs/mask-document.md`` has the formulae; ``web/mask_editor/cells.js`` computes the same),
`cells_of_video_mask` and `cells_of_audio_mask` what a mask that arrives as an array means. Cells are never rounded; what
the model is given is (`rows_of_cells`). Needs numpy, raises `RequestError`, holds no state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .mask_document import MaskDocument

Cells = npt.NDArray[np.float32]

CELL = 16
"""Pixels of a cell's side."""


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
        width, height: pixels, multiples of 16; another size than the document's canvas keeps the edit in fractions of it.
        frames: pixel frames on the lattice 17n+5.
        rasters: name of each raster layer's file → [h, w] or [n, h, w] (bool, uint8 of 255, or float of 1), of any size;
            n frames lie from the layer's start on, the last one is held.

    Raises:
        RequestError: ``bad_mask`` for a raster that is not in ``rasters`` or has another shape.
    """
    raise NotImplementedError


def audio_cells(document: MaskDocument, *, frames: int) -> Cells:
    """Return the sound's mask [2, A] of a document; each latent of 25 ms takes the maximum over its time."""
    raise NotImplementedError


def cells_of_video_mask(
    mask: npt.ArrayLike, *, width: int, height: int, frames: int, average: bool = False, path: str = "video_mask"
) -> tuple[Cells, tuple[str, ...]]:
    """Return a mask that arrived as an array on the grid [T, H/16, W/16], and warnings as sentences.

    Args:
        mask: a scalar; [T, H/32, W/32] or [T, H/16, W/16] on a latent grid; [H, W] or [F, H, W] in pixels. Axes of length 1
            before these, and ComfyUI's [F, 1, H, W], are taken off. An exact match with a latent grid wins. Fewer frames
            hold the last one, more pixel frames are cut with a warning.
        width, height: pixels. frames: pixel frames on the lattice 17n+5.
        average: a cell takes the average of its 16 x 16 pixels, not the maximum.

    Raises:
        RequestError: ``bad_mask`` naming both canvases for another canvas, or for values that are not numbers.
    """
    raise NotImplementedError


def cells_of_audio_mask(mask: npt.ArrayLike, *, frames: int, path: str = "audio_mask") -> Cells:
    """Return a mask that arrived as an array on the grid [2, A].

    Args:
        mask: a scalar, [A] or [2, A]; axes of length 1 before these are taken off.

    Raises:
        RequestError: ``bad_mask`` naming both lengths for another length, or for values that are not numbers.
    """
    raise NotImplementedError


def rows_of_cells(cells: npt.NDArray[Any]) -> Cells:
    """Return what the model is given: of video [T, h, w] the maximum over 2 x 2 cells, [T, h/2, w/2]; of audio [2, A] the same
    shape; both rounded up to 1/256.
    """
    raise NotImplementedError


def describe_masks(video: Cells | None, audio: Cells | None, *, frames: int) -> MaskReport:
    """Return what the masks do; None stands for no mask, everything regenerated.

    Args:
        video: [T, H/16, W/16]. audio: [2, A]. frames: pixel frames on the lattice 17n+5.
    """
    raise NotImplementedError
