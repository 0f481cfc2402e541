"""The masks of an edit, on the latent grid of the video that it becomes.

A picture or clip as a mask is a document's raster layer, and spans of sound are its ranges: `contract.mask_cells` says
what they mean, here as in the page's editor. Raises `RequestError` naming the field.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from ..contract import geometry, mask_cells
from ..contract.check_masks import MASK_TENSORS, MASKS
from ..contract.edits import SourceEdit
from ..contract.extend import Extension, plan_extension
from ..contract.mask_document import (
    AudioLane,
    Canvas,
    Layer,
    MaskDocument,
    Range,
    check_document_fits,
    parse_document,
)
from ..contract.mask_files import mask_levels
from ..contract.media import Media
from .clock import held_pictures
from .conditions import Canvas as Shot
from .files import bad_media, reading
from .job import MediaJob

_PATH = "request.edit"
_OF_PICTURE = "video_mask_media"
_ROUNDING = 1e-6


def prepare_masks(job: MediaJob, edit: SourceEdit, shot: Shot) -> tuple[int, int]:
    """Make the part ``masks``; return the pixel frames of the video, the source's and those that are added, and levels.

    The levels are the times that rows have besides their streams': what modulating them takes depends on it.

    Args:
        shot: of the source, as it was prepared.

    Raises:
        RequestError: ``bad_mask``, ``bad_media``, ``media_limit``, or ``out_of_range`` for an extension.
    """
    document = _document(edit, shot)
    size = {"width": shot.width, "height": shot.height, "frames": shot.frames}
    check_document_fits(document, **size, path=f"{_PATH}.document")
    video = mask_cells.video_cells(document, **size, rasters=_rasters(job, edit, shot))
    audio = mask_cells.audio_cells(document, frames=shot.frames)
    if edit.video_mask is not None:
        video = np.full_like(video, edit.video_mask)
    if edit.audio_mask is not None:
        audio = np.full_like(audio, edit.audio_mask)
    frames = shot.frames
    if edit.extends:
        plan = plan_extension(frames, own=shot.own, before=edit.before, after=edit.after, path=f"{_PATH}.")
        frames = plan.frames
        if edit.after and shot.own is not None and shot.own.frames < shot.frames:
            job.warn("media_held", _goes_on(plan, shot.own.frames))
        longer, sound = np.array(plan.video_mask, np.float32), np.array(plan.audio_mask, np.float32)
        longer = longer[:, None, None].repeat(video.shape[1], 1).repeat(video.shape[2], 2)
        sound = sound[None].repeat(geometry.AUDIO_CHANNELS, 0)
        longer[plan.kept_latents.start : plan.kept_latents.stop] = video[: len(plan.kept_latents)]
        sound[:, plan.kept_audio.start : plan.kept_audio.stop] = audio[:, : len(plan.kept_audio)]
        video, audio = longer, sound
    path = job.made[MASKS] = job.out / f"{MASKS}.safetensors"
    save_file({MASK_TENSORS["video"]: video[None, None], MASK_TENSORS["audio"]: audio[None, None]}, path)
    levels = [np.unique(mask_cells.rows_of_cells(cells)) for cells in (video, audio)]
    return frames, sum(int((level < 1).sum()) for level in levels)


def _goes_on(plan: Extension, own: int) -> str:
    kept = plan.kept_frames
    return (
        f"The source has {own} frames at 24 fps, and the model makes whole groups of them: frames {kept.start} to "
        f"{kept.stop - 1} of the video are the source's, what comes after begins with frame {kept.stop}."
    )


def _document(edit: SourceEdit, shot: Shot) -> MaskDocument:
    """Return what the edit says as a document."""
    if edit.document is not None:
        return parse_document(edit.document, path=f"{_PATH}.document")
    layers: tuple[Layer, ...] = ()
    if edit.video_mask_media is not None:
        layers = (Layer(id=_OF_PICTURE, kind="raster", file=_OF_PICTURE, start=0, stop=shot.frames),)
    ranges = tuple(
        Range(span.start * geometry.FPS, min(span.stop * geometry.FPS, shot.frames), 1.0)
        for span in edit.audio_spans
        if span.start * geometry.FPS < shot.frames
    )
    return MaskDocument(Canvas(shot.width, shot.height, shot.frames), layers, audio=AudioLane(ranges=ranges))


def _rasters(job: MediaJob, edit: SourceEdit, shot: Shot) -> dict[str, npt.NDArray[np.uint8]]:
    """Return the masks that come as files; the one without a document is on the clock and canvas of the source."""
    found = {}
    if edit.video_mask_media is not None:
        path = f"edit.{_OF_PICTURE}"
        found[_OF_PICTURE] = _stacked(_as_the_source(job, edit.video_mask_media, path, shot), path)
    for index, file in enumerate(edit.files):
        path = f"edit.files[{index}].media"
        found[file.name] = _stacked(_as_they_are(job, file.media, path, shot), path)
    return found


def _stacked(masks: Iterator[npt.NDArray[np.uint8]], path: str) -> npt.NDArray[np.uint8]:
    with reading(f"request.{path}"):
        found = list(masks)
        if not found:
            raise bad_media("There is no picture in it.", field=f"request.{path}")
        return np.stack(found)


def _as_the_source(job: MediaJob, media: Media, path: str, shot: Shot) -> Iterator[npt.NDArray[np.uint8]]:
    count = 0
    for picture, held in held_pictures(job.clip(media, path)):
        room = min(held, shot.frames - count)
        if room > 0:
            levels = _cropped(mask_levels(picture.pixels()), shot)
            yield from [levels] * room
            count += room
        if count >= shot.frames:
            return


def _cropped(mask: npt.NDArray[np.uint8], shot: Shot) -> npt.NDArray[np.uint8]:
    """Return what of a mask [h, w] lies on the canvas when it covers it, as the source does.

    It is not scaled: what is thin does not get lost, what is sharp not soft.
    """
    height, width = mask.shape
    scale = max(shot.width / width, shot.height / height)
    edges = []
    for own, wanted in ((height, shot.height / scale), (width, shot.width / scale)):
        first = (own - wanted) / 2
        edges.append(slice(math.floor(first + _ROUNDING), math.ceil(first + wanted - _ROUNDING)))
    return mask[edges[0], edges[1]]


def _as_they_are(job: MediaJob, media: Media, path: str, shot: Shot) -> Iterator[npt.NDArray[np.uint8]]:
    for _, picture in zip(range(shot.frames), job.clip(media, path).pictures, strict=False):
        yield mask_levels(picture.pixels())
