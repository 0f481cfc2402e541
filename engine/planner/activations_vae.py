"""Peaks of decoding and encoding pictures on one rank, walked through diffusers' video VAE and our tiles around it.

Counted as if one tile is decoded at a time, the least that is needed: more go together only where memory is free
(`vae.spread`). What a convolution's library takes for itself is not known before it runs and not counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..contract import geometry
from ..layout_rows import apportion
from .request import MediumSize, RequestSize
from .sizes import VaeSizes
from .walk import Walk
from .weights import ServedModel, Setup

_FP32 = 4
LOOK_AHEAD = 2
"""Latent frames that a chunk is decoded with besides its own."""
_CLIP = geometry.FRAMES_PER_CHUNK + geometry.MIN_FRAMES
"""Frames of a decoded chunk, those included over which it is cross-faded with the next."""


@dataclass(frozen=True)
class TileCount:
    """The tiles of a picture. ``height``, ``width``: of a tile, pixels. ``count``: of a picture."""

    height: int
    width: int
    count: int

    @classmethod
    def cover(cls, height: int, width: int, setup: Setup) -> TileCount:
        """Cover ``height`` x ``width`` pixels as `vae.tiles.Axis` does."""
        tile, overlap = setup.vae.vae_tile, setup.vae.vae_tile_overlap
        counts = [1 if tile >= side else -(-(side - overlap) // (tile - overlap)) for side in (height, width)]
        return cls(min(tile, height), min(tile, width), math.prod(counts))


def vae_weights(setup: Setup) -> tuple[float, ...]:
    """Return each rank's share of the tiles, as `vae.crew.build_crew` deals them; 0: none."""
    parallel = setup.parallel
    shares = parallel.rank_weights or (1.0,) * parallel.sequence_degree
    alone = setup.vae.vae_on_one_rank
    return tuple(0.0 if alone and rank else shares[rank // parallel.tp_degree] for rank in range(parallel.world_size))


def slot_count(setup: Setup, rank: int, *, chunks: int, tiles: int) -> int:
    """Return how many tiles' results ``rank`` has room for: on rank 0 of a chunk and a round, elsewhere its own."""
    weights = vae_weights(setup)
    if not sum(weights):
        return 0
    size = math.ceil(sum(weights) / min(weight for weight in weights if weight))
    counts = {min(size, chunks * tiles - first) for first in range(0, chunks * tiles, size)}
    rounds = [apportion(count, weights) for count in counts]
    if rank == 0:
        return min(tiles - 1 + max(sum(shares) for shares in rounds), chunks * tiles)
    return max(shares[rank] for shares in rounds)


def decode_workspace(model: ServedModel, setup: Setup, rank: int, request: RequestSize) -> int:
    """Return the bytes of the buffers in which decoded tiles are gathered."""
    tiles = TileCount.cover(request.height, request.width, setup)
    chunks = count_chunks(request.latent_frames)
    values = 3 * _CLIP * tiles.height * tiles.width
    return slot_count(setup, rank, chunks=chunks, tiles=tiles.count) * values * _item(setup)


def count_chunks(latent_frames: int) -> int:
    """Return in how many chunks latents are decoded."""
    return max(1, -(-(latent_frames - LOOK_AHEAD) // geometry.LATENTS_PER_CHUNK))


def decode_peak(model: ServedModel, setup: Setup, rank: int, request: RequestSize) -> int:
    """Return the bytes that decoding the pictures of ``request`` allocates at its peak, without gather buffers.

    On rank 0 that is where a chunk of whole pictures is made of its tiles and laid out anew, three times in fp32 beside
    the one before; with a small canvas, or elsewhere, in the decoder's gated feed-forward.
    """
    walk = Walk()
    sizes, item = VaeSizes.of(model.configs["vae"]), _item(setup)
    tiles = TileCount.cover(request.height, request.width, setup)
    cells = request.latent_frames * (request.height // sizes.ratio) * (request.width // sizes.ratio)
    latents = cells * sizes.latents
    # The latents as they came, denormalised, and filled to whole chunks in the decoder's type.
    with walk.holding(2 * latents * _FP32, latents * item):
        _decode_tile(walk, sizes, tiles, item)
        if rank == 0:
            _hand_on(walk, sizes, tiles, request, item)
    return walk.peak


def _hand_on(walk: Walk, sizes: VaeSizes, tiles: TileCount, request: RequestSize, item: int) -> None:
    """Chunks of whole pictures: the one before is alive until the next is made, as are the frames cross-faded with it.

    The last one has all frames of its clip; it becomes 0 to 1 in fp32 and is laid out anew beside the clip, is freed of
    what is no number twice, and becomes bytes.
    """
    pixels = 3 * request.height * request.width
    before, faded = geometry.FRAMES_PER_CHUNK * pixels * _FP32, geometry.MIN_FRAMES * pixels * item
    clip, last = _CLIP * pixels * item, min(_CLIP, request.frames) * pixels * _FP32
    with walk.holding(*((before, faded) if count_chunks(request.latent_frames) > 1 else ())):
        _decode_tile(walk, sizes, tiles, item)
        walk.at_once(clip, last, last)
    walk.at_once(last, last, last, last // _FP32)


def _decode_tile(walk: Walk, sizes: VaeSizes, tiles: TileCount, item: int) -> None:
    """One tile of one chunk: its cells are tokens of a transformer whose states and norms are fp32."""
    cells = (geometry.LATENTS_PER_CHUNK + LOOK_AHEAD) * tiles.height * tiles.width // sizes.ratio**2
    tokens = cells + sizes.registers + 1
    state, exact = tokens * sizes.width * item, tokens * sizes.width * _FP32
    cast = 0 if item == _FP32 else state
    turns = 2 * tokens * sizes.rotary * _FP32
    with walk.holding(2 * cells * sizes.latents * item, turns):
        with walk.holding(exact):
            walk.at_once(exact, cast)
            with walk.holding(state):  # the normed tokens
                _attend_tokens(walk, sizes, tokens, item)
                walk.at_once(state, exact, exact)
            with walk.holding(exact):  # the middle state
                walk.at_once(state, exact, cast)
                with walk.holding(state):
                    inner = tokens * sizes.ffn * item
                    walk.at_once(2 * inner, inner, inner)
                    walk.at_once(inner, state)
                    walk.at_once(state, exact, exact)
        made = cells * sizes.patch * item
        with walk.holding(made):
            walk.at_once(made)
            walk.at_once(made * _CLIP // ((geometry.LATENTS_PER_CHUNK + LOOK_AHEAD) * sizes.time_ratio))


def _attend_tokens(walk: Walk, sizes: VaeSizes, tokens: int, item: int) -> None:
    """Old and turned queries and keys are alive together: views of the old ones are variables until the end."""
    state, exact = tokens * sizes.width * item, tokens * sizes.width * _FP32
    turned = tokens * sizes.heads * sizes.rotary * item
    with walk.holding(state, state, state):
        walk.at_once(exact, *(() if item == _FP32 else (exact, state)))
        with walk.holding(turned, turned, 0 if item == _FP32 else 2 * tokens * sizes.rotary * item):
            walk.at_once(turned, turned, turned)
            with walk.holding(state):
                walk.at_once(turned, turned, turned)
                walk.at_once(turned, state)
                with walk.holding(state):
                    walk.at_once(state, tokens * sizes.heads * _FP32)
                    walk.at_once(state, state)


def encode_peak(model: ServedModel, setup: Setup, rank: int, medium: MediumSize) -> int:
    """Return the bytes that encoding the pictures of ``medium`` allocates at its peak, gather buffers included.

    At the widest level of the encoder, whose tensors have all pixels: five of them where that level ends.
    """
    assert medium.video is not None
    sizes = VaeSizes.of(model.configs["vae"])
    frames, rows, columns = medium.video
    height, width = rows * sizes.ratio, columns * sizes.ratio
    tiles = TileCount.cover(height, width, setup)
    single = frames == 1
    clips = 1 if single else -(-geometry.frames_of_latents(frames) // geometry.FRAMES_PER_CHUNK)
    walk = Walk()
    moments = 2 * sizes.latents * _FP32
    latents = 1 if single else geometry.LATENTS_PER_CHUNK
    tile = latents * (tiles.height // sizes.ratio) * (tiles.width // sizes.ratio) * moments
    slots = slot_count(setup, rank, chunks=clips, tiles=tiles.count) * tile
    whole = clips * latents * rows * columns * moments if rank == 0 else 0
    with walk.holding(slots, whole):
        shown = 1 if single else geometry.FRAMES_PER_CHUNK
        pixels = 3 * shown * tiles.height * tiles.width
        # Bytes, and what is made of them in fp32 while they are normalised.
        walk.at_once(pixels, 3 * pixels * _FP32)
        with walk.holding(pixels + pixels * _FP32):
            _Encoder(walk, sizes).run(shown, tiles.height, tiles.width)
        walk.at_once(2 * tile)
        walk.at_once(whole, whole)
    return walk.peak


class _Encoder:
    """The convolutional encoder, fp32 throughout; a convolution is given its input, padded in space, then in time."""

    def __init__(self, walk: Walk, sizes: VaeSizes) -> None:
        self._walk = walk
        self._sizes = sizes

    def run(self, frames: int, height: int, width: int) -> None:
        """Walk through every level for a clip of ``frames`` x ``height`` x ``width`` pixels."""
        sizes, walk, channels = self._sizes, self._walk, self._sizes.channels[0]
        size = frames, height, width
        self._convolve(sizes.inputs, channels, size, padded=1)
        for level, wide in enumerate(sizes.channels):
            # The level's input is a variable of the encoder until the level is over.
            with walk.holding(_bytes(channels, *size)):
                self._residual(channels, wide, size)
                for _ in range(sizes.layers - 1):
                    with walk.holding(_bytes(wide, *size)):
                        self._residual(wide, wide, size)
                size = self._shrink(level, wide, size)
            channels = wide
        with walk.holding(_bytes(channels, *size)):
            self._normalise(channels, size)
            with walk.holding(_bytes(channels, *size)):
                self._convolve(channels, 2 * sizes.latents, size, padded=1)

    def _shrink(self, level: int, channels: int, size: tuple[int, int, int]) -> tuple[int, int, int]:
        """Return the size after the end of a level, whose convolution's padded input is a variable while it runs."""
        space, time = self._sizes.spatial[level], self._sizes.temporal[level]
        if space * time == 1:
            return size
        frames, height, width = size
        after = -(-frames // time), -(-height // space), -(-width // space)
        padded = _bytes(channels, frames, height + 1, width + 1) if space > 1 else 0
        both = _bytes(channels, frames + 2, height + space - 1, width + space - 1)
        with self._walk.holding(_bytes(channels, *size), padded, both):
            self._walk.at_once(_bytes(channels, *after))
        return after

    def _residual(self, inputs: int, outputs: int, size: tuple[int, int, int]) -> None:
        """An activation is alive while its convolution runs; the block's input is held by its caller to the end."""
        walk, before, after = self._walk, _bytes(inputs, *size), _bytes(outputs, *size)
        self._normalise(inputs, size)
        with walk.holding(before):
            self._convolve(inputs, outputs, size, padded=1)
        with walk.holding(after):
            self._normalise(outputs, size)
        with walk.holding(after):
            self._convolve(outputs, outputs, size, padded=1)
        walk.at_once(after, after, after if inputs != outputs else 0)

    def _normalise(self, channels: int, size: tuple[int, int, int]) -> None:
        """Frames go to the front, are normed, and go back; two at a time, as with the activation that follows."""
        values = _bytes(channels, *size)
        self._walk.at_once(values, values)

    def _convolve(self, inputs: int, outputs: int, size: tuple[int, int, int], *, padded: int) -> None:
        """Pad and convolve an input that somebody holds."""
        frames, height, width = size
        wider = height + 2 * padded, width + 2 * padded
        both = _bytes(inputs, frames + 2, *wider)
        self._walk.at_once(_bytes(inputs, frames, *wider), both)
        self._walk.at_once(both, _bytes(outputs, *size))


def _bytes(channels: int, *size: int) -> int:
    return channels * math.prod(size) * _FP32


def _item(setup: Setup) -> int:
    """Bytes of a value of what is decoded."""
    return _FP32 if setup.dtype == "fp32" else 2
