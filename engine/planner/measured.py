"""What the stages of a job took on its devices, against what was planned for it.

Only what an accelerator's allocator counted is compared: a process' memory on a CPU holds more than was planned. The
share of the device's driver and libraries (`plan.OVERHEAD`), which no allocator counts, is left as a margin. Raises
nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from ..contract.words import bytes_in_words
from .plan import Plan

logger = logging.getLogger(__name__)

_COUNTED = "device"
"""The kind of measure that is compared, see `devices_peaks`."""

Planned = Mapping[str, tuple[int, ...]]
"""Stage → the bytes that it is planned to take of each rank's device."""


def planned_bytes(plan: Plan) -> Planned:
    """Return what the stages of ``plan`` take, all included."""
    found: dict[str, list[int]] = {}
    for rank in plan.ranks:
        for stage in rank.stages:
            found.setdefault(stage.stage, []).append(stage.total)
    return {stage: tuple(sizes) for stage, sizes in found.items()}


def log_excess(job_id: str, planned: Planned, memory: Mapping[str, Any], *, budget: int | None) -> None:
    """Log the stage that took most more than was planned, if one did, and what to do about it.

    Args:
        memory: of the job, as `runner.JobResult` has it. budget: bytes of a device that were planned with.
    """
    if memory.get("kind") != _COUNTED or budget is None:
        return
    found = [
        (took - most, stage, rank, took)
        for stage, sizes in memory["stages"].items()
        for rank, (took, most) in enumerate(zip(sizes, planned.get(stage, ()), strict=False))
    ]
    excess, stage, rank, took = max(found, default=(0, "", 0, 0))
    if excess > 0:
        logger.warning(
            "job %s: %s took %s on rank %d, %s more than was planned; longer videos may not fit. Start the engine with "
            "--gpu-memory %.3g or less, so that fewer weights stay on the device.",
            job_id,
            stage,
            bytes_in_words(took),
            rank,
            bytes_in_words(excess),
            (budget - excess) / 1e9,
        )
