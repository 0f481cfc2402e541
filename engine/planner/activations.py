"""Bytes that each stage of a run takes on a rank's device besides its weights; from sizes alone.

Promise: the peaks are walks through the code that runs (`planner.walk`), within 15% of what is allocated; what each
holds is said where it is walked. Not counted: what a device's driver and libraries take for themselves, and what an
allocator loses between tensors. Torch-free; raises nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..placement import ComponentWeights, Needs, Stream
from ..placement_modulation import (
    keeps_modulation_apart,
    modulation_table_bytes,
    step_bytes_allowed,
    tables_fit,
)
from ..rank_options import PARTITIONS
from ..stacks import FAMILIES
from ..stacks_shares import encodes_media
from .activations_sound import decode_sound_peak, encode_sound_peak
from .activations_text import text_encoder_peak
from .activations_transformer import RankRows, transformer_peak, transformer_sizes
from .activations_vae import decode_peak, decode_workspace, encode_peak
from .request import RequestSize
from .weights import (
    ServedModel,
    Setup,
    gathered_bytes,
    rank_weights,
    unpacked_bytes,
)

_MEGABYTE = 10**6


@dataclass(frozen=True, kw_only=True)
class StageBytes:
    """What one stage takes at its peak, bytes; the sum of all is the peak, by `total`.

    Attributes:
        activations: what its model's forward allocates, keys and values of other ranks apart.
        remote: keys and values of other ranks (Ulysses, ring) that are held at once.
        tables: one step's modulation table, or the modulation's buffers.
        gathered: weights that are put together for the time of their use: blocks gathered from other ranks
            (`shard_weights`), a layer's weight unpacked (`block_storage`).
        vae: weights of the VAE that is brought in for the stage; 0 where the VAEs stay.
        workspace: gather buffers of tiles, in use or kept since the last video.
    """

    activations: int = 0
    remote: int = 0
    tables: int = 0
    gathered: int = 0
    vae: int = 0
    workspace: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return self.activations + self.remote + self.tables + self.gathered + self.vae + self.workspace


def rank_stages(model: ServedModel, setup: Setup, rank: int, request: RequestSize) -> dict[str, StageBytes]:
    """Return what each served stage of ``request`` takes on ``rank``, by the stage's name, in the order of a run."""
    return _stages(model, setup, rank, request, rank_weights(model, setup, rank))


def always_bytes(model: ServedModel, setup: Setup, rank: int) -> int:
    """Return what is taken at all times besides `rank_stages`: VAEs that stay."""
    held = rank_weights(model, setup, rank) if setup.vae.vae_resident else {}
    return sum(weights.bytes for name, weights in held.items() if name in FAMILIES["vae"])


def rank_needs(
    model: ServedModel, setup: Setup, rank: int, request: RequestSize, weights: Mapping[str, ComponentWeights]
) -> Needs:
    """Return what `placement.plan_placement` is to leave room for on ``rank`` when it runs ``request``.

    Args:
        weights: see `rank_weights`.
    """
    stages = {name: stage.total for name, stage in _stages(model, setup, rank, request, weights).items()}
    denoise = stages.pop("denoise", 0)
    running = {"text_encoder": stages.pop("encode_prompt", 0), **dict.fromkeys(PARTITIONS, denoise)}
    return Needs(
        {name: size for name, size in running.items() if name in weights},
        between=max(stages.values(), default=0),
        always=always_bytes(model, setup, rank),
    )


def _stages(
    model: ServedModel,
    setup: Setup,
    rank: int,
    request: RequestSize,
    weights: Mapping[str, ComponentWeights],
) -> dict[str, StageBytes]:
    using, kept = _workspace(model, setup, rank, request)
    made: dict[str, StageBytes] = {}
    for stage in setup.stages:
        if stage == "encode_prompt":
            there = "text_encoder" in weights
            peak = text_encoder_peak(model, setup, request) if there else 0
            unpacked = unpacked_bytes(model, setup, "text_encoder") if there else 0
            made[stage] = StageBytes(activations=peak, gathered=unpacked, workspace=kept)
        elif stage == "encode_media":
            choices = [StageBytes(workspace=kept), *_encodings(model, setup, rank, request, weights, kept=kept)]
            made[stage] = max(choices, key=lambda choice: choice.total)
        elif stage == "denoise":
            made[stage] = _denoise(model, setup, rank, request, weights, kept=kept)
        elif stage == "decode_audio":
            there = "audio_vae" in weights
            peak = decode_sound_peak(model, request.audio_latents) if there else 0
            made[stage] = StageBytes(activations=peak, vae=_vae(setup, weights, "audio_vae"), workspace=kept)
        else:
            there = "vae" in weights
            peak = decode_peak(model, setup, rank, request) if there else 0
            made[stage] = StageBytes(activations=peak, vae=_vae(setup, weights, "vae"), workspace=using)
    return made


def _denoise(
    model: ServedModel,
    setup: Setup,
    rank: int,
    request: RequestSize,
    weights: Mapping[str, ComponentWeights],
    *,
    kept: int,
) -> StageBytes:
    rows = RankRows.of(model, setup, rank, request)
    sizes = transformer_sizes(model)
    name = next(name for name in PARTITIONS if name in weights)
    item = 4 if setup.dtype == "fp32" else 2
    buffers = Stream(weights[name].modulation, frozenset()).device_bytes
    # The masks of an edit, which nobody knows yet, may bring more times than tables are allowed for.
    calls = not _fit(model, setup, request, levels=request.levels)
    peak = transformer_peak(model, setup, request, rows, tables=not calls)
    remote = min(peak, rows.remote_bytes(sizes.head_dim * item))
    tables = max(_with_tables(model, setup, request, buffers=buffers, peak=peak), buffers if calls else 0)
    return StageBytes(
        activations=peak - remote,
        remote=remote,
        tables=tables,
        gathered=gathered_bytes(model, setup, name) + unpacked_bytes(model, setup, name),
        workspace=kept,
    )


def _with_tables(model: ServedModel, setup: Setup, request: RequestSize, *, buffers: int, peak: int) -> int:
    """Return what a run with tables takes of the device besides the ``peak`` of its forwards.

    In a forward that is one step's table. They are made before the first one, out of the ``buffers``, a block a rank at
    a time: what a rank made is put together, repeated for the n - 1 others, and received from them.
    """
    tables = table_bytes(model, setup, request)
    if not tables:
        return 0
    made = 2 * setup.parallel.sequence_degree * tables // transformer_sizes(model).layers
    return max(step_table_bytes(model, setup, request), buffers + made - peak)


def makes_tables(model: ServedModel, setup: Setup, request: RequestSize) -> bool:
    """Whether the modulation of ``request`` comes from tables; of an edit, whether it does if its masks allow."""
    return _fit(model, setup, request, levels=request.levels - request.mask_levels)


def table_bytes(model: ServedModel, setup: Setup, request: RequestSize) -> int:
    """Return the most bytes of host memory that a run's modulation tables take; 0: there are none.

    Those of an edit take what is allowed, unless the times that masks can bring take less.
    """
    if not makes_tables(model, setup, request):
        return 0
    return min(request.levels * request.steps * _level_bytes(model, setup), _allowed(setup))


def step_table_bytes(model: ServedModel, setup: Setup, request: RequestSize) -> int:
    """Return the most bytes of one step's modulation table, which the device holds; 0: there are none."""
    if not makes_tables(model, setup, request):
        return 0
    return min(request.levels * _level_bytes(model, setup), step_bytes_allowed(_allowed(setup)))


def _fit(model: ServedModel, setup: Setup, request: RequestSize, *, levels: int) -> bool:
    level = _level_bytes(model, setup)
    return tables_fit([levels] * request.steps, allowed=_allowed(setup), level_bytes=level)


def _allowed(setup: Setup) -> int:
    """Return the bytes that tables may take; 0: none are made."""
    allowed = setup.offload.modulation_tables_mb
    apart = keeps_modulation_apart(modulation_tables_mb=allowed, shard_weights=setup.parallel.shard_weights)
    return allowed * _MEGABYTE if apart else 0


def _level_bytes(model: ServedModel, setup: Setup) -> int:
    sizes = transformer_sizes(model)
    element = 4 if setup.dtype == "fp32" else 2
    return modulation_table_bytes([1], blocks=sizes.layers, width=sizes.hidden, element=element)


def _encodings(
    model: ServedModel,
    setup: Setup,
    rank: int,
    request: RequestSize,
    weights: Mapping[str, ComponentWeights],
    *,
    kept: int,
) -> Iterator[StageBytes]:
    """Yield what encoding each of the request's media takes on a rank that takes part in it."""
    for medium in request.media if encodes_media(rank, media_encode=setup.vae.media_encode) else ():
        if medium.video is not None and "vae" in weights:
            peak = encode_peak(model, setup, rank, medium)
            yield StageBytes(activations=peak, vae=_vae(setup, weights, "vae"), workspace=kept)
        if medium.audio and "audio_vae" in weights:
            peak = encode_sound_peak(model, medium.audio)
            yield StageBytes(activations=peak, vae=_vae(setup, weights, "audio_vae"), workspace=kept)


def _workspace(model: ServedModel, setup: Setup, rank: int, request: RequestSize) -> tuple[int, int]:
    """Return the bytes of gather buffers while pictures are decoded, and at other times."""
    if "decode_video" not in setup.stages or "vae" not in setup.components(model, rank):
        return 0, 0
    using = decode_workspace(model, setup, rank, request)
    fits = using <= setup.vae.gather_workspace_mb * _MEGABYTE
    return using, using if fits and not setup.vae.release_gather_workspace else 0


def _vae(setup: Setup, weights: Mapping[str, ComponentWeights], name: str) -> int:
    return weights[name].bytes if name in weights and not setup.vae.vae_resident else 0
