"""Peak of one forward of the transformer on one rank, walked through diffusers' code and ours around it.

Kernels are taken to be fused where the released model's devices have them (RMS norms, flash attention: no matrix of
scores), so that an operation costs its results alone. A compiled transformer takes less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..layout_rows import RowPartition, apportion
from ..placement_modulation import FACTORS, MODALITIES
from ..rank_options import PARTITIONS
from .request import AUDIO, PADDING, TEXT, VIDEO, RequestSize, count_rows
from .sizes import TransformerSizes
from .walk import Walk
from .weights import ServedModel, Setup

_FP32 = 4
_INT64 = 8


@dataclass(frozen=True, kw_only=True)
class RankRows:
    """The rows of one forward as a rank sees them.

    Attributes:
        mine: rows of this rank, padding included. valid: those that are used.
        video, audio, text: rows of each kind among ``mine``. whole_text: text rows of the request.
        whole_video, whole_audio: rows of pictures and sound of the request, conditions included.
        total: rows of the request, padding included.
        ulysses_rows: used rows of each rank of the Ulysses group. heads: attention heads of each; one rank: all.
        ring_blocks: used rows of each block on the ring. ulysses_index, ring_index: this rank's place.
        levels: distinct times of a step.
        divided: whether the rows are divided, or padded: attention then takes the engine's road, not diffusers'.
    """

    mine: int
    valid: int
    video: int
    audio: int
    text: int
    whole_text: int
    whole_video: int
    whole_audio: int
    total: int
    ulysses_rows: tuple[int, ...]
    heads: tuple[int, ...]
    ring_blocks: tuple[int, ...]
    ulysses_index: int
    ring_index: int
    levels: int

    @property
    def shared(self) -> bool:
        """Whether other ranks have rows of this forward."""
        return len(self.ulysses_rows) * len(self.ring_blocks) > 1

    @property
    def plain(self) -> bool:
        """Whether attention is diffusers' own: all rows are here, none is padding."""
        return not self.shared and self.valid == self.mine

    @classmethod
    def of(cls, model: ServedModel, setup: Setup, rank: int, request: RequestSize) -> RankRows:
        """Divide the rows of ``request`` as the ranks do."""
        layout, parallel = setup.layout(rank), setup.parallel
        runs = request.runs(model.facts)
        whole = count_rows(runs)
        total = sum(whole.values())
        weights = parallel.rank_weights or (1.0,) * parallel.sequence_degree
        rows = RowPartition.divide(total, used=total - whole[PADDING], weights=weights)
        mine = count_rows(runs, rows.bounds(layout.sequence_index))
        ulysses, valid = parallel.ulysses_degree, rows.valid
        groups = [valid[first : first + ulysses] for first in range(0, len(valid), ulysses)]
        shares = tuple(sum(weights[place::ulysses]) for place in range(ulysses))
        heads = transformer_sizes(model).heads // parallel.tp_degree
        return cls(
            mine=rows.counts[layout.sequence_index],
            valid=valid[layout.sequence_index],
            video=mine[VIDEO],
            audio=mine[AUDIO],
            text=mine[TEXT],
            whole_text=whole[TEXT],
            whole_video=whole[VIDEO],
            whole_audio=whole[AUDIO],
            total=total,
            ulysses_rows=groups[layout.ring_index],
            heads=apportion(heads, shares),
            ring_blocks=tuple(sum(group) for group in groups),
            ulysses_index=layout.ulysses_index,
            ring_index=layout.ring_index,
            levels=request.levels,
        )

    def remote_bytes(self, row_head: int) -> int:
        """Return the most bytes of keys and values of other ranks that are held at once.

        The sum of `parallel.accounting`'s ``ulysses_peak_bytes`` and ``ring_peak_bytes``: the ring turns while what
        came by Ulysses is held.

        Args:
            row_head: bytes of one row of one head.
        """
        heads, own = self.heads[self.ulysses_index], self.ulysses_rows[self.ulysses_index]
        return 2 * heads * row_head * (sum(self.ulysses_rows) - own + _two_blocks(self.ring_blocks, self.ring_index))


def transformer_peak(model: ServedModel, setup: Setup, request: RequestSize, rows: RankRows, *, tables: bool) -> int:
    """Return the bytes that one forward of a run allocates at its peak, its inputs and the run's state included.

    With many rows that is at a block's gated feed-forward: beside the block's input, its middle state and what
    attention gave (1 each, in units of rows x width) stand the normed rows (1), both halves of the inner layer, the
    gate's activation and their product (4 F/C: 10.7 of the released one), while the pictures' embeddings wait in fp32.
    On a ring it may be the merging of two blocks' results, four tensors in fp32.

    Args:
        tables: whether the modulation comes from tables, so that no projection's result is allocated.
    """
    walk = Walk()
    # The first rows, those that move, the last velocity; beside conditions what is shown; of an edit source and masks.
    states = 3 + bool(request.media) + (4 if request.mask_levels else 0)
    _Forward(walk, transformer_sizes(model), setup, rows, tables=tables).run(states)
    return walk.peak


def transformer_sizes(model: ServedModel) -> TransformerSizes:
    """Return the widths of the transformers, which are alike."""
    return TransformerSizes.of(next(model.configs[name] for name in PARTITIONS if name in model.configs))


def _two_blocks(blocks: Sequence[int], own: int) -> int:
    """Return the most rows that two neighbouring remote blocks have, in the order of their arrival."""
    arriving = [blocks[(own - step) % len(blocks)] for step in range(1, len(blocks))]
    return max((sum(arriving[first : first + 2]) for first in range(max(1, len(arriving) - 1))), default=0)


class _Forward:
    """One forward, step by step."""

    def __init__(self, walk: Walk, sizes: TransformerSizes, setup: Setup, rows: RankRows, *, tables: bool) -> None:
        self._walk = walk
        self._sizes = sizes
        self._rows = rows
        self._item = _FP32 if setup.dtype == "fp32" else 2
        self._tp = setup.parallel.tp_degree
        self._tables = tables

    def run(self, states: int) -> None:
        """Walk, with all rows of latents ``states`` times on the device."""
        rows, sizes, walk = self._rows, self._sizes, self._walk
        packed = rows.mine * sizes.hidden * self._item
        with walk.holding(*self._inputs(states), *self._rotary()):
            pictures, sound = (count * sizes.hidden * _FP32 for count in (rows.video, rows.audio))
            with walk.holding(pictures, sound):
                self._refine_text()
                with walk.holding(rows.text * sizes.hidden * self._item):
                    # Each modality is copied into a new packed tensor, in the text's type.
                    walk.at_once(packed, packed, 0 if self._item == _FP32 else pictures // 2)
                    with walk.holding(packed):
                        self._block()
                    self._leave(packed)

    def _inputs(self, states: int) -> tuple[int, ...]:
        """The rows of latents, which every rank has whole, and of them its own; the text; what is known of each row."""
        rows, sizes = self._rows, self._sizes
        whole = (rows.whole_video * sizes.video_width + rows.whole_audio * sizes.audio_width) * _FP32
        own = (rows.video * sizes.video_width + rows.audio * sizes.audio_width) * _FP32 if rows.shared else 0
        # Positions, tag, time and place of each row, and the row of the modulation table that it takes.
        known = rows.total * (3 * _INT64 + 3 * _INT64) + rows.mine * _INT64
        return states * whole, own, rows.whole_text * sizes.text_dim * self._item, known

    def _rotary(self) -> tuple[int, int]:
        """Cosines and sines, and where they are cast the cast ones of the query at hand."""
        table = self._rows.mine * self._sizes.rotary
        return 2 * table * _FP32, 0 if self._item == _FP32 else 2 * table * self._item

    def _refine_text(self) -> None:
        """The refiner runs over all text on every rank; the embedded text waits in its caller."""
        rows, sizes = self._rows.whole_text, self._sizes
        state = rows * sizes.hidden * self._item
        with self._walk.holding(state):
            with self._walk.holding(state):  # the normed rows
                self._attention(rows, None)
            with self._walk.holding(state, state):  # the middle state, the normed rows
                self._feed_forward(rows)

    def _block(self) -> None:
        """One of the blocks, which are alike; its input is held by the caller."""
        rows, sizes, walk = self._rows, self._sizes, self._walk
        state = rows.mine * sizes.hidden * self._item
        levels = 0 if self._tables else rows.levels * MODALITIES * FACTORS * sizes.hidden * self._item
        with walk.holding(levels, levels if self._tp > 1 else 0):
            with walk.holding(state):  # the normed rows
                self._modulate(state)
                self._attention(rows.mine, rows)
                walk.at_once(state, state, state, state)  # what attention gave, gates, product, sum
            with walk.holding(state, state):  # the middle state; what attention gave is a variable until the end
                walk.at_once(state, state)  # the old normed rows, until the new ones are there
                with walk.holding(state):
                    self._modulate(state)
                    self._feed_forward(rows.mine)
                    walk.at_once(state, state, state, state)

    def _modulate(self, state: int) -> None:
        """Scales and shifts are gathered for each row: the scaled rows, the shifts and their sum."""
        self._walk.at_once(state, state, state)

    def _feed_forward(self, rows: int) -> None:
        """Both halves in one tensor, the gate's activation, their product; then the result, and its sum over ranks."""
        inner = rows * self._sizes.ffn // self._tp * self._item
        state = rows * self._sizes.hidden * self._item
        self._walk.at_once(2 * inner, inner, inner)
        self._walk.at_once(inner, state, state if self._tp > 1 else 0)

    def _attention(self, rows: int, divided: RankRows | None) -> None:
        """Queries, keys and values are alive until attention is over."""
        sizes, walk = self._sizes, self._walk
        heads = sizes.heads // self._tp
        whole = rows * heads * sizes.head_dim * self._item
        with walk.holding(whole, whole, whole):
            if divided is not None:
                turned = rows * heads * sizes.rotary * self._item
                # Of the queries: the half that is turned round, both products, their sum; then all channels anew.
                walk.at_once(turned, turned, turned, turned)
                walk.at_once(turned, turned, whole)
            else:
                walk.at_once(whole)
            if divided is None or divided.plain:
                walk.at_once(whole, rows * heads * _FP32)
            else:
                self._attend_divided(divided)
            state = rows * sizes.hidden * self._item
            walk.at_once(whole, state, state if self._tp > 1 else 0)

    def _attend_divided(self, rows: RankRows) -> None:
        """Rows for heads, the ring, heads for rows, padding."""
        walk, row_head = self._walk, self._sizes.head_dim * self._item
        heads = self._sizes.heads // self._tp
        own = rows.valid * heads * row_head
        mine = rows.heads[rows.ulysses_index]
        block = sum(rows.ulysses_rows)
        exchanged = len(rows.ulysses_rows) > 1
        arrived = 3 * block * mine * row_head if exchanged else 0
        result = block * mine * row_head
        if exchanged:
            walk.at_once(3 * own, arrived)
        with walk.holding(arrived):
            if len(rows.ring_blocks) > 1:
                self._ring(rows, mine)
            else:
                walk.at_once(result, block * mine * _FP32)
        if exchanged:
            walk.at_once(result, own, own)
        if rows.mine > rows.valid:
            walk.at_once(own, rows.mine * heads * row_head)

    def _ring(self, rows: RankRows, heads: int) -> None:
        """Two blocks of keys and values, one block's result, and four tensors in fp32 while it is merged."""
        blocks, own, walk = rows.ring_blocks, rows.ring_index, self._walk
        row_head = self._sizes.head_dim * self._item
        result = blocks[own] * heads * row_head
        exact = blocks[own] * heads * self._sizes.head_dim * _FP32
        size = len(blocks)
        for step in range(size):
            here, coming = blocks[(own - step) % size], blocks[(own - step - 1) % size]
            travelling = 2 * (here + (coming if step < size - 1 else 0)) * heads * row_head
            if step == 0:
                walk.at_once(travelling, result, 0 if result == exact else exact)
            else:
                walk.at_once(travelling, result, 4 * exact)
        walk.at_once(exact, 0 if result == exact else result)

    def _leave(self, packed: int) -> None:
        """The output norm modulates as blocks do; both heads run over every row, in fp32."""
        rows, sizes, walk = self._rows, self._sizes, self._walk
        with walk.holding(packed):
            with walk.holding(packed):
                self._modulate(packed)
            exact = 0 if self._item == _FP32 else rows.mine * sizes.hidden * _FP32
            walk.at_once(packed, exact, 2 * rows.mine * (sizes.video_width + sizes.audio_width) * _FP32)
