"""Masks of a graph on a latent's grid, and back to pixels: LATENT with ``noise_mask``, MASK, a picture of both.

A mask is 0 where the source is kept and 1 where it is made anew. `StreamMasks` holds it in cells: 16 x 16 pixels of one
latent frame, and 25 ms of one channel. A LATENT carries video [1, 1, T, H/16, W/16] and audio [1, 1, 2, A], nested; a
mask that is not nested is of the picture, and all of the sound is made anew, as in ComfyUI. Knows nothing of ComfyUI's
modules. Raises `RequestError` naming the node's input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageSequence, UnidentifiedImageError

from ..engine.contract import mask_cells
from ..engine.contract.errors import RequestError
from ..engine.contract.mask_document import MaskDocument, check_document_fits
from ..engine.contract.mask_files import mask_levels
from .convert import latent_streams, whole_frames
from .kept import clock_order

CONNECTED = "@mask"
"""What a raster layer calls the MASK that is connected to its node; any other name is an uploaded file's."""
_PREVIEW_SIDE = 384
_PREVIEW_COLOUR = (1.0, 0.25, 0.1)
_PREVIEW_STRENGTH = 0.6
_UNPAINTED = 0.18
"""Grey of a preview without pictures."""


@dataclass(frozen=True)
class Shot:
    """The size of a latent: pixels, and pixel frames 17n+5."""

    width: int
    height: int
    frames: int

    @classmethod
    def of(cls, latent: Mapping[str, Any]) -> Shot:
        """Return the size of a LATENT."""
        video, _ = latent_streams(latent)
        height, width = (side * mask_cells.CELL for side in video.shape[3:])
        return cls(width, height, whole_frames(video))


@dataclass(frozen=True)
class StreamMasks:
    """Masks of both streams.

    Attributes:
        video: [T, H/16, W/16] float32. audio: [2, A] float32.
        warnings: sentences about how they came to be.
    """

    video: npt.NDArray[np.float32]
    audio: npt.NDArray[np.float32]
    warnings: tuple[str, ...] = ()

    def report(self, shot: Shot) -> mask_cells.MaskReport:
        """Return what they do, in numbers."""
        return mask_cells.describe_masks(self.video, self.audio, frames=shot.frames)

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return them as a LATENT and the wire carry them: [1, 1, T, H/16, W/16] and [1, 1, 2, A]."""
        return torch.from_numpy(self.video)[None, None], torch.from_numpy(self.audio)[None, None]

    def joined(self, other: StreamMasks) -> StreamMasks:
        """Return masks that make anew what either does."""
        video, audio = np.maximum(self.video, other.video), np.maximum(self.audio, other.audio)
        return StreamMasks(video, audio, self.warnings + other.warnings)


def masks_of_document(
    document: MaskDocument, shot: Shot, rasters: Mapping[str, npt.NDArray[Any]], *, path: str
) -> StreamMasks:
    """Return what an edit's document means on ``shot``.

    Raises:
        RequestError: ``bad_mask`` when it was painted on another shot, or for a raster.
    """
    size = {"width": shot.width, "height": shot.height, "frames": shot.frames}
    check_document_fits(document, **size, path=path)
    video = mask_cells.video_cells(document, **size, rasters=rasters)
    return StreamMasks(video, mask_cells.audio_cells(document, frames=shot.frames))


def masks_of_arrays(video: Any, audio: Any, shot: Shot, *, average: bool = False, path: str) -> StreamMasks:
    """Return masks that arrive as numbers or tensors, of any shape that the contract takes; None: all made anew."""
    arrays = [1.0 if mask is None else _array(mask) for mask in (video, audio)]
    cells, warnings = mask_cells.cells_of_video_mask(
        arrays[0], width=shot.width, height=shot.height, frames=shot.frames, average=average, path=path
    )
    return StreamMasks(cells, mask_cells.cells_of_audio_mask(arrays[1], frames=shot.frames, path=path), warnings)


def masks_of_latent(latent: Mapping[str, Any], shot: Shot, *, path: str = "latent") -> StreamMasks | None:
    """Return the masks that a LATENT carries, None of one without.

    Raises:
        RequestError: ``bad_mask`` naming both canvases or lengths.
    """
    mask = latent.get("noise_mask")
    if mask is None:
        return None
    streams = list(mask.unbind()) if getattr(mask, "is_nested", False) else [mask]
    found = masks_of_arrays(streams[0], streams[1] if len(streams) > 1 else None, shot, path=path)
    if len(streams) > 1:
        return found
    note = "The latent's mask is of the picture alone: all of the sound is made anew."
    return StreamMasks(found.video, found.audio, (*found.warnings, note))


def to_pixels(video: npt.NDArray[np.float32], frames: int) -> torch.Tensor:
    """Return cells [T, h, w] as MASK: [F, 16h, 16w], what is really made anew.

    Only what is not 0 is written, and so takes memory: an allocation of zeros is no memory yet.
    """
    side = mask_cells.CELL
    pixels = np.zeros((frames, video.shape[1] * side, video.shape[2] * side), np.float32)
    starts = mask_cells.token_starts(frames)
    for token, cells in enumerate(video):
        down, across = touched_cells(cells)
        part = cells[down, across].repeat(side, axis=0).repeat(side, axis=1)
        pixels[starts[token] : starts[token + 1], in_pixels(down), in_pixels(across)] = part
    return torch.from_numpy(pixels)


def touched_cells(cells: npt.NDArray[np.float32]) -> tuple[slice, slice]:
    """Return the box of cells [h, w], rows and columns, outside of which all are 0; an empty one where all are."""
    rows, columns = (np.flatnonzero(cells.any(axis=axis)) for axis in (1, 0))
    if not rows.size:
        return slice(0, 0), slice(0, 0)
    return slice(int(rows[0]), int(rows[-1]) + 1), slice(int(columns[0]), int(columns[-1]) + 1)


def in_pixels(cells: slice) -> slice:
    """Return the pixels of a run of cells."""
    return slice(cells.start * mask_cells.CELL, cells.stop * mask_cells.CELL)


def token_of_frames(frames: int) -> npt.NDArray[np.int64]:
    """Return the latent frame of each pixel frame."""
    starts = mask_cells.token_starts(frames)
    return np.repeat(np.arange(len(starts) - 1), np.diff(starts))


def preview(video: npt.NDArray[np.float32], shot: Shot, images: torch.Tensor | None, *, fps: float) -> torch.Tensor:
    """Return small pictures of the shot with what is made anew tinted: IMAGE [F, h, w, 3], at most 384 a side.

    Args:
        video: cells [T, H/16, W/16]. images: IMAGE of the source at ``fps``; None: the tint on grey.
    """
    scale = min(1.0, _PREVIEW_SIDE / max(shot.width, shot.height))
    width, height = max(1, round(shot.width * scale)), max(1, round(shot.height * scale))
    order = None if images is None else clock_order(len(images), fps=fps, frames=shot.frames)
    colour = torch.tensor(_PREVIEW_COLOUR)
    made = torch.full((shot.frames, height, width, 3), _UNPAINTED)
    rows = torch.arange(height) * video.shape[1] // height
    columns = torch.arange(width) * video.shape[2] // width
    small: dict[int, torch.Tensor] = {}
    for frame, token in enumerate(token_of_frames(shot.frames).tolist()):
        if images is not None and order is not None:
            number = order[frame]
            if number not in small:
                small = {number: _resized(images[number], width, height)}
            made[frame] = small[number]
        tint = torch.from_numpy(video[token])[rows][:, columns, None] * _PREVIEW_STRENGTH
        made[frame] = torch.lerp(made[frame], colour, tint)
    return made


def _resized(picture: torch.Tensor, width: int, height: int) -> torch.Tensor:
    planes = picture[..., :3].float().cpu().movedim(2, 0)[None]
    return torch.nn.functional.interpolate(planes, (height, width), mode="area")[0].movedim(0, 2)


def raster_of_file(file: Path, *, frames: int, field: str) -> npt.NDArray[np.uint8]:
    """Return the pictures of a file as a mask [n, h, w]: white is made anew; an animation or a clip has several.

    Args:
        frames: as many are read at most.

    Raises:
        RequestError: ``bad_mask`` when it holds no picture.
    """
    try:
        found = _frames_of_picture(file, frames)
    except UnidentifiedImageError:
        try:
            found = _frames_of_clip(file, frames)
        except (av.error.FFmpegError, OSError, IndexError):
            found = []
    except (OSError, Image.DecompressionBombError):
        found = []
    if found and all(picture.shape == found[0].shape for picture in found):
        return np.stack(found)
    raise RequestError(
        "bad_mask",
        "The file of a layer holds no picture.",
        field=field,
        value=file.name,
        remedy="Use a picture or a clip: black keeps, white regenerates.",
    )


def _frames_of_picture(file: Path, most: int) -> Sequence[npt.NDArray[np.uint8]]:
    with Image.open(file) as picture:
        pages = zip(range(most), ImageSequence.Iterator(picture), strict=False)
        return [mask_levels(np.asarray(page.convert("RGB"))) for _, page in pages]


def _frames_of_clip(file: Path, most: int) -> Sequence[npt.NDArray[np.uint8]]:
    with av.open(str(file)) as clip:
        pages = zip(range(most), clip.decode(video=0), strict=False)
        return [mask_levels(page.to_ndarray(format="rgb24")) for _, page in pages]


def _array(mask: Any) -> npt.ArrayLike:
    if isinstance(mask, torch.Tensor):
        return mask.detach().cpu().float().numpy()
    return float(mask)
