"""Which configuration fits and is fastest: every layout of the ranks with every way to place the weights.

`search` plans them all for one request; `nearest` looks for the one that changes least of what was asked for. A
`Choice` names its configuration by the options of ``serve``. Torch-free; raises nothing.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from .contract.geometry import MIN_FRAMES, frames_of_seconds, snap_frames
from .layout import possible_layouts
from .planner import Hardware, Plan, make_plan
from .planner_request import RequestSize
from .planner_weights import ServedModel, Setup
from .rank_options import OffloadOptions, ParallelOptions

_TEXT_DEGREES = (1, 2, 4, 8)
_OFFLOADS: tuple[tuple[str, ...], ...] = ((), ("text_encoder",), ("dit",), ("dit", "text_encoder"))
_SHORTEST = 1.0
"""Seconds; lengths are looked for in steps of the lattice, down to this."""


@dataclass(frozen=True)
class Choice:
    """A configuration and its plan."""

    plan: Plan

    @property
    def options(self) -> str:
        """The options of ``serve`` that make it, as they are written on a command line."""
        return options_of(self.plan.setup)

    @property
    def seconds(self) -> float:
        """Predicted seconds of the whole run."""
        return sum(self.plan.seconds.values())


def options_of(setup: Setup) -> str:
    """Return the options of ``serve`` that make ``setup``, without those that are the defaults."""
    parallel, offload = setup.parallel, setup.offload
    words = [f"--nproc-per-node {parallel.world_size}"]
    if parallel.world_size > 1:
        words.append(f"--ulysses-degree {parallel.ulysses_degree}")
    degrees = {name: getattr(parallel, name) for name in ("ring_degree", "tp_degree", "text_encoder_tp_degree")}
    words += [f"--{name.replace('_', '-')} {degree}" for name, degree in degrees.items() if degree > 1]
    if parallel.shard_weights:
        words.append("--shard-weights")
    if offload.offload:
        words.append(f"--offload {','.join(offload.offload)}")
        blocks = "auto" if offload.resident_blocks is None else offload.resident_blocks
        words += [f"--resident-blocks {blocks}"] if blocks != 0 else []
    if offload.block_storage != OffloadOptions.block_storage:
        words.append(f"--block-storage {offload.block_storage}")
    if offload.modulation_tables_mb != OffloadOptions.modulation_tables_mb:
        words.append(f"--modulation-tables-mb {offload.modulation_tables_mb}")
    if offload.host_copies != OffloadOptions.host_copies:
        words.append(f"--host-copies {offload.host_copies}")
    if setup.vae.vae_resident:
        words.append("--vae-resident")
    return " ".join(words)


def search(model: ServedModel, base: Setup, request: RequestSize, hardware: Hardware, *, gpus: int) -> list[Choice]:
    """Plan ``request`` on ``gpus`` ranks in every way; those that fit come first, the fastest of them foremost.

    Args:
        base: what is not looked for: compute type, stages, storage, the VAE's options.
    """
    choices = [Choice(make_plan(model, setup, request, hardware)) for setup in _setups(model, base, gpus)]
    return sorted(choices, key=lambda choice: (not choice.plan.fits, _excess(choice.plan), choice.seconds))


def _setups(model: ServedModel, base: Setup, gpus: int) -> Iterator[Setup]:
    facts = model.facts
    shared = {"attention heads": facts.heads, "feed-forward channels": facts.ffn_dim}
    degrees = [
        degree
        for degree in _TEXT_DEGREES
        if degree <= gpus and facts.text_kv_heads % degree == 0 and facts.text_ffn_dim % degree == 0
    ]
    layouts = possible_layouts(gpus, shared=shared)
    for (ulysses, ring, tp), degree, families in itertools.product(layouts, degrees, _OFFLOADS):
        parallel = ParallelOptions(
            ulysses_degree=ulysses, ring_degree=ring, tp_degree=tp, text_encoder_tp_degree=degree
        )
        offload = dataclasses.replace(base.offload, offload=families, resident_blocks=None if families else 0)
        yield dataclasses.replace(base, parallel=parallel, offload=offload)


def _excess(plan: Plan) -> int:
    """Return by how many bytes a plan does not fit."""
    device, host = plan.hardware.device_bytes, plan.hardware.host_bytes
    over = 0 if device is None else max(0, plan.tightest.tightest.total - device)
    return over + (0 if host is None else max(0, plan.host_total - host))


def nearest(plan: Plan) -> Choice | None:
    """Return the configuration that fits ``plan``'s request and changes least of its options; None when none does.

    Looked for in this order: more families offloaded, with as many resident blocks as fit; the VAEs staged; the text
    encoder divided; another layout of as many ranks.
    """
    setup = plan.setup
    for families in [setup.offload.offload, *_OFFLOADS]:
        if not set(setup.offload.offload) - {"vae"} <= set(families) | {"vae"}:
            continue
        offload = dataclasses.replace(setup.offload, offload=families, resident_blocks=None if families else 0)
        for resident in {setup.vae.vae_resident, False}:
            vae = dataclasses.replace(setup.vae, vae_resident=resident)
            tried = dataclasses.replace(setup, offload=offload, vae=vae)
            if setup.parallel.shard_weights and "dit" in families:
                continue
            choice = Choice(make_plan(plan.model, tried, plan.request, plan.hardware))
            if choice.plan.fits:
                return choice
    best = search(plan.model, setup, plan.request, plan.hardware, gpus=setup.parallel.world_size)
    return best[0] if best and best[0].plan.fits else None


def longest(plan: Plan, *, started_for: RequestSize | None = None) -> int | None:
    """Return the most frames, fewer than ``plan``'s, that fit with its other sizes; None when not even a second does.

    Args:
        started_for: see `make_plan`.
    """
    low, high = snap_frames(max(MIN_FRAMES, frames_of_seconds(_SHORTEST))), plan.request.frames
    lengths = list(range(low, high, 17))
    best: int | None = None
    while lengths:
        middle = len(lengths) // 2
        request = dataclasses.replace(plan.request, frames=lengths[middle], pad_seq_len=None)
        if make_plan(plan.model, plan.setup, request, plan.hardware, started_for=started_for).fits:
            best, lengths = lengths[middle], lengths[middle + 1 :]
        else:
            lengths = lengths[:middle]
    return best
