"""Seconds of a run, predicted from operations, bytes and stated speeds.

Signatures; the closed forms follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .placement import Placement
from .planner_request import RequestSize
from .planner_weights import ServedModel, Setup


@dataclass(frozen=True, kw_only=True)
class Speeds:
    """What a machine does in a second; the defaults are assumptions, for `plan` to override.

    Attributes:
        tflops: 1e12 operations of a device, in matrix products and attention of the compute type.
        host_gbs: 1e9 bytes from host memory to one device. link_gbs: the same between two devices, each way.
    """

    tflops: float = 400.0
    host_gbs: float = 25.0
    link_gbs: float = 25.0


@dataclass(frozen=True, kw_only=True)
class StepSeconds:
    """One step on one rank: computing and streaming go on side by side, collectives between.

    Attributes:
        compute, stream, links: seconds of each.
    """

    compute: float
    stream: float
    links: float

    @property
    def total(self) -> float:
        """Seconds of the step."""
        return max(self.compute, self.stream) + self.links


def step_seconds(
    model: ServedModel, setup: Setup, request: RequestSize, speeds: Speeds, placements: Mapping[int, Placement]
) -> StepSeconds:
    """Return the seconds of one step of ``request``: those of the slowest rank.

    Args:
        placements: of each rank, by its number.
    """
    raise NotImplementedError


def run_seconds(
    model: ServedModel, setup: Setup, request: RequestSize, speeds: Speeds, placements: Mapping[int, Placement]
) -> dict[str, float]:
    """Return the seconds of each stage of a run, by its name."""
    raise NotImplementedError
