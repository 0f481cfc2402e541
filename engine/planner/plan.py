"""What a run takes on every rank, stage by stage, against what there is: the plan of one configuration.

The numbers come from `planner.weights`, `planner.activations` and `placement`, the last of which the ranks carry out.
`make_plan` adds them up for a request; the `Plan` says whether it fits and what does not. Torch-free; nothing is loaded
or opened. Raises nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ..contract.requests import STAGES
from ..contract.words import bytes_in_words
from ..placement import Needs, Placement, plan_placement
from ..stacks import FAMILIES
from .activations import StageBytes, always_bytes, rank_needs, rank_stages, table_bytes
from .request import RequestSize
from .time import Speeds, StepSeconds, run_seconds, step_seconds
from .weights import ServedModel, Setup, rank_weights

VAES = FAMILIES["vae"]
TABLES = "modulation_tables"
"""What modulation tables in host memory go by; every rank has its own."""
OVERHEAD = 600_000_000
"""Bytes of a device that its driver and libraries take in each process; an assumption, not counted on CPUs."""
PROCESS = 1_500_000_000
"""Bytes of host memory that a rank's process takes beside weights; an assumption."""


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """What there is.

    Attributes:
        device_bytes: memory of each rank's device that may be used; None: not known, anything fits.
        host_bytes: memory of the host for all its ranks; None likewise.
        speeds: for predicted seconds.
    """

    device_bytes: int | None = None
    host_bytes: int | None = None
    speeds: Speeds = field(default_factory=Speeds)


@dataclass(frozen=True)
class StageMemory:
    """What one stage of a run has on one rank's device, bytes.

    Attributes:
        weights: by component, without a VAE. beside: what the stage takes besides.
        always: VAEs and buffers that stay, and what the device's driver takes.
    """

    stage: str
    weights: Mapping[str, int]
    beside: StageBytes
    always: int

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self.weights.values()) + self.beside.total + self.always


@dataclass(frozen=True)
class RankPlan:
    """One rank: where its weights are (`placement`), what it has in host memory, and its stages in order."""

    rank: int
    placement: Placement
    host: Mapping[str, int]
    stages: tuple[StageMemory, ...]

    @property
    def tightest(self) -> StageMemory:
        """The stage that takes most."""
        return max(self.stages, key=lambda stage: stage.total)


@dataclass(frozen=True)
class Plan:
    """The plan of one configuration for one request.

    Attributes:
        asked: the stages that the request runs; None: all that are served.
    """

    model: ServedModel
    setup: Setup
    request: RequestSize
    hardware: Hardware
    ranks: tuple[RankPlan, ...]
    asked: tuple[str, ...] | None = None

    @cached_property
    def host_total(self) -> int:
        """Bytes of host memory that all ranks take together; copies that ranks share are counted once."""
        total = 0
        seen: set[tuple[str, int]] = set()
        for rank in self.ranks:
            for name, size in rank.host.items():
                if name not in (*VAES, TABLES) and self.setup.offload.host_copies == "shared":
                    part = (name, self._part_of(rank.rank, name))
                    if part in seen:
                        continue
                    seen.add(part)
                total += size
            total += PROCESS if self.setup.accelerator else 0
        return total

    def _part_of(self, rank: int, component: str) -> int:
        """Return which part of ``component`` the rank holds."""
        return rank % self.setup.tensor_ranks(component)

    @property
    def tightest(self) -> RankPlan:
        """The rank that takes most."""
        return max(self.ranks, key=lambda rank: rank.tightest.total)

    @property
    def device_lack(self) -> int:
        """Bytes that the device of the fullest rank lacks; 0: none, or nobody knows."""
        budget = self.hardware.device_bytes
        return 0 if budget is None else max(0, self.tightest.tightest.total - budget)

    @property
    def host_lack(self) -> int:
        """Bytes that the host lacks; 0: none, or nobody knows."""
        room = self.hardware.host_bytes
        return 0 if room is None else max(0, self.host_total - room)

    @cached_property
    def problems(self) -> tuple[str, ...]:
        """What does not fit, a sentence each; empty: all fits."""
        found = []
        rank, stage = self.tightest, self.tightest.tightest
        if self.device_lack:
            found.append(
                f"{stage.stage} takes {bytes_in_words(stage.total)} on rank {rank.rank}, "
                f"{bytes_in_words(self.device_lack)} more than the {bytes_in_words(stage.total - self.device_lack)} "
                "of its device."
            )
        if self.host_lack:
            found.append(
                f"The ranks take {bytes_in_words(self.host_total)} of host memory, "
                f"{bytes_in_words(self.host_lack)} more than the {bytes_in_words(self.host_total - self.host_lack)} "
                "there are."
            )
        return tuple(found)

    @property
    def fits(self) -> bool:
        """Whether all fits."""
        return not self.problems

    @cached_property
    def step(self) -> StepSeconds:
        """Predicted seconds of one step; none where no stage has steps."""
        if "denoise" not in self.setup.stages:
            return StepSeconds(compute=0.0, stream=0.0, links=0.0)
        return step_seconds(self.model, self.setup, self.request, self.hardware.speeds, self._placements)

    @cached_property
    def seconds(self) -> Mapping[str, float]:
        """Predicted seconds of each stage."""
        return run_seconds(self.model, self.setup, self.request, self.hardware.speeds, self._placements)

    @property
    def _placements(self) -> dict[int, Placement]:
        return {rank.rank: rank.placement for rank in self.ranks}


def needs_of(model: ServedModel, setup: Setup, rank: int, request: RequestSize) -> Needs:
    """Return what the placement of ``rank`` leaves room for, the driver's share included."""
    needs = rank_needs(model, setup, rank, request, rank_weights(model, setup, rank))
    return Needs(needs.running, needs.between, needs.always + (OVERHEAD if setup.accelerator else 0))


def place(model: ServedModel, setup: Setup, rank: int, request: RequestSize, budget: int | None) -> Placement:
    """Return where the weights of ``rank`` are, in an engine that was started for ``request``."""
    weights = {name: held for name, held in rank_weights(model, setup, rank).items() if name not in VAES}
    return plan_placement(weights, setup.offload, budget=budget, needs=needs_of(model, setup, rank, request))


def make_plan(
    model: ServedModel,
    setup: Setup,
    request: RequestSize,
    hardware: Hardware,
    *,
    started_for: RequestSize | None = None,
    asked: tuple[str, ...] | None = None,
) -> Plan:
    """Plan ``request`` on every rank.

    Args:
        started_for: the request that the engine's placement leaves room for; None: this one.
        asked: the stages that the request runs, at least one that is served; None: all that are.
    """
    budget, planned = hardware.device_bytes, started_for or request
    ranks = range(setup.parallel.world_size)
    placements = [place(model, setup, rank, planned, budget) for rank in ranks]
    stages = tuple(stage for stage in STAGES if asked is None or stage in asked)
    planned_ranks = [_plan_rank(model, setup, rank, request, placements[rank], stages=stages) for rank in ranks]
    return Plan(model, setup, request, hardware, tuple(planned_ranks), asked)


def _plan_rank(
    model: ServedModel, setup: Setup, rank: int, request: RequestSize, placement: Placement, *, stages: tuple[str, ...]
) -> RankPlan:
    always = always_bytes(model, setup, rank) + (OVERHEAD if setup.accelerator else 0)
    running = {"encode_prompt": "text_encoder", "denoise": model.transformer(references=request.with_references)}
    found = []
    beside = rank_stages(model, setup, rank, request)
    for stage in (stage for stage in stages if stage in beside):
        used = running.get(stage)
        weights = {
            name: placed.device_bytes for name, placed in placement.components.items() if placed.stays or name == used
        }
        found.append(StageMemory(stage, weights, beside[stage], always))
    host = {name: placed.host_bytes for name, placed in placement.components.items() if placed.host_bytes}
    host |= {
        name: held.bytes
        for name, held in rank_weights(model, setup, rank).items()
        if name in VAES and not setup.vae.vae_resident
    }
    if "denoise" in beside:
        host[TABLES] = table_bytes(model, setup, request)
    return RankPlan(rank, placement, host, tuple(found))


def in_short(plan: Plan) -> str:
    """Return one line for a node: what the fullest rank takes of its device, at its tightest stage."""
    stage = plan.tightest.tightest
    budget = plan.hardware.device_bytes
    room = "" if budget is None else f" of {bytes_in_words(budget)}"
    host = f"; {bytes_in_words(plan.host_total)} of host memory"
    return f"{bytes_in_words(stage.total)}{room} a rank at most, in {stage.stage}{host}"


def describe(plan: Plan) -> dict[str, Any]:
    """Return the plan as JSON, for ``/v1/info`` and ``h3-engine plan --json``; bytes and seconds."""
    request = plan.request
    return {
        "fits": plan.fits,
        "summary": in_short(plan),
        "problems": list(plan.problems),
        "device_bytes": plan.hardware.device_bytes,
        "host_bytes": plan.hardware.host_bytes,
        "host_needed_bytes": plan.host_total,
        "request": {
            "width": request.width,
            "height": request.height,
            "frames": request.frames,
            "steps": request.steps,
            "text_rows": request.text_rows,
        },
        "step_seconds": plan.step.total,
        "stage_seconds": dict(plan.seconds),
        "ranks": [_describe_rank(rank) for rank in plan.ranks],
    }


def _describe_rank(rank: RankPlan) -> dict[str, Any]:
    return {
        "rank": rank.rank,
        "host_bytes": dict(rank.host),
        "components": {
            name: {
                "device_bytes": placed.device_bytes,
                "host_bytes": placed.host_bytes,
                "stays": placed.stays,
                "streamed_blocks": sum(len(stream.streamed) for stream in placed.streams),
                "resident_blocks": sum(len(stream.resident) for stream in placed.streams),
                "slots": sum(stream.slots for stream in placed.streams),
            }
            for name, placed in rank.placement.components.items()
        },
        "stages": [
            {
                "stage": stage.stage,
                "total_bytes": stage.total,
                "weights": dict(stage.weights),
                "always": stage.always,
                **vars(stage.beside),
            }
            for stage in rank.stages
        ],
    }
