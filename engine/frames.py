"""The two shapes in which decoded pictures and sound leave a job, fed chunk by chunk.

Both are context managers: an error inside leaves no unfinished file. On ranks without a VAE no chunk ever comes, and
nothing is made. Raises `JobError` when a video cannot be written.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

import torch

from .contract import geometry
from .contract.messages import Warned
from .mux import Mp4Writer, result_warnings
from .outputs import Outputs
from .stages.decode_video import to_uint8

_SAMPLE_RATE = str(geometry.SAMPLE_RATE)


def finite(values: torch.Tensor) -> torch.Tensor:
    """Return ``values`` of any shape with 0, black or silence, where they are not numbers; the warning says so."""
    return values.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


class FrameSink(AbstractContextManager["FrameSink"]):
    """Takes the chunks of a decoded video.

    Attributes:
        frames: pictures so far. height, width: of a picture, pixels; 0 before the first.
    """

    def __init__(self, outputs: Outputs, audio: torch.Tensor | None) -> None:
        """Start with the sound ``audio`` [1, 2, N] fp32; None on ranks that decode nothing."""
        self.frames = self.height = self.width = 0
        self._outputs = outputs
        self._warned: set[str] = set()
        self._audio = None if audio is None else finite(audio)
        if audio is not None:
            self._warn(result_warnings(audio=audio))

    def add(self, frames: torch.Tensor) -> None:
        """Take the next chunk [f, H, W, 3] fp32 in 0..1."""
        count, self.height, self.width, _ = frames.shape
        self._warn(result_warnings(frames=frames))
        self._add(finite(frames))
        self.frames += count

    def facts(self) -> dict[str, Any]:
        """Return the counts of what was made."""
        if self._audio is None:
            return {}
        samples = self._audio.shape[-1]
        return {
            "frames": self.frames,
            "width": self.width,
            "height": self.height,
            "audio_samples": samples,
            "sample_rate": geometry.SAMPLE_RATE,
        }

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Finish after success; leave nothing after an error."""

    def _add(self, frames: torch.Tensor) -> None:
        raise NotImplementedError

    def _warn(self, warnings: list[Warned]) -> None:
        for warning in warnings:
            if warning.code not in self._warned:
                self._warned.add(warning.code)
                self._outputs.event(warning)


class TensorFrames(FrameSink):
    """Pieces ``frames``, one file a chunk, and one piece ``audio``."""

    def __init__(self, outputs: Outputs, audio: torch.Tensor | None, *, chunks: int, dtype: str) -> None:
        """Give ``chunks`` pieces of ``dtype`` (``uint8`` or ``float32``)."""
        super().__init__(outputs, audio)
        self._chunks = chunks
        self._index = 0
        self._convert: Callable[[torch.Tensor], torch.Tensor] = to_uint8 if dtype == "uint8" else torch.Tensor.float
        if self._audio is not None:
            outputs.tensors("audio", {"audio": self._audio}, metadata={"sample_rate": _SAMPLE_RATE})

    def _add(self, frames: torch.Tensor) -> None:
        last = self._index == self._chunks - 1
        self._outputs.tensors("frames", {"frames": self._convert(frames)}, index=self._index, last=last)
        self._index += 1


class Mp4Frames(FrameSink):
    """One piece ``video``, encoded while the decoding goes on."""

    def __init__(self, outputs: Outputs, audio: torch.Tensor | None) -> None:
        super().__init__(outputs, audio)
        self._writer: Mp4Writer | None = None

    def _add(self, frames: torch.Tensor) -> None:
        if self._writer is None:
            self._path = self._outputs.new_file("video.mp4")
            sound = None if self._audio is None else self._audio[0]
            self._writer = Mp4Writer(self._path, width=self.width, height=self.height, audio=sound)
        self._writer.add(to_uint8(frames))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Finish and give the file, or remove it."""
        if self._writer is not None:
            self._writer.__exit__(kind, error, tb)
            if error is None:
                self._outputs.file("video", self._path, "mp4")
