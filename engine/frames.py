"""The two shapes in which decoded pictures and sound leave a job, fed chunk by chunk, the sound first.

A chunk is out when `FrameSink.add` returns, which waits for nobody. Both are context managers: a movie is finished only
when nothing failed inside. On ranks without a VAE no chunk ever comes, and nothing is made. Raises what the outputs
raise, and `JobError` ``out_of_memory``, after what is made of a chunk was tried once more with freed caches.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, TypeVar

import torch

from .contract import geometry
from .contract.messages import Warned
from .devices_memory import Room
from .health import result_warnings
from .outputs import Outputs
from .stages.decode_video import to_uint8

_SAMPLE_RATE = str(geometry.SAMPLE_RATE)
_T = TypeVar("_T")
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
        self,
        outputs: Outputs,
        audio: torch.Tensor | None,
        *,
        chunks: int,
        describe: Callable[[], str] = str,
        room: Room | None = None,
    ) -> None:
        """Start.

        Args:
            audio: the sound [1, 2, N] fp32; None on ranks that decode nothing.
            chunks: how many will come.
            describe: says in words what is decoded, for warnings; called when there is one.
            room: where the chunks come from.
        """
        self.frames = self.height = self.width = 0
        self._outputs = outputs
        self._index = 0
        self._last = chunks - 1
        self._describe = describe
        self._room = room or Room()
        self._warned: set[Warned] = set()
        self._audio: torch.Tensor | None = None
        if audio is not None:
            self._audio, told = self._made(lambda: (finite(audio).cpu(), self._new(result_warnings(audio=audio))))
            self._warn(told)

    def add(self, frames: torch.Tensor) -> None:
        """Take the next chunk [f, H, W, 3] fp32 in 0..1."""
        count, self.height, self.width, _ = frames.shape
        made, told = self._made(lambda: (self._convert(frames), self._new(result_warnings(frames=frames))))
        self._warn(told)
        self._add(made)
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

    def _convert(self, frames: torch.Tensor) -> torch.Tensor:
        """Return ``frames`` on the CPU as they leave."""
        return to_uint8(finite(frames)).cpu()

    def _add(self, made: torch.Tensor) -> None:
        """Give what `_convert` made of a chunk."""
        raise NotImplementedError

    def _made(self, call: Callable[[], _T]) -> _T:
        return self._room.make(call, what="a chunk of frames on its way out", stage="decode_video")

    def _give(self, call: Callable[[], None]) -> None:
        """Have the outputs take a piece; they announce it when it is written, so one that failed can be given again."""

        def given() -> bool:
            call()
            return True

        self._made(given)

    def _new(self, warnings: list[Warned]) -> dict[Warned, str]:
        """Return those of ``warnings`` that were not sent yet, each with what is told."""
        return {one: f"{one.message} {self._describe()}".rstrip() for one in warnings if one not in self._warned}

    def _warn(self, told: dict[Warned, str]) -> None:
        self._warned.update(told)
        for warning, message in told.items():
            self._outputs.event(Warned(warning.code, message))


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
        room: Room | None = None,
    ) -> None:
        """Give ``chunks`` pieces of ``dtype`` (``uint8`` or ``float32``)."""
        super().__init__(outputs, audio, chunks=chunks, describe=describe, room=room)
        self._dtype = dtype
        if self._audio is not None:
            tensors, metadata = {"audio": self._audio}, {"sample_rate": _SAMPLE_RATE}
            self._give(lambda: outputs.tensors("audio", tensors, metadata=metadata))

    def _convert(self, frames: torch.Tensor) -> torch.Tensor:
        return super()._convert(frames) if self._dtype == "uint8" else finite(frames).float().cpu()

    def _add(self, made: torch.Tensor) -> None:
        last = self._index == self._last
        self._give(lambda: self._outputs.tensors("frames", {"frames": made}, index=self._index, last=last))


class Mp4Frames(FrameSink):
    """Sound and pictures for the MP4's writer, and the last picture of each chunk, small, as piece ``preview``."""

    def __init__(
        self,
        outputs: Outputs,
        audio: torch.Tensor | None,
        *,
        chunks: int,
        describe: Callable[[], str] = str,
        room: Room | None = None,
    ) -> None:
        super().__init__(outputs, audio, chunks=chunks, describe=describe, room=room)
        if self._audio is not None:
            sound = self._audio[0]
            self._give(lambda: outputs.movie("audio", sound))

    def _add(self, made: torch.Tensor) -> None:
        self._give(lambda: self._outputs.movie("frames", made, index=self._index))
        step = -(-max(self.width, self.height) // _PREVIEW_SIDE)
        last = self._index == self._last
        preview = {"preview": made[-1, ::step, ::step]}
        self._give(lambda: self._outputs.tensors("preview", preview, index=self._index, last=last))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Let the file be finished after success."""
        if error is None and self._index:
            self._outputs.end_movie()
