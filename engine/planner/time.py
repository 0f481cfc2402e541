"""Seconds of a run, predicted from operations, bytes and stated speeds.

Assumed: matrix products and attention go at `Speeds.tflops`; weights stream beside them, by copy engines that take
nothing from them; Ulysses' exchanges, sums over ranks and the gathering of outputs are waited for, at the full speed of
a link. What may travel beside the computing (a ring's blocks beside attention, blocks of weights beside all of it) is
hidden by half, since what sends them between devices takes a share of the same processors, and how much nobody has
measured. What Ulysses packs and a ring merges passes through the device's memory at `_MEMORY_GBS`; nothing else takes
time. All ranks wait for the slowest. Good for comparing layouts, not for a clock. Torch-free; raises nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..placement import ComponentPlacement, Placement, Stream
from .activations import makes_tables
from .activations_transformer import RankRows, transformer_sizes
from .activations_vae import TileCount, count_chunks, vae_weights
from .flops import (
    attention_products,
    decode_sound_flops,
    decode_tile_flops,
    encode_tile_flops,
    text_encoder_flops,
    transformer_flops,
)
from .request import RequestSize
from .sizes import TransformerSizes
from .weights import ServedModel, Setup, gathered_bytes, held_bytes, rank_tensors

_TERA, _GIGA = 1e12, 1e9
_EXACT_SHARE = 10
"""By how much slower products in fp32 are taken to be than those in the compute type."""
_HIDDEN = 0.5
"""How much of what may travel between devices beside the computing does."""
_MEMORY_GBS = 2000.0
"""1e9 bytes a second that a device's memory reads or writes."""
_PACKED = 20
"""Bytes that pass through memory for each value of two bytes that Ulysses exchanges: queries, keys and values are put
together (12), then the result (4), and taken apart (4)."""
_MERGED = 34
"""The same for each value of a block's result that a ring merges (`parallel.lse`): four passes over fp32."""
_BEGUN = 20
"""The same for each value of queries, keys and values before and after: they are put together (8), the first result
becomes fp32 (6), and the last leaves it (6)."""


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
    """One step on one rank, in seconds.

    Attributes:
        compute: computing. stream: weights from host memory, beside it.
        links: what other ranks make it wait for: exchanges that nothing hides, packing and merging.
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
    tables = makes_tables(model, setup, request)
    name = model.transformer(references=request.with_references)
    steps = []
    for rank, placement in placements.items():
        rows = RankRows.of(model, setup, rank, request)
        placed = placement.components.get(name)
        streamed = 0 if placed is None else streamed_bytes(placed) + (0 if tables else _all(placed.modulation))
        compute = transformer_flops(model, setup, rows, tables=tables) / _rate(setup, speeds)
        steps.append(
            StepSeconds(
                compute=compute,
                stream=streamed / speeds.host_gbs / _GIGA,
                links=_waited(model, setup, rows, speeds, compute=compute),
            )
        )
    return max(steps, key=lambda step: step.total, default=StepSeconds(compute=0.0, stream=0.0, links=0.0))


def _waited(model: ServedModel, setup: Setup, rows: RankRows, speeds: Speeds, *, compute: float) -> float:
    """Return the seconds of a step in which a rank waits for others, packs or merges; ``compute``: it computes."""
    sizes, blocks = transformer_sizes(model), rows.ring_blocks
    sent = link_bytes(model, setup, rows)
    link = speeds.link_gbs * _GIGA
    # A block travels while the one at hand is attended to: behind the last one nothing does.
    attention = 4 * sizes.layers * attention_products(sizes, rows) / _rate(setup, speeds)
    attention *= 1 - min(blocks) / sum(blocks)
    around, gathered = sent.around / link, sent.gathered / link
    hidden = _HIDDEN * (min(around, attention) + min(gathered, compute))
    return sent.waited / link + around + gathered - hidden + _passed(setup, rows, sizes) / _MEMORY_GBS / _GIGA


def _passed(setup: Setup, rows: RankRows, sizes: TransformerSizes) -> int:
    """Return the bytes that pass through a rank's memory in a step for the sake of other ranks' rows."""
    if not rows.shared:
        return 0
    item = 4 if setup.dtype == "fp32" else 2
    heads, mine = sum(rows.heads), rows.heads[rows.ulysses_index]
    packed = _PACKED * item // 2 * rows.valid * heads if len(rows.ulysses_rows) > 1 else 0
    merges = len(rows.ring_blocks) - 1
    merged = (_MERGED * merges + _BEGUN) * sum(rows.ulysses_rows) * mine if merges else 0
    return sizes.layers * (packed + merged) * sizes.head_dim


def run_seconds(
    model: ServedModel, setup: Setup, request: RequestSize, speeds: Speeds, placements: Mapping[int, Placement]
) -> dict[str, float]:
    """Return the seconds of each served stage of a run, by its name, bringing in what does not stay included."""
    host, exact = speeds.host_gbs * _GIGA, speeds.tflops * _TERA / _EXACT_SHARE
    found: dict[str, float] = {}
    for stage in setup.stages:
        if stage == "encode_prompt":
            made = text_encoder_flops(model, setup, request) / _rate(setup, speeds)
            found[stage] = max(made, _streaming(placements, "text_encoder") / host)
            found[stage] += _bringing(placements, "text_encoder") / host
        elif stage == "denoise":
            name = model.transformer(references=request.with_references)
            step = step_seconds(model, setup, request, speeds, placements).total
            once = _modulating(placements, name) if makes_tables(model, setup, request) else 0
            found[stage] = request.steps * step + (_bringing(placements, name) + once) / host
        elif stage == "encode_media":
            found[stage] = _encoding(model, setup, request) / exact
            if request.media:
                found[stage] += _vae_bytes(model, setup, "vae") / host
        elif stage == "decode_audio":
            found[stage] = decode_sound_flops(model, request.audio_latents) / exact
            found[stage] += _vae_bytes(model, setup, "audio_vae") / host
        else:
            found[stage] = _decoding(model, setup, request) / _rate(setup, speeds)
            found[stage] += _vae_bytes(model, setup, "vae") / host
    return found


def streamed_bytes(placed: ComponentPlacement) -> int:
    """Return the bytes that come from host memory in one forward of a component, its modulation apart."""
    return sum(unit.bytes for stream in placed.streams for unit in stream.streamed)


@dataclass(frozen=True)
class LinkBytes:
    """The bytes that a rank sends, or receives if those are more, in one forward.

    Attributes:
        waited: Ulysses' two exchanges of a block, after attention and feed-forward a sum over the ranks that share
            layers, and the output heads' rows. around: a ring's keys and values. gathered: blocks of weights.
    """

    waited: int
    around: int
    gathered: int


def link_bytes(model: ServedModel, setup: Setup, rows: RankRows) -> LinkBytes:
    """Return what a rank sends in one forward: the closed forms of `parallel.accounting`."""
    sizes = transformer_sizes(model)
    item = 4 if setup.dtype == "fp32" else 2
    row_head = sizes.head_dim * item
    waited = sizes.layers * _exchanged(rows, row_head)
    ranks = setup.parallel.tp_degree
    state = sizes.hidden * item
    summed = sizes.layers * rows.mine + sizes.refiner_layers * rows.whole_text
    waited += 2 * (2 * (ranks - 1) * summed * state // ranks)
    if rows.shared:
        waited += (rows.whole_video * sizes.video_width + rows.whole_audio * sizes.audio_width) * 4
    mine = rows.heads[rows.ulysses_index]
    around = 2 * (sum(rows.ring_blocks) - min(rows.ring_blocks)) * mine * row_head * sizes.layers
    name = next(name for name in model.configs if name.startswith("transformer"))
    shared = setup.shard_ranks(name)
    gathered = gathered_bytes(model, setup, name) // 2 * sizes.layers * (shared - 1) // shared
    return LinkBytes(waited, around, gathered)


def _exchanged(rows: RankRows, row_head: int) -> int:
    """Return the bytes of one block's two exchanges of rows and heads."""
    own, mine = rows.ulysses_rows[rows.ulysses_index], rows.heads[rows.ulysses_index]
    away = own * (sum(rows.heads) - mine) * row_head
    home = (sum(rows.ulysses_rows) - own) * mine * row_head
    return max(3 * away, 3 * home) + max(away, home)


def _rate(setup: Setup, speeds: Speeds) -> float:
    """Operations a second in the compute type."""
    return speeds.tflops * _TERA / (_EXACT_SHARE if setup.dtype == "fp32" else 1)


def _all(stream: Stream | None) -> int:
    return 0 if stream is None else stream.host_bytes


def _placed(placements: Mapping[int, Placement], name: str) -> Iterable[ComponentPlacement]:
    found = (placement.components.get(name) for placement in placements.values())
    return (placed for placed in found if placed is not None)


def _streaming(placements: Mapping[int, Placement], name: str) -> int:
    return max((streamed_bytes(placed) for placed in _placed(placements, name)), default=0)


def _modulating(placements: Mapping[int, Placement], name: str) -> int:
    return max((_all(placed.modulation) for placed in _placed(placements, name)), default=0)


def _bringing(placements: Mapping[int, Placement], name: str) -> int:
    """Return the bytes that come in before a component runs: what is on the device of one that does not stay."""
    found = (
        placed.weights.outside + sum(stream.resident_bytes for stream in placed.streams)
        for placed in _placed(placements, name)
        if not placed.stays
    )
    return max(found, default=0)


def _vae_bytes(model: ServedModel, setup: Setup, name: str) -> int:
    return 0 if setup.vae.vae_resident else held_bytes(rank_tensors(model, setup, name))


def _share(setup: Setup, units: int) -> int:
    """Return how many of ``units`` the rank with the most of them computes."""
    weights = vae_weights(setup)
    return math.ceil(units * max(weights) / sum(weights))


def _decoding(model: ServedModel, setup: Setup, request: RequestSize) -> int:
    tiles = TileCount.cover(request.height, request.width, setup)
    units = count_chunks(request.latent_frames) * tiles.count
    return _share(setup, units) * decode_tile_flops(model, tiles)


def _encoding(model: ServedModel, setup: Setup, request: RequestSize) -> int:
    """Return the operations of encoding the pictures; of sound they are few."""
    total = 0
    ratio = model.facts.spatial_ratio
    for medium in request.media:
        if medium.video is not None:
            frames, rows, columns = medium.video
            tiles = TileCount.cover(rows * ratio, columns * ratio, setup)
            units = tiles.count * count_chunks(frames)
            busy = units if setup.vae.media_encode == "leader" else _share(setup, units)
            total += busy * encode_tile_flops(model, tiles, medium)
    return total
