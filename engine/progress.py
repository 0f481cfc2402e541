"""Turning a stage's steps into events: progress of the whole job, 0..1, that never goes back, and the time left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .contract.messages import Event, StageFinished, StageStarted, Step
from .devices_peaks import StagePeaks

_WEIGHTS = {"encode_prompt": 2.0, "encode_media": 3.0, "denoise": 75.0, "decode_audio": 1.0, "decode_video": 22.0}
"""Shares of a job's time, roughly; a job without some stages scales the rest up."""


class Progress:
    """The progress of one job on one rank.

    Attributes:
        stage: the stage that runs, for error messages; None between stages.
    """

    def __init__(self, stages: tuple[str, ...], emit: Callable[[Event], None], peaks: StagePeaks) -> None:
        """Prepare for ``stages`` in the order that they run; one that runs again is there again.

        Args:
            emit: takes the events. peaks: counts the stages' memory.
        """
        total = sum(_WEIGHTS[stage] for stage in stages)
        self.stage: str | None = None
        self._shares = {stage: _WEIGHTS[stage] / total for stage in stages}
        self._emit = emit
        self._peaks = peaks
        self._before = 0.0
        self._begun = 0.0

    @contextmanager
    def running(self, stage: str) -> Iterator[None]:
        """Mark the start and the end of ``stage``; an error inside leaves it marked as running."""
        self.stage = stage
        self._begun = time.monotonic()
        self._emit(StageStarted(stage, self._before))
        with self._peaks.counting(stage):
            yield
        self._before = min(1.0, self._before + self._shares[stage])
        self._emit(StageFinished(stage, time.monotonic() - self._begun, self._before))
        self.stage = None

    def skip(self, stage: str) -> None:
        """Tell that the result of ``stage`` is known already."""
        self._before = min(1.0, self._before + self._shares[stage])
        self._emit(StageFinished(stage, 0.0, self._before, cached=True))

    def report(self, step: int, total: int) -> None:
        """Tell that ``step`` of ``total`` of the running stage is done."""
        assert self.stage is not None
        remaining = (time.monotonic() - self._begun) / step * (total - step)
        done = min(1.0, self._before + self._shares[self.stage] * step / total)
        self._emit(Step(self.stage, step, total, remaining, done))
