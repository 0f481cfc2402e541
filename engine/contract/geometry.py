"""Time and space of MiniMax-H3: frames, latents, canvases.

Pure arithmetic on released constants. Frame counts live on the lattice 17n+5 at 24 frames a second; a latent frame
covers 1, 4, 4, 4, 4 pixel frames in turn; the soundtrack has 40 latents a second of 800 samples at 32 kHz.
Raises `RequestError` for what the model cannot make; ``path`` (``request.``) goes before the field's name in it.
"""

from __future__ import annotations

import math

from .errors import RequestError
from .media import ReferenceSize

FPS = 24
FRAMES_PER_CHUNK = 17
LATENTS_PER_CHUNK = 5
MIN_FRAMES = 5
TRAINED_MIN_FRAMES = 107
TRAINED_MAX_FRAMES = 362
AUDIO_LATENTS_PER_SECOND = 40
SAMPLES_PER_AUDIO_LATENT = 800
SAMPLE_RATE = 32_000
AUDIO_CHANNELS = 2
TRAINED_TILE = 256
"""Side of the tiles in which the VAE was trained, pixels; another one changes the picture."""
TRAINED_TILE_OVERLAP = 64
"""Their least overlap, pixels."""
MAX_SECONDS = 1e9
"""Far above every operator's limit, and small enough for exact arithmetic."""
FRAMES_PER_LATENT = (1, 4, 4, 4, 4)
"""Pixel frames covered by latent frames 0..4 of each chunk."""


def snap_frames(frames: int, *, path: str = "") -> int:
    """Return the smallest frame count >= ``frames`` on the lattice 17n+5.

    Raises:
        RequestError: ``out_of_range`` below 5 frames.
    """
    if frames < MIN_FRAMES:
        raise RequestError(
            "out_of_range",
            f"A video has at least {MIN_FRAMES} frames.",
            field=f"{path}frames",
            value=frames,
            remedy=f"Ask for {MIN_FRAMES} frames ({MIN_FRAMES / FPS:.2f} s) or more.",
        )
    return frames + (MIN_FRAMES - frames) % FRAMES_PER_CHUNK


def frames_of_seconds(seconds: float, *, path: str = "") -> int:
    """Return the pixel frames (not yet snapped) nearest to ``seconds`` at 24 fps.

    Raises:
        RequestError: ``out_of_range`` when ``seconds`` is NaN, infinite, absurdly long, or comes to less than 5 frames.
    """
    if not 0 < seconds <= MAX_SECONDS:
        raise RequestError(
            "out_of_range",
            "No video lasts so long." if seconds > 0 else "The duration must be a positive number of seconds.",
            field=f"{path}seconds",
            value=seconds,
            remedy="Ask for 5 to 15 seconds.",
        )
    frames = round(seconds * FPS)
    if frames < MIN_FRAMES:
        raise RequestError(
            "out_of_range",
            f"A video lasts at least {MIN_FRAMES / FPS:.2f} s ({MIN_FRAMES} frames).",
            field=f"{path}seconds",
            value=seconds,
            remedy=f"Ask for {MIN_FRAMES / FPS:.2f} s or more; the model was trained on about 4 to 15 s.",
        )
    return frames


def floor_frames(frames: int) -> int:
    """Return the longest clip of at most ``frames`` that is encoded unpadded: 17k+5, below 5 frames one, of 0 none."""
    if frames < MIN_FRAMES:
        return min(frames, 1)
    return frames - (frames - MIN_FRAMES) % FRAMES_PER_CHUNK


def latent_frames(frames: int) -> int:
    """Return the video latent frames T = 5n+2 of a snapped frame count 17n+5."""
    assert frames % FRAMES_PER_CHUNK == MIN_FRAMES, frames
    return (frames - MIN_FRAMES) // FRAMES_PER_CHUNK * LATENTS_PER_CHUNK + 2


def frames_of_latents(latents: int) -> int:
    """Return the pixel frames that ``latents`` >= 1 video latent frames cover, read from the start of a chunk."""
    whole, rest = divmod(latents, LATENTS_PER_CHUNK)
    return whole * FRAMES_PER_CHUNK + sum(FRAMES_PER_LATENT[:rest])


def audio_latents(frames: int) -> int:
    """Return the audio latents per stereo channel for ``frames`` video frames: round(F / 24 * 40)."""
    return round(frames / FPS * AUDIO_LATENTS_PER_SECOND)


def latents_of_samples(samples: int) -> int:
    """Return the audio latents per channel of ``samples`` at the model's rate; the last one may be padded."""
    return -(-samples // SAMPLES_PER_AUDIO_LATENT)


def latents_of_pictures(count: int, height: int, width: int, *, ratio: int) -> tuple[int, int, int]:
    """Return latent frames, height and width of ``count`` >= 1 prepared pictures, of which a lattice's length is used.

    Args:
        ratio: pixels along the side of a latent cell.
    """
    used = floor_frames(count)
    return 1 if used == 1 else latent_frames(used), height // ratio, width // ratio


def check_canvas(
    width: int,
    height: int,
    *,
    multiple: int = 32,
    min_aspect: float = 0.25,
    max_aspect: float = 4.0,
    path: str = "",
) -> None:
    """Check that the model can make ``width`` x ``height`` pixels.

    Raises:
        RequestError: ``bad_canvas`` naming the nearest sizes, or ``bad_aspect``.
    """
    for field, value in (("width", width), ("height", height)):
        if value < multiple or value % multiple:
            low = max(multiple, value // multiple * multiple)
            sizes = str(low) if low >= value else f"{low} or {low + multiple}"
            raise RequestError(
                "bad_canvas",
                f"{field} must be a positive multiple of {multiple} pixels.",
                field=f"{path}{field}",
                value=value,
                remedy=f"Use {sizes}.",
            )
    ratio = width / height
    if not min_aspect <= ratio <= max_aspect:
        raise RequestError(
            "bad_aspect",
            f"The aspect ratio {width}:{height} is {ratio:.3f}; the model makes 1:4 to 4:1.",
            field=f"{path}width",
            value=width,
            remedy=f"With height {height}, use a width from {_up(height * min_aspect, multiple)} "
            f"to {int(height * max_aspect) // multiple * multiple}.",
        )


def _up(value: float, multiple: int) -> int:
    return math.ceil(value / multiple) * multiple


def default_canvas(
    aspect_width: float = 16, aspect_height: float = 9, *, short_edge: int, max_pixels: int, multiple: int
) -> tuple[int, int]:
    """Return (width, height): ``short_edge`` first, then the area cap, then both axes to the nearest multiple."""
    ratio = aspect_width / aspect_height
    width, height = (short_edge * ratio, short_edge) if ratio >= 1 else (short_edge, short_edge / ratio)
    if width * height > max_pixels:
        scale = math.sqrt(max_pixels / (width * height))
        width, height = width * scale, height * scale
    return _nearest(width, multiple), _nearest(height, multiple)


def reference_image_size(
    width: int,
    height: int,
    *,
    size: ReferenceSize,
    area: int,
    short_edge: int,
    multiple: int,
    max_side: int | None = None,
) -> tuple[int, int]:
    """Return (width, height) that a reference image is encoded at: scaled as `Reference.size` says, then rounded.

    Args:
        width, height: its own, pixels. area: of the output, pixels. short_edge: of `max` and `reference`, pixels.
        multiple: what both sides are rounded to. max_side: longest side of the result, pixels; longer ones shrink.
    """
    by_edge = short_edge / min(width, height)
    scales = {
        "native": 1.0,
        "match": min(1.0, math.sqrt(area / (width * height))),
        "max": min(1.0, by_edge),
        "reference": by_edge,
    }
    scale = scales[size]
    if max_side is not None:
        scale = min(scale, max_side // multiple * multiple / max(width, height))
    return _nearest(width * scale, multiple), _nearest(height * scale, multiple)


def reference_video_size(
    width: int, height: int, *, size: ReferenceSize, short_edge: int, max_pixels: int, multiple: int
) -> tuple[int, int]:
    """Return (width, height) of a reference video: the default canvas of its own aspect.

    Only `reference` enlarges: otherwise a clip that is smaller than that canvas keeps its size, rounded.
    """
    if size != "reference" and min(width, height) <= short_edge and width * height <= max_pixels:
        return _nearest(width, multiple), _nearest(height, multiple)
    return default_canvas(width, height, short_edge=short_edge, max_pixels=max_pixels, multiple=multiple)


def _nearest(value: float, multiple: int) -> int:
    return max(multiple, round(value / multiple) * multiple)
