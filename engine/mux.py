"""Writing an MP4 while its pictures are still being decoded.

Promise: H.264 (4:2:0, BT.709, constant 24 fps) and AAC (stereo), index in front so that a browser plays it while it
loads; the sound starts with the first picture and has as many samples as were given. A thread encodes behind a
bounded queue: `Mp4Writer.add` waits when the encoder is slower, so memory stays at a few chunks.
Raises `JobError` ``job_failed`` from `add` or `close` when encoding or writing failed; the file is then removed.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import torch
from av.video.reformatter import ColorPrimaries, ColorRange, Colorspace, ColorTrc

from .contract import geometry
from .contract.errors import JobError
from .contract.messages import Warned

logger = logging.getLogger(__name__)

_VIDEO_OPTIONS = {"crf": "18", "preset": "fast"}
_AUDIO_BIT_RATE = 192_000
# The default coder spoils the first 20 ms of a sound that starts loud (an error above its own amplitude).
_AUDIO_OPTIONS = {"aac_coder": "fast"}
_AUDIO_PIECE = 1024
"""Samples of one AAC frame."""
_QUEUE = 2
"""Chunks that may wait for the encoder."""
_CONSTANT = 1e-6
"""A soundtrack that moves less than this is one constant."""


def result_warnings(*, frames: torch.Tensor | None = None, audio: torch.Tensor | None = None) -> list[Warned]:
    """Return what a user should know of pictures [f, H, W, 3] in 0..1 or a soundtrack [..., 2, N].

    Codes ``nan_result`` (values that are no numbers; they become black or silence) and ``silent_audio``.
    """
    warnings = []
    if frames is not None and not bool(frames.isfinite().all()):
        warnings.append(Warned("nan_result", "The pictures hold values that are not numbers; they were made black."))
    if audio is not None:
        if not bool(audio.isfinite().all()):
            warnings.append(Warned("nan_result", "The sound holds values that are not numbers; they were silenced."))
        if bool(((audio.amax(dim=-1) - audio.amin(dim=-1)) < _CONSTANT).all()):
            warnings.append(Warned("silent_audio", "The soundtrack is one constant: nothing will be heard."))
    return warnings


class Mp4Writer:
    """Writes one file; use it as a context manager: an exception inside removes the file."""

    def __init__(self, path: str | Path, *, width: int, height: int, audio: torch.Tensor | None) -> None:
        """Start writing ``path``.

        Args:
            width, height: pixels, even.
            audio: [2, N] at 32 kHz in -1..1 (the rest is clipped, what is not a number is silenced), or None.
        """
        self._path = Path(path)
        self._sound = None if audio is None else _clean_sound(audio)
        self._size = (width, height)
        self._chunks: queue.Queue[npt.NDArray[np.uint8] | None] = queue.Queue(_QUEUE)
        self._error: Exception | None = None
        self._aborted = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mp4-writer", daemon=True)
        self._thread.start()

    def add(self, frames: torch.Tensor) -> None:
        """Append pictures [f, H, W, 3] uint8; waits while the encoder is behind.

        Raises:
            JobError: when an earlier piece could not be written.
        """
        assert frames.shape[1:] == (self._size[1], self._size[0], 3), frames.shape
        self._raise_error()
        self._chunks.put(frames.cpu().contiguous().numpy())

    def close(self) -> None:
        """Finish the file.

        Raises:
            JobError: when it could not be written.
        """
        self._chunks.put(None)
        self._thread.join()
        self._raise_error()

    def abort(self) -> None:
        """Stop and remove the file."""
        self._aborted.set()
        self._chunks.put(None)
        self._thread.join()
        self._path.unlink(missing_ok=True)

    def __enter__(self) -> Mp4Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if error is None:
            self.close()
        else:
            self.abort()

    def _raise_error(self) -> None:
        if self._error is not None:
            self._path.unlink(missing_ok=True)
            raise JobError(
                "job_failed",
                f"The video could not be written: {self._error}",
                field="video",
                remedy="Check the free space of the engine's run folder.",
            ) from self._error

    def _run(self) -> None:
        chunks = self._incoming()
        try:
            with av.open(str(self._path), "w", format="mp4", options={"movflags": "+faststart"}) as container:
                _Encoder(container, size=self._size, sound=self._sound).encode(chunks)
        except Exception as error:
            logger.exception("%s could not be written", self._path)
            self._error = error
            for _ in chunks:
                continue  # nobody may wait at a full queue for a thread that is gone

    def _incoming(self) -> Iterator[npt.NDArray[np.uint8]]:
        """Yield the chunks [f, H, W, 3] until the end, which stays the end; none once aborted."""
        while (chunk := self._chunks.get()) is not None:
            if not self._aborted.is_set():
                yield chunk


def _clean_sound(audio: torch.Tensor) -> npt.NDArray[np.float32]:
    """Return [2, N] fp32 in -1..1 on the CPU."""
    sound: npt.NDArray[np.float32] = audio.detach().float().nan_to_num(nan=0.0).clamp(-1, 1).cpu().contiguous().numpy()
    return sound


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
        self._sound = sound
        self._sound_done = 0
        if sound is not None:
            self._audio = container.add_stream(
                "aac", rate=geometry.SAMPLE_RATE, layout="stereo", options=_AUDIO_OPTIONS
            )
            self._audio.bit_rate = _AUDIO_BIT_RATE

    def encode(self, chunks: Iterable[npt.NDArray[np.uint8]]) -> None:
        """Encode ``chunks`` of [f, H, W, 3], then what the two coders still hold."""
        count = 0
        for chunk in chunks:
            for picture in chunk:
                self._add_picture(picture, count)
                count += 1
                self._add_sound(until=count * geometry.SAMPLE_RATE // geometry.FPS)
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
