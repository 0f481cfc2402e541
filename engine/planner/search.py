"""Which configuration fits and is fastest: every layout of the ranks with every way to place the weights.

`search` plans them all for one request; `nearest` looks for the one that changes least of what was asked for, `longest`
for the length that fits. A `Choice` names its configuration by the options of ``serve``. Torch-free; raises nothing.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..contract.geometry import MIN_FRAMES, frames_of_seconds, snap_frames
from ..contract.requests import STAGES
from ..layout import possible_layouts
from ..rank_options import PARTITIONS, OffloadOptions, ParallelOptions
from .plan import Hardware, Plan, make_plan
from .request import RequestSize
from .weights import ServedModel, Setup

_TEXT_DEGREES = (1, 2, 4, 8)
_OFFLOADS: tuple[tuple[str, ...], ...] = ((), ("text_encoder",), ("dit",), ("dit", "text_encoder"))
MOST_RANKS = 16
"""Ranks for which layouts are looked for; their number grows, and each is planned rank by rank."""
_SHORTEST = 1.0
"""Seconds; lengths are looked for in steps of the lattice, down to this."""
_ALIKE = 0.05
"""By what part the predicted seconds of two configurations may differ and count as alike."""
_WITHOUT_REFERENCES = "requests with references are refused"
_FEWER_BITS = "blocks are kept in 8 bits a weight, and pictures differ a little"


@dataclass(frozen=True)
class Choice:
    """A configuration and its plan.

    Attributes:
        losses: what is given up for it to fit, a sentence each.
    """

    plan: Plan
    losses: tuple[str, ...] = ()

    @property
    def options(self) -> str:
        """The options of ``serve`` that make it, as they are written on a command line."""
        return options_of(self.plan)

    @property
    def seconds(self) -> float:
        """Predicted seconds of the whole run."""
        return sum(self.plan.seconds.values())


def options_of(plan: Plan) -> str:
    """Return the options of ``serve`` about ranks and memory that make the configuration of ``plan``, no defaults."""
    setup, held = plan.setup, [name for name in PARTITIONS if name in plan.model.configs]
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
    budgets = {"--gpu-memory": offload.gpu_memory, "--host-memory": offload.host_memory}
    words += [f"{flag} {size:g}" for flag, size in budgets.items() if size is not None]
    words += [f"--partitions {held[0]}"] if len(held) == 1 else []
    words += [f"--stages {','.join(setup.stages)}"] if setup.stages != STAGES else []
    return " ".join(words)


def settings_of(choice: Choice) -> dict[str, Any]:
    """Return what a person sets for ``choice`` where there is no command line: JSON of numbers and names."""
    setup = choice.plan.setup
    return {
        "ranks": setup.parallel.world_size,
        "offload": list(setup.offload.offload),
        "resident_blocks": setup.offload.resident_blocks,
        "block_storage": setup.offload.block_storage,
        "vae_resident": setup.vae.vae_resident,
        "frames": choice.plan.request.frames,
    }


def search(model: ServedModel, base: Setup, request: RequestSize, hardware: Hardware, *, gpus: int) -> list[Choice]:
    """Plan ``request`` on ``gpus`` ranks in every way; those that fit come first, the fastest of them foremost.

    Of those that are as fast as the fastest within `_ALIKE`, the ones with Ulysses alone come first, which send least:
    how much of a ring's sending the computing hides nobody has measured, and dividing layers pays where weights do not
    fit.

    Args:
        base: what is not looked for: compute type, stages, storage, the VAE's options.
    """
    choices = [Choice(make_plan(model, setup, request, hardware)) for setup in _setups(model, base, gpus)]
    fastest = min((choice.seconds for choice in choices if choice.plan.fits), default=0.0)

    def rank(choice: Choice) -> tuple[float, ...]:
        plan, seconds = choice.plan, choice.seconds
        alike = plan.fits and seconds <= fastest * (1 + _ALIKE)
        parallel = plan.setup.parallel
        other = alike and parallel.ulysses_degree < parallel.world_size
        return not plan.fits, plan.device_lack + plan.host_lack, not alike, other, seconds

    return sorted(choices, key=rank)


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


def nearest(plan: Plan) -> Choice | None:
    """Return the configuration that fits ``plan``'s request and changes least of its options; None when none does.

    Looked for in this order: more families offloaded, with as many resident blocks as fit; the VAEs staged; the text
    encoder divided, or another layout of as many ranks; and last what takes something away: one transformer alone,
    blocks kept in fp8, or both.
    """
    return _nearest(plan, ()) or next(filter(None, (_nearest(less, losses) for less, losses in _less(plan))), None)


def _nearest(plan: Plan, losses: tuple[str, ...]) -> Choice | None:
    setup = plan.setup
    for families in [setup.offload.offload, *_OFFLOADS]:
        if not set(setup.offload.offload) - {"vae"} <= set(families) | {"vae"}:
            continue
        if setup.parallel.shard_weights and "dit" in families:
            continue
        offload = dataclasses.replace(setup.offload, offload=families, resident_blocks=None if families else 0)
        for resident in {setup.vae.vae_resident, False}:
            vae = dataclasses.replace(setup.vae, vae_resident=resident)
            tried = dataclasses.replace(setup, offload=offload, vae=vae)
            made = make_plan(plan.model, tried, plan.request, plan.hardware)
            if made.fits:
                return Choice(made, losses)
    if setup.parallel.world_size > MOST_RANKS:
        return None
    staged = dataclasses.replace(setup, vae=dataclasses.replace(setup.vae, vae_resident=False))
    best = search(plan.model, staged, plan.request, plan.hardware, gpus=setup.parallel.world_size)
    return dataclasses.replace(best[0], losses=losses) if best and best[0].plan.fits else None


def _less(plan: Plan) -> Iterator[tuple[Plan, tuple[str, ...]]]:
    """Yield ``plan`` with less of the model, and what is lost: without references, in fewer bits, both."""
    model, setup, request = plan.model, plan.setup, plan.request
    alone, narrow = model, setup
    if set(PARTITIONS) <= set(model.configs) and not request.with_references:
        configs = {name: config for name, config in model.configs.items() if name != "transformer_ref"}
        alone = dataclasses.replace(model, configs=configs)
        yield dataclasses.replace(plan, model=alone), (_WITHOUT_REFERENCES,)
    if setup.offload.block_storage == "full" and not setup.parallel.shard_weights:
        narrow = dataclasses.replace(setup, offload=dataclasses.replace(setup.offload, block_storage="fp8"))
        yield dataclasses.replace(plan, setup=narrow), (_FEWER_BITS,)
    if alone is not model and narrow is not setup:
        yield dataclasses.replace(plan, model=alone, setup=narrow), (_WITHOUT_REFERENCES, _FEWER_BITS)


def way_out(plan: Plan) -> Choice | None:
    """Return what fits: the `nearest` for all of ``plan``'s request, else for as long a video as that one takes."""
    other = nearest(plan)
    if other is not None:
        return other
    other = nearest(shortened(plan))
    if other is None:
        return None
    model, setup = other.plan.model, other.plan.setup
    frames = longest(make_plan(model, setup, plan.request, plan.hardware)) or other.plan.request.frames
    request = dataclasses.replace(plan.request, frames=frames, pad_seq_len=None)
    return Choice(make_plan(model, setup, request, plan.hardware), other.losses)


def shortened(plan: Plan) -> Plan:
    """Return ``plan`` for the shortest video that is looked for."""
    request = dataclasses.replace(plan.request, frames=_shortest_frames(), pad_seq_len=None)
    return make_plan(plan.model, plan.setup, request, plan.hardware)


def _shortest_frames() -> int:
    return snap_frames(max(MIN_FRAMES, frames_of_seconds(_SHORTEST)))


def longest(plan: Plan, *, started_for: RequestSize | None = None) -> int | None:
    """Return the most frames, fewer than ``plan``'s, that fit with its other sizes; None when not even a second does.

    Args:
        started_for: see `make_plan`.
    """
    lengths = list(range(_shortest_frames(), plan.request.frames, 17))
    best: int | None = None
    while lengths:
        middle = len(lengths) // 2
        request = dataclasses.replace(plan.request, frames=lengths[middle], pad_seq_len=None)
        made = make_plan(plan.model, plan.setup, request, plan.hardware, started_for=started_for, asked=plan.asked)
        if made.fits:
            best, lengths = lengths[middle], lengths[middle + 1 :]
        else:
            lengths = lengths[:middle]
    return best
