"""What an engine can take: planned before its ranks start, asked for each request before it is queued.

`find_capacity` plans the longest usual request (15 s on the default canvas, or what of it fits): the placement leaves
room for that. It refuses a configuration that fits no video. `Capacity.check` refuses a request that would not fit, and
says what would. Without a known budget of the device (CPUs of which nothing was said) all is let through. Torch-free.
Raises `ConfigError` and `RequestError` ``does_not_fit``.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..checkpoint import Checkpoint
from ..config import EngineConfig
from ..contract import checks, geometry
from ..contract.errors import ConfigError, RequestError
from ..contract.limits import PAD_MULTIPLE
from ..contract.requests import Decode, Denoise, Generate, stages_of
from ..contract.tensors import Headers
from ..contract.words import bytes_in_words
from ..placement import Needs
from .measured import Planned, log_excess, planned_bytes
from .model import checked_model
from .plan import Hardware, Plan, describe, make_plan, needs_of
from .report import fits_in_words
from .request import PADDING, MediumSize, RequestSize
from .search import longest, options_of, shortened, way_out
from .sizing import MASK_LEVELS, size_of_decode, size_of_denoise, size_of_generate
from .weights import ServedModel, Setup

USUAL_SECONDS = 15.0
"""The longest video that the model was trained on."""
_HELD = 2
"""Times that masks of zeros and ones add: of pictures that are kept, and of sound."""
_TEXT_ROWS = 512
_SHRINK = (0.75, 0.5, 0.25)
"""Areas that are tried for a canvas that does not fit."""


@dataclass(frozen=True)
class Capacity:
    """What an engine can take.

    Attributes:
        plan: of the request that the engine's placement leaves room for.
    """

    plan: Plan

    @property
    def needs(self) -> tuple[Needs, ...]:
        """What the placement of each rank leaves room for."""
        plan = self.plan
        return tuple(needs_of(plan.model, plan.setup, rank.rank, plan.request) for rank in plan.ranks)

    @property
    def limited(self) -> bool:
        """Whether the device's memory is known, so that requests can be refused."""
        return self.plan.hardware.device_bytes is not None

    def describe(self) -> dict[str, Any]:
        """Return it as JSON for ``/v1/info``."""
        return describe(self.plan)

    def check(self, plan: checks.Plan, headers: Headers, files: Mapping[str, Path]) -> Planned:
        """Refuse a checked request that cannot fit, as far as its sizes are known before its media are read.

        Args:
            files: its parts, by name.

        Returns:
            what its stages are planned to take; nothing where that is not known.

        Raises:
            RequestError: ``does_not_fit``. OSError: a part cannot be read.
        """
        request, facts = plan.request, self.plan.model.facts
        if isinstance(request, Denoise):
            return self.check_size(size_of_denoise(request, headers, files), plan.stages)
        if isinstance(request, Decode):
            return self.check_size(size_of_decode(request, headers, facts), plan.stages)
        if isinstance(request, Generate):
            return self.check_generate(request, text_tokens=plan.text_tokens, parts={}, found={})
        return {}

    def check_generate(
        self, request: Generate, *, text_tokens: int, parts: Mapping[str, Path], found: Mapping[str, Any]
    ) -> Planned:
        """Refuse a request for a video that cannot fit; ``parts`` are its media that were read, ``found`` their facts.

        Returns and raises as `check`.
        """
        size = size_of_generate(
            request,
            text_tokens=text_tokens,
            parts=parts,
            facts=self.plan.model.facts,
            mask_levels=found.get("mask_levels", _HELD),
        )
        return {} if size is None else self.check_size(size, stages_of(request))

    def check_size(self, size: RequestSize, stages: tuple[str, ...]) -> Planned:
        """Refuse a request of ``size`` that runs ``stages`` and cannot fit; return what it takes.

        Raises:
            RequestError: ``does_not_fit``.
        """
        if not self.limited:
            return {}
        made = self._plan(size, stages)
        if made.fits:
            return planned_bytes(made)
        padded = size.pad_seq_len is not None and self._plan(dataclasses.replace(size, pad_seq_len=None), stages).fits
        raise RequestError(
            "does_not_fit",
            f"This request does not fit: {' '.join(made.problems)}",
            field="request.pad_seq_len" if padded else "request.frames",
            value=size.pad_seq_len if padded else size.frames,
            remedy=self._less_padding(made) if padded else self._remedy(made),
            details={"needed_bytes": made.tightest.tightest.total, "stage": made.tightest.tightest.stage},
        )

    def compare(self, job_id: str, plan: checks.Plan, memory: Mapping[str, Any]) -> None:
        """Log where a job's ``memory`` is more than was planned for it."""
        log_excess(job_id, plan.planned, memory, budget=self.plan.hardware.device_bytes)

    def _plan(self, size: RequestSize, stages: tuple[str, ...] | None) -> Plan:
        plan = self.plan
        return make_plan(plan.model, plan.setup, size, plan.hardware, started_for=plan.request, asked=stages)

    def _less_padding(self, made: Plan) -> str:
        """Say which lengths the request would fit with, that fits without padding."""
        size = made.request
        used = sum(rows for kind, rows in size.runs(self.plan.model.facts) if kind != PADDING)
        lengths = range(-(-used // PAD_MULTIPLE) * PAD_MULTIPLE, size.pad_seq_len or 0, PAD_MULTIPLE)
        fitting = bisect.bisect_left(
            lengths, True, key=lambda rows: not self._plan(dataclasses.replace(size, pad_seq_len=rows), made.asked).fits
        )
        shorter = f", or use {lengths[fitting - 1]} at most" if fitting else ""
        return f"Leave pad_seq_len out: the {used} rows of this request fit{shorter}."

    def _remedy(self, made: Plan) -> str:
        """Say what would fit: shorter, smaller, with fewer references, or on more ranks."""
        size, found = made.request, []
        frames = longest(made, started_for=self.plan.request)
        if frames is not None:
            found.append(f"{frames} frames ({frames / geometry.FPS:.1f} s) of {size.width}x{size.height}")
        canvas = self._smaller(made)
        if canvas is not None:
            found.append(f"{size.frames} frames of {canvas.width}x{canvas.height}")
        if size.media and self._plan(dataclasses.replace(size, media=(), vision=()), made.asked).fits:
            found.append("the same video with fewer or smaller pictures")
        ranks = self._more_ranks(made)
        if size.mask_levels > _HELD and self._plan(dataclasses.replace(size, mask_levels=_HELD), made.asked).fits:
            found.append("the same edit with masks of zeros and ones, or an engine with a lower --modulation-tables-mb")
        if ranks is not None:
            found.append(f"an engine of {ranks} ranks")
        if not found:
            return "Ask for a shorter video on a smaller canvas, or use an engine with more memory."
        return f"What fits: {'; '.join(found)}."

    def _smaller(self, made: Plan) -> RequestSize | None:
        """Return the largest canvas of about the same shape, of those tried, on which the video fits."""
        size = made.request
        multiple = self.plan.model.facts.canvas_multiple
        for area in _SHRINK:
            sides = [max(multiple, round(side * area**0.5 / multiple) * multiple) for side in (size.width, size.height)]
            tried = dataclasses.replace(size, width=sides[0], height=sides[1], pad_seq_len=None)
            if self._plan(tried, made.asked).fits:
                return tried
        return None

    def _more_ranks(self, made: Plan) -> int | None:
        """Return how many ranks sharing the sequence, twice or four times as many, the request would fit on."""
        plan, size = self.plan, made.request
        parallel = plan.setup.parallel
        for factor in (2, 4):
            more = dataclasses.replace(parallel, ulysses_degree=parallel.ulysses_degree * factor, rank_weights=None)
            setup = dataclasses.replace(plan.setup, parallel=more)
            planned = make_plan(plan.model, setup, size, plan.hardware, started_for=plan.request, asked=made.asked)
            if planned.fits:
                return more.world_size
        return None


def find_capacity(config: EngineConfig, checkpoint: Checkpoint) -> Capacity | None:
    """Plan an engine before its ranks start; None where a component brings code of its own, which no plan can know.

    Raises:
        ConfigError: ``does_not_fit``, naming a configuration that fits; ``checkpoint_invalid`` for a configuration
            that says nothing of the model.
    """
    if any(component.own_code is not None for component in checkpoint.components.values()):
        return None
    model, setup = checked_model(ServedModel.of(checkpoint)), setup_of(config)
    memory, host = config.offload.gpu_memory, config.offload.host_memory
    hardware = Hardware(
        device_bytes=None if memory is None else round(memory * 1e9),
        host_bytes=None if host is None else round(host * 1e9),
    )
    usual = usual_request(config, model)
    # Masks with fractions may need the projections in every forward; where that is too much, masks of zeros and ones.
    for request in (dataclasses.replace(usual, mask_levels=MASK_LEVELS), usual):
        plan = make_plan(model, setup, request, hardware)
        if plan.fits:
            return Capacity(plan)
    frames = longest(plan)
    if frames is not None:
        return Capacity(make_plan(model, setup, dataclasses.replace(plan.request, frames=frames), hardware))
    raise _refusal(plan)


def setup_of(config: EngineConfig) -> Setup:
    """Return what ``config`` means to the planner."""
    dtype = config.dtype
    if dtype == "auto":
        dtype = "bf16" if config.accelerator else "fp32"
    return Setup(
        parallel=config.layout,
        vae=config.vae,
        offload=config.offload,
        dtype=dtype,
        accelerator=config.accelerator,
        stages=config.stages,
    )


def usual_request(config: EngineConfig, model: ServedModel) -> RequestSize:
    """Return the request that an engine should have room for: with a first and a last picture, and parts kept.

    Weights stay on the device as far as this leaves room: what it does not name would be refused at this length.
    """
    facts = model.facts
    width, height = geometry.default_canvas(
        short_edge=facts.canvas_short_edge, max_pixels=facts.canvas_max_pixels, multiple=facts.canvas_multiple
    )
    most = config.limits.max_side // facts.canvas_multiple * facts.canvas_multiple
    width, height = min(width, most), min(height, most)
    seconds = min(USUAL_SECONDS, config.limits.max_seconds)
    frames = geometry.snap_frames(max(geometry.MIN_FRAMES, geometry.frames_of_seconds(seconds)))
    cells = (1, height // facts.spatial_ratio, width // facts.spatial_ratio)
    alone = model.transformer(references=False) == "transformer_ref"
    picture = MediumSize(video=cells, reference=alone)
    return RequestSize(
        width=width,
        height=height,
        frames=frames,
        text_rows=_TEXT_ROWS,
        media=(picture, picture),
        mask_levels=_HELD,
    )


def _refusal(plan: Plan) -> ConfigError:
    short, hardware = shortened(plan), plan.hardware
    lacks_host = hardware.device_bytes is None or short.tightest.tightest.total <= hardware.device_bytes
    budget = hardware.host_bytes if lacks_host else hardware.device_bytes
    other = way_out(plan)
    seconds = short.request.frames / geometry.FPS
    return ConfigError(
        "does_not_fit",
        f"This configuration ({options_of(plan)}) has no room for {seconds:.1f} s of video: {' '.join(short.problems)}",
        field="host_memory" if lacks_host else "gpu_memory",
        value=None if budget is None else bytes_in_words(budget),
        remedy=fits_in_words(other, asked=plan.request.frames)
        if other is not None
        else "No layout of these ranks fits: use more ranks, larger devices, or fewer --stages or --partitions.",
    )
