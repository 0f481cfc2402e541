"""Writing an MP4 while its pictures are still being decoded. Runs in a process of its own, without torch.

Promise: H.264 (4:2:0, BT.709, constant 24 fps) and AAC (stereo), index in front so that a browser plays it while it
loads; the sound starts with the first picture and has as many samples as were given. Only the coders' own buffers are
held. Raises `JobError` ``disk_full`` when there is no room, ``job_failed`` when encoding or writing failed otherwise;
the file is then removed.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any

import av
import numpy as np
import numpy.typing as npt
from av.video.reformatter import ColorPrimaries, ColorRange, Colorspace, ColorTrc

from .contract import geometry
from .contract.errors import JobError
from .wire import told_full

logger = logging.getLogger(__name__)

_VIDEO_OPTIONS = {"crf": "18", "preset": "fast"}
_AUDIO_BIT_RATE = 192_000
# The default coder spoils the first 20 ms of a sound that starts loud (an error above its own amplitude).
_AUDIO_OPTIONS = {"aac_coder": "fast"}
_AUDIO_PIECE = 1024
"""Samples of one AAC frame."""


class Mp4Writer:
    """Writes one file; use it as a context manager: an exception inside removes the file."""

    def __init__(self, path: str | Path, *, width: int, height: int, audio: npt.NDArray[np.float32] | None) -> None:
        """Start writing ``path``.

        Args:
            width, height: pixels, even.
            audio: [2, N] at 32 kHz in -1..1 (the rest is clipped, what is not a number is silenced), or None.

        Raises:
            JobError: when the file cannot be made.
        """
        self._path = Path(path)
        self._size = (width, height)
        self._container: Any = None
        sound = None if audio is None else _clean_sound(audio)
        self._encoder = self._guarded(lambda: self._open(sound))

    def add(self, frames: npt.NDArray[np.uint8]) -> None:
        """Append pictures [f, H, W, 3].

        Raises:
            JobError: when they could not be written.
        """
        assert frames.shape[1:] == (self._size[1], self._size[0], 3), frames.shape
        self._guarded(lambda: self._encoder.add(frames))

    def close(self) -> None:
        """Finish the file.

        Raises:
            JobError: when it could not be written.
        """
        self._guarded(self._finish)

    def abort(self) -> None:
        """Stop and remove the file."""
        if self._container is not None:
            # It tries to write what it still has; the file goes anyway.
            with contextlib.suppress(Exception):
                self._container.close()
        self._path.unlink(missing_ok=True)

    def __enter__(self) -> Mp4Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if error is None:
            self.close()
        else:
            self.abort()

    def _open(self, sound: npt.NDArray[np.float32] | None) -> _Encoder:
        self._container = av.open(str(self._path), "w", format="mp4", options={"movflags": "+faststart"})
        return _Encoder(self._container, size=self._size, sound=sound)

    def _finish(self) -> None:
        self._encoder.finish()
        self._container.close()

    def _guarded(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:
            logger.exception("%s could not be written", self._path)
            self.abort()
            raise told_full(error, self._path.parent) or JobError(
                "job_failed",
                f"The video could not be written: {error}",
                field="video",
                remedy="Look at the engine's log.",
            ) from error


def _clean_sound(audio: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return [2, N] finite in -1..1."""
    return np.ascontiguousarray(np.nan_to_num(audio, nan=0.0).clip(-1, 1), dtype=np.float32)


class _Encoder:
    """The two streams of one container, fed in step so that the muxer never buffers one for the other."""

    def __init__(self, container: Any, *, size: tuple[int, int], sound: npt.NDArray[np.float32] | None) -> None:
        self._container = container
        self._video = container.add_stream("libx264", rate=geometry.FPS, options=_VIDEO_OPTIONS)
        self._video.width, self._video.height = size
        self._video.pix_fmt = "yuv420p"
        context = self._video.codec_context
        context.color_range = ColorRange.MPEG
        context.colorspace = Colorspace.ITU709
        context.color_primaries = ColorPrimaries.BT709
        context.color_trc = ColorTrc.BT709
        self._count = 0
        self._sound = sound
        self._sound_done = 0
        if sound is not None:
            self._audio = container.add_stream(
                "aac", rate=geometry.SAMPLE_RATE, layout="stereo", options=_AUDIO_OPTIONS
            )
            self._audio.bit_rate = _AUDIO_BIT_RATE

    def add(self, pictures: npt.NDArray[np.uint8]) -> None:
        """Encode [f, H, W, 3] and the sound up to their end."""
        for picture in pictures:
            self._add_picture(picture, self._count)
            self._count += 1
            self._add_sound(until=self._count * geometry.SAMPLE_RATE // geometry.FPS)

    def finish(self) -> None:
        """Encode what the two coders still hold, and the rest of the sound."""
        self._container.mux(self._video.encode(None))
        if self._sound is not None:
            self._add_sound(until=self._sound.shape[1] + _AUDIO_PIECE)
            self._container.mux(self._audio.encode(None))

    def _add_picture(self, picture: npt.NDArray[np.uint8], index: int) -> None:
        """Encode one picture [H, W, 3]."""
        frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
        frame = frame.reformat(format="yuv420p", dst_colorspace=Colorspace.ITU709, dst_color_range=ColorRange.MPEG)
        frame.pts, frame.time_base = index, Fraction(1, geometry.FPS)
        self._container.mux(self._video.encode(frame))

    def _add_sound(self, *, until: int) -> None:
        """Encode whole AAC frames up to sample ``until``; the last one may be shorter."""
        if self._sound is None:
            return
        length = self._sound.shape[1]
        while self._sound_done < length and min(self._sound_done + _AUDIO_PIECE, length) <= until:
            piece = np.ascontiguousarray(self._sound[:, self._sound_done : self._sound_done + _AUDIO_PIECE])
            frame = av.AudioFrame.from_ndarray(piece, format="fltp", layout="stereo")
            frame.sample_rate = geometry.SAMPLE_RATE
            frame.pts, frame.time_base = self._sound_done, Fraction(1, geometry.SAMPLE_RATE)
            self._container.mux(self._audio.encode(frame))
            self._sound_done += piece.shape[1]
