"""Small pictures and the waveform of a clip that lies in a file, for the page to paint on.

Frames are numbered at 24 a second, as the engine takes them: a picture begins at frame floor(24 t + 0.5) and is held
until the next. A request decodes from the key frame before it and keeps what it passes: playing decodes each
picture once. What is kept is bounded. Knows nothing of ComfyUI. Raises `UnreadableClip` for a file without a picture.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import av
import numpy as np
from PIL import Image

from ..engine.contract.geometry import FPS
from .thumbnails import SIDE, jpeg

_KEPT = 1024
_AHEAD = 24
"""Frames that are decoded beyond the one that is asked for."""
_MOST_FRAMES = 24 * 600
_PEAKS_PER_SECOND = 40
_PEAK_RATE = 8000
"""Hz at which the waveform is looked at."""

Stamp = tuple[Path, int]
"""A file and when it was written."""


class UnreadableClip(Exception):
    """The file holds no picture that can be decoded."""


@dataclass(frozen=True)
class ClipFacts:
    """What a file holds: pixels, frames at 24 a second (at least 1), and the peaks of 25 ms, 0..1, by channel."""

    width: int
    height: int
    frames: int
    peaks: list[list[float]] | None


_pictures: OrderedDict[tuple[Stamp, int], bytes] = OrderedDict()
_lock = threading.Lock()


def stamp_of(path: Path) -> Stamp:
    """Return what stands for the file as it is now."""
    return path, path.stat().st_mtime_ns


@lru_cache(maxsize=16)
def facts_of(stamp: Stamp) -> ClipFacts:
    """Return what a file holds.

    Raises:
        UnreadableClip: when it holds no picture.
    """
    try:
        with av.open(str(stamp[0])) as container:
            stream = container.streams.video[0]
            width, height = stream.codec_context.width, stream.codec_context.height
            if _turns(next(container.decode(stream))) % 2:
                width, height = height, width
            container.seek(0)  # the sound of the first packets was passed over
            seconds = _seconds(container, stream)
            peaks = _peaks(container) if container.streams.audio else None
    except (av.error.FFmpegError, OSError, IndexError, StopIteration) as error:
        raise UnreadableClip(str(error)) from error
    return ClipFacts(width, height, min(_MOST_FRAMES, max(1, round(seconds * FPS))), peaks)


def frame_of(stamp: Stamp, number: int) -> bytes:
    """Return frame ``number`` (cut to those there are) as a small JPEG.

    Raises:
        UnreadableClip: when it cannot be decoded.
    """
    number = min(max(number, 0), facts_of(stamp).frames - 1)
    with _lock:
        found = _pictures.get((stamp, number))
        if found is None:
            _decode(stamp, number)
            found = _pictures.get((stamp, number))
        if found is None:
            raise UnreadableClip("no picture there")
        _pictures.move_to_end((stamp, number))
        return found


def _seconds(container: Any, stream: Any) -> float:
    if stream.duration is not None and stream.time_base is not None:
        return float(stream.duration * stream.time_base)
    return container.duration / av.time_base if container.duration else 0.0


def _decode(stamp: Stamp, number: int) -> None:
    """Decode from the key frame before ``number`` to some frames after it into what is kept."""
    try:
        with av.open(str(stamp[0])) as container:
            shown: Any = None
            at, end = 0, min(number + _AHEAD, facts_of(stamp).frames)
            for picture, start in _from(container, number):
                at = start if shown is None else at
                # The picture before is shown until this one begins.
                while shown is not None and at < min(start, end):
                    _keep(stamp, at, shown)
                    at += 1
                if at >= end:
                    return
                shown = picture
            while shown is not None and at < end:
                _keep(stamp, at, shown)
                at += 1
    except (av.error.FFmpegError, OSError, IndexError) as error:
        raise UnreadableClip(str(error)) from error


def _from(container: Any, number: int) -> Iterator[tuple[Any, int]]:
    """Yield pictures with the frame at which they begin, from one at or before ``number``."""
    stream = container.streams.video[0]
    stream.thread_type = "AUTO"
    first = stream.start_time or 0
    if number and stream.time_base:
        container.seek(first + int((number - 1) / FPS / stream.time_base), stream=stream)
    for picture in container.decode(stream):
        seconds = 0.0 if picture.pts is None else float((picture.pts - first) * stream.time_base)
        yield picture, int(seconds * FPS + 0.5)


def _keep(stamp: Stamp, number: int, picture: Any) -> None:
    scale = min(1.0, SIDE / max(picture.width, picture.height))
    width, height = max(2, round(picture.width * scale)), max(2, round(picture.height * scale))
    small = picture.reformat(width=width, height=height, format="rgb24")
    upright = np.rot90(small.to_ndarray(), k=-_turns(picture))
    _pictures[stamp, number] = jpeg(Image.fromarray(upright))
    while len(_pictures) > _KEPT:
        _pictures.popitem(last=False)


def _turns(picture: Any) -> int:
    """Return the counterclockwise quarter turns that a camera was held by, as the engine undoes them."""
    return round(getattr(picture, "rotation", 0) / 90) % 4


def _peaks(container: Any) -> list[list[float]]:
    resampler = av.AudioResampler(format="fltp", layout="stereo", rate=_PEAK_RATE)
    pieces = [
        piece.to_ndarray() for frame in container.decode(audio=0) for piece in resampler.resample(frame)
    ]  # [2, n] each
    if not pieces:
        return []
    waveform = np.abs(np.concatenate(pieces, axis=1)[:, : _PEAK_RATE * _MOST_FRAMES // FPS])
    step = _PEAK_RATE // _PEAKS_PER_SECOND
    padded = np.pad(waveform, ((0, 0), (0, -waveform.shape[1] % step)))
    peaks = padded.reshape(len(waveform), -1, step).max(2).clip(0, 1)
    return [[round(float(value), 3) for value in channel] for channel in peaks]
