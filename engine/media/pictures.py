"""Pictures, animations and clips as RGB: of image files, of video files, and of decoded frames.

Promise: upright (a camera's orientation, a stream's rotation in quarter turns, as diffusers turns it), 8 bits a
channel. Transparent pixels show the colour that is stored under them, as in diffusers and ComfyUI; the caller is told.
Of 16 bits the upper eight count, of floating point 0..1. A clip is decoded picture by picture, as it is asked for.
Raises what PIL, PyAV and safetensors raise: use inside `media.files.reading`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.stream import Disposition
from PIL import Image, ImageOps
from safetensors import safe_open

from ..contract import geometry
from ..contract.media import Media
from ..contract.media_limits import MEDIA_LIMITS, check_pixels
from .clock import Clip, Picture, Pixels
from .files import bad_media, known, open_container, open_picture

_ANIMATED = ("GIF", "WEBP", "PNG", "AVIF")
_UNTIMED_SECONDS = 0.1
"""How long players show an animation's picture that names no duration."""


def open_clip(media: Media, path: Path, *, field: str, on_alpha: Callable[[], None]) -> Clip:
    """Return the pictures of a part, of an image file one.

    Args:
        path: of the part. field: named in errors. on_alpha: called for a picture with transparent pixels.

    Raises:
        RequestError: ``bad_media`` when there are no pictures in it.
    """
    if media.format == "frames":
        return Clip(_stored(path), rate=media.fps or float(geometry.FPS))
    image = open_picture(path, field=field)
    if image is None:
        return _video_clip(path, field=field)
    if image.format in _ANIMATED and getattr(image, "n_frames", 1) > 1:
        return Clip(_animation(image, on_alpha))
    return Clip(iter([Picture(lambda: rgb_pixels(image, on_alpha))]))


def first_picture(clip: Clip, *, field: str) -> Pixels:
    """Return the first picture of a clip, whose others are left to be asked for.

    Raises:
        RequestError: ``bad_media`` when it has none.
    """
    picture = next(clip.pictures, None)
    if picture is None:
        raise bad_media("There is no picture in it.", field=field)
    return picture.pixels()


def rgb_pixels(image: Image.Image, on_alpha: Callable[[], None]) -> Pixels:
    """Return a picture as [H, W, 3] uint8, turned as its camera was held."""
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):
        upper = np.clip(np.asarray(image).astype(np.int64) >> 8, 0, 255).astype(np.uint8)
        return np.repeat(upper[..., None], 3, axis=2)
    if image.mode == "F":
        level = np.clip(np.round(np.nan_to_num(np.asarray(image)) * 255), 0, 255).astype(np.uint8)
        return np.repeat(level[..., None], 3, axis=2)
    if image.has_transparency_data and _lowest_alpha(image) < 255:
        on_alpha()
    return np.asarray(image.convert("RGB"))


def _lowest_alpha(image: Image.Image) -> int:
    return int(np.asarray(image.convert("RGBA").getchannel("A")).min())


def _animation(image: Image.Image, on_alpha: Callable[[], None]) -> Iterator[Picture]:
    """Yield the pictures of an animation, decoded: PIL forgets one when it seeks the next."""
    start = 0.0
    for index in range(image.n_frames):  # type: ignore[attr-defined]
        image.seek(index)
        pixels = rgb_pixels(image, on_alpha)
        # Some formats tell a picture's duration only once it is decoded.
        seconds = float(image.info.get("duration") or 0) / 1000 or _UNTIMED_SECONDS
        yield Picture(lambda pixels=pixels: pixels, start, seconds)  # type: ignore[misc]
        start += seconds


def _stored(path: Path) -> Iterator[Picture]:
    with safe_open(str(path), framework="np") as file:
        frames = file.get_slice("frames")
        for index in range(frames.get_shape()[0]):
            yield Picture(lambda index=index: np.asarray(frames[index], dtype=np.uint8))  # type: ignore[misc]


def _video_clip(path: Path, *, field: str) -> Clip:
    with open_container(path) as container:
        stream = _video_stream(container, field=field)
        rate = stream.average_rate or stream.guessed_rate
        tick = float(stream.time_base or 0)
        promised = None if container.duration is None else container.duration / av.time_base
    return Clip(_decoded(path, field=field), rate=float(rate or geometry.FPS), tick=tick, promised=promised)


def _video_stream(container: Any, *, field: str) -> Any:
    """Return the first stream of moving pictures; a sound file's cover is none."""
    for stream in container.streams.video:
        if not stream.disposition & Disposition.attached_pic:
            check_pixels(known(stream).codec_context.width, stream.codec_context.height, field=field)
            return stream
    raise bad_media("There are no pictures in it.", field=field)


def _decoded(path: Path, *, field: str) -> Iterator[Picture]:
    first: float | None = None
    with open_container(path) as container:
        stream = _video_stream(container, field=field)
        stream.thread_type = "AUTO"
        stream.codec_context.options = {"max_pixels": str(MEDIA_LIMITS.pixels)}
        for packet in container.demux(stream):
            if packet.is_corrupt:
                raise bad_media("The file is damaged or was cut off.", field=field)
            for frame in packet.decode():
                start = None if frame.pts is None else float(frame.pts * frame.time_base)
                first = start if first is None else first
                since = None if start is None or first is None else start - first
                seconds = float((frame.duration or 0) * frame.time_base)
                yield Picture(lambda frame=frame: _upright(frame), since, seconds)  # type: ignore[misc]


def _upright(frame: Any) -> Pixels:
    """Return a decoded frame [H, W, 3] with its stream's counterclockwise rotation undone."""
    pixels: Pixels = frame.to_ndarray(format="rgb24")
    turns = round(frame.rotation / 90) % 4
    return np.rot90(pixels, k=-turns) if turns else pixels
