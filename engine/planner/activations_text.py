"""Peak of the text encoder's forward on one rank, walked through transformers' Qwen3-VL.

Layer norms, convolutions and attention are taken to be fused; the RMS norms are written out in fp32, as they are there.
"""

from __future__ import annotations

import math

from .request import RequestSize
from .sizes import TextSizes, VisionSizes
from .walk import Walk
from .weights import ServedModel, Setup

_FP32 = 4


def text_encoder_peak(model: ServedModel, setup: Setup, request: RequestSize) -> int:
    """Return the bytes that encoding the prompt of ``request`` allocates at its peak.

    Text alone peaks in a layer's gated feed-forward: the embedded text, the layer's input, its middle state, the normed
    rows (1 each, in units of rows x width) and three inner tensors (5 each of the released one). With many pictures it
    is in the vision tower, where queries and keys are turned in fp32.
    """
    walk = Walk()
    config = model.configs["text_encoder"]
    item = _FP32 if setup.dtype == "fp32" else 2
    text = TextSizes.of(config)
    vision = _Vision(walk, VisionSizes.of(config), request, item)
    with walk.holding(request.text_rows * text.hidden * item, vision.pixels):
        vision.run()
        with walk.holding(vision.kept):
            _Layers(walk, text, request.text_rows, item, setup.parallel.text_encoder_tp_degree).run()
    return walk.peak


class _Layers:
    """The decoder layers, which are alike."""

    def __init__(self, walk: Walk, sizes: TextSizes, rows: int, item: int, ranks: int) -> None:
        self._walk = walk
        self._rows = rows
        self._item = item
        self._ranks = ranks
        self._sizes = sizes
        self._state = rows * sizes.hidden * item

    def run(self) -> None:
        """Walk through one layer, whose input its caller holds, and the turns of all heads, cosines and sines."""
        walk, state = self._walk, self._state
        summed = state if self._ranks > 1 else 0
        turns = self._rows * self._sizes.head_dim
        # Those are computed in fp32 and joined to whole heads.
        walk.at_once(4 * turns * _FP32)
        with walk.holding(state, 2 * turns * self._item):
            self._norm(self._rows, self._sizes.hidden)
            with walk.holding(state):  # the normed rows
                self._attention()
                walk.at_once(state, state, summed)
            with walk.holding(state):  # the middle state
                self._norm(self._rows, self._sizes.hidden)
                with walk.holding(state):
                    inner = self._rows * self._sizes.ffn // self._ranks * self._item
                    walk.at_once(inner, inner, inner)
                    walk.at_once(inner, state, summed)

    def _norm(self, vectors: int, width: int) -> None:
        """In fp32: the vectors and their squares, or scaled, with the length of each and its inverse."""
        self._walk.at_once(2 * vectors * width * _FP32, 2 * vectors * _FP32)

    def _attention(self) -> None:
        """Queries, keys and values are alive until attention is over; the old ones until all are turned."""
        walk, sizes, rows = self._walk, self._sizes, self._rows
        heads, kv_heads = rows * sizes.heads // self._ranks, rows * sizes.kv_heads // self._ranks
        queries, keys = heads * sizes.head_dim * self._item, kv_heads * sizes.head_dim * self._item
        with walk.holding(queries):
            self._norm(heads, sizes.head_dim)
            with walk.holding(keys, keys):
                self._norm(kv_heads, sizes.head_dim)
                walk.at_once(queries, queries, queries)
                walk.at_once(queries, keys, keys, keys)
                walk.at_once(queries, heads * _FP32)
                walk.at_once(queries, self._state, self._state if self._ranks > 1 else 0)


class _Vision:
    """The vision tower.

    Attributes:
        pixels: bytes of what it is given. kept: bytes of what it leaves: its states, the rows for the text, and those
            for the first layers, the latter two once more in one piece.
    """

    def __init__(self, walk: Walk, sizes: VisionSizes, request: RequestSize, item: int) -> None:
        self._walk = walk
        self._sizes = sizes
        self._item = item
        self._patches = patches = request.vision_patches
        self.pixels = patches * math.prod(sizes.patch) * item
        self._merged = patches // sizes.merged * sizes.out * item
        self.kept = patches * sizes.hidden * item + 2 * (1 + len(sizes.deepstack)) * self._merged

    def run(self) -> None:
        """Walk; nothing where nothing is shown."""
        walk, sizes = self._walk, self._sizes
        values = self._patches * sizes.hidden
        state, exact = values * self._item, values * _FP32
        # Each patch's place is mixed of four, with weights in fp32.
        walk.at_once(state, 4 * state, 4 * exact, exact)
        turns = 2 * self._patches * (sizes.hidden // sizes.heads) * _FP32
        with walk.holding(turns, state, len(sizes.deepstack) * self._merged):
            with walk.holding(state):  # the normed patches
                self._attention(state, exact)
            with walk.holding(state, state):  # the middle state, the normed patches
                inner = self._patches * sizes.ffn * self._item
                walk.at_once(inner, inner)
                walk.at_once(inner, state, state)
            walk.at_once(state, state, state)

    def _attention(self, state: int, exact: int) -> None:
        """Queries and keys are turned in fp32, as copies unless they are; the pictures' results are then joined."""
        walk = self._walk
        with walk.holding(3 * state):
            copies = 0 if state == exact else 2 * exact
            # Of the keys: the turned queries, both products, and the half that is turned round or the sum.
            walk.at_once(copies, exact, 3 * exact)
            with walk.holding(state, state):
                walk.at_once(state, state, state)
