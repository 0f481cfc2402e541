"""The two shapes in which decoded pictures and sound leave a job, fed chunk by chunk, the sound first.

A chunk is out when `FrameSink.add` returns, which waits for nobody. Both are context managers: a movie is finished only
when nothing failed inside. On ranks without a VAE no chunk ever comes, and nothing is made.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

import torch

from .contract import geometry
from .contract.messages import Warned
from .health import result_warnings
from .outputs import Outputs
from .stages.decode_video import to_uint8

_SAMPLE_RATE = str(geometry.SAMPLE_RATE)
_PREVIEW_SIDE = 256
"""Longest side of a preview, pixels, roughly: every n-th pixel is taken."""


def finite(values: torch.Tensor) -> torch.Tensor:
    """Return ``values`` of any shape with 0, black or silence, where they are not numbers; the warning says so."""
    return values.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


class FrameSink(AbstractContextManager["FrameSink"]):
    """Takes the chunks of a decoded video.

    Attributes:
        frames: pictures so far. height, width: of a picture, pixels; 0 before the first.
    """

    def __init__(
        self, outputs: Outputs, audio: torch.Tensor | None, *, chunks: int, describe: Callable[[], str] = str
    ) -> None:
        """Start.

        Args:
            audio: the sound [1, 2, N] fp32; None on ranks that decode nothing.
            chunks: how many will come.
            describe: says in words what is decoded, for warnings; called when there is one.
        """
        self.frames = self.height = self.width = 0
        self._outputs = outputs
        self._index = 0
        self._last = chunks - 1
        self._describe = describe
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
        self._index += 1

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
        """Finish after success."""

    def _add(self, frames: torch.Tensor) -> None:
        raise NotImplementedError

    def _warn(self, warnings: list[Warned]) -> None:
        for warning in warnings:
            if warning.code not in self._warned:
                self._warned.add(warning.code)
                self._outputs.event(Warned(warning.code, f"{warning.message} {self._describe()}".rstrip()))


class TensorFrames(FrameSink):
    """Pieces ``frames``, one file a chunk, and one piece ``audio``."""

    def __init__(
        self,
        outputs: Outputs,
        audio: torch.Tensor | None,
        *,
        chunks: int,
        dtype: str,
        describe: Callable[[], str] = str,
    ) -> None:
        """Give ``chunks`` pieces of ``dtype`` (``uint8`` or ``float32``)."""
        super().__init__(outputs, audio, chunks=chunks, describe=describe)
        self._convert: Callable[[torch.Tensor], torch.Tensor] = to_uint8 if dtype == "uint8" else torch.Tensor.float
        if self._audio is not None:
            outputs.tensors("audio", {"audio": self._audio}, metadata={"sample_rate": _SAMPLE_RATE})

    def _add(self, frames: torch.Tensor) -> None:
        last = self._index == self._last
        self._outputs.tensors("frames", {"frames": self._convert(frames)}, index=self._index, last=last)


class Mp4Frames(FrameSink):
    """Sound and pictures for the MP4's writer, and the last picture of each chunk, small, as piece ``preview``."""

    def __init__(
        self, outputs: Outputs, audio: torch.Tensor | None, *, chunks: int, describe: Callable[[], str] = str
    ) -> None:
        super().__init__(outputs, audio, chunks=chunks, describe=describe)
        if self._audio is not None:
            outputs.movie("audio", self._audio[0])

    def _add(self, frames: torch.Tensor) -> None:
        pictures = to_uint8(frames)
        self._outputs.movie("frames", pictures, index=self._index)
        step = -(-max(self.width, self.height) // _PREVIEW_SIDE)
        last = self._index == self._last
        self._outputs.tensors("preview", {"preview": pictures[-1, ::step, ::step]}, index=self._index, last=last)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Let the file be finished after success."""
        if error is None and self._index:
            self._outputs.end_movie()
