"""Counters of one engine's life, for ``/metrics``. Plain numbers on the event loop; raises nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Stats:
    """Counts since the start.

    Attributes:
        jobs_submitted: jobs accepted into the queue. jobs_started: jobs given to the ranks.
        jobs_ended: final state → jobs.
        requests_refused: error code → requests refused before they became jobs.
        stage_seconds: stage → seconds. stage_count: stage → times it finished.
        bytes_in: payload of parts received. bytes_out: payload of parts and results sent.
        restarts: times that the ranks were lost and started again.
        gather_workspace_bytes: gather buffers that rank 0 kept after the last job.
    """

    jobs_submitted: int = 0
    jobs_started: int = 0
    jobs_ended: Counter[str] = field(default_factory=Counter)
    requests_refused: Counter[str] = field(default_factory=Counter)
    stage_seconds: Counter[str] = field(default_factory=Counter)
    stage_count: Counter[str] = field(default_factory=Counter)
    bytes_in: int = 0
    bytes_out: int = 0
    restarts: int = 0
    gather_workspace_bytes: int = 0

    def finish_stage(self, stage: str, seconds: float) -> None:
        """Count one run of ``stage``."""
        self.stage_seconds[stage] += seconds  # type: ignore[assignment]  # Counter is typed for ints, floats add up too
        self.stage_count[stage] += 1
