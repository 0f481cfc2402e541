"""The noise of a seed, and a thread that draws it while other things are computed.

What a seed means is diffusers': one CPU generator gives the noise of the visual conditions in packed order, then the
video's, then the sound's. Promise: the same bits whether drawn by `draw_noise` or by a `NoiseWorker`; torch's own
generators are not touched; when a worker is left, nothing is pending or running. Raises `JobError` for noise of other
shapes than asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType

import torch

from .contract.errors import JobError
from .packing import Block, LatentGrid

Shape = tuple[int, ...]


@dataclass(frozen=True)
class NoiseShapes:
    """Shapes of the draws of one run: ``conditions`` [1, C, t, h, w] each, ``video`` [1, C, T, h, w], ``audio``
    [2A, Ca], in rows.
    """

    conditions: tuple[Shape, ...]
    video: Shape
    audio: Shape

    @classmethod
    def of(cls, grid: LatentGrid, blocks: Sequence[Block]) -> NoiseShapes:
        """Return the shapes for a target and what it is conditioned on."""
        pictures = tuple((1, grid.channels, *block.video) for block in blocks if block.video is not None)
        return cls(pictures, grid.video_shape, grid.audio_rows_shape)

    @property
    def in_order(self) -> tuple[Shape, ...]:
        """All of them in the order of the draws."""
        return (*self.conditions, self.video, self.audio)


@dataclass(frozen=True)
class Noise:
    """What was drawn, fp32 on the CPU, in the shapes of `NoiseShapes`."""

    conditions: tuple[torch.Tensor, ...]
    video: torch.Tensor
    audio: torch.Tensor

    @classmethod
    def of(cls, draws: Sequence[torch.Tensor]) -> Noise:
        """Return the noise of draws in order."""
        *conditions, video, audio = draws
        return cls(tuple(conditions), video, audio)


def draw_noise(shapes: NoiseShapes, *, seed: int) -> Noise:
    """Draw the noise of ``seed`` (0 to 2^64 - 1) here and now."""
    generator = torch.Generator().manual_seed(seed)
    return Noise.of([torch.randn(shape, generator=generator) for shape in shapes.in_order])


class NoiseWorker:
    """One thread that draws a run's noise; a context manager, whose end cancels what is pending and joins the rest."""

    def __init__(self, shapes: NoiseShapes, *, seed: int) -> None:
        """Begin to draw the noise of ``seed`` in the shapes that the encoders are expected to give."""
        self._shapes = shapes
        self._executor = ThreadPoolExecutor(1, "noise")
        generator = torch.Generator().manual_seed(seed)
        self._pending: list[Future[torch.Tensor]] = [
            self._executor.submit(torch.randn, shape, generator=generator) for shape in shapes.in_order
        ]

    def __enter__(self) -> NoiseWorker:
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Leave nothing behind: no draw runs on and no buffer stays, whatever happened."""
        self._executor.shutdown(wait=True, cancel_futures=True)
        self._pending.clear()

    def take(self, shapes: NoiseShapes) -> Noise:
        """Wait for the noise and give it away, once.

        Raises:
            JobError: ``job_failed`` when ``shapes``, those of what was encoded, are not the expected ones.
        """
        if shapes != self._shapes:
            raise JobError(
                "job_failed",
                f"What was encoded has other shapes than its media promised: {_described(shapes)}, not "
                f"{_described(self._shapes)}.",
                remedy="Report it: the media were measured wrongly.",
            )
        draws = [future.result() for future in self._pending]
        self._pending.clear()
        return Noise.of(draws)


def _described(shapes: NoiseShapes) -> str:
    return ", ".join(str(list(shape)) for shape in shapes.in_order)
