"""Operations of every forward, as closed forms: two for each product of a matrix, a convolution or attention.

Norms, activations and rotations are not counted: they move memory rather than compute. Promise: of the transformer they
are what ``torch.utils.flop_counter`` counts, exactly. Torch-free; raises nothing.
"""

from __future__ import annotations

import math

from ..contract import geometry
from ..placement_modulation import FACTORS, MODALITIES
from .activations_transformer import RankRows, transformer_sizes
from .activations_vae import LOOK_AHEAD, TileCount
from .request import MediumSize, RequestSize
from .sizes import AudioVaeSizes, TextSizes, TransformerSizes, VaeSizes, VisionSizes
from .weights import ServedModel, Setup


def transformer_flops(model: ServedModel, setup: Setup, rows: RankRows, *, tables: bool) -> int:
    """Return the operations of one forward on one rank.

    With N rows of this rank, L text rows, S used rows, C the width, I = heads x head_dim, F the feed-forward's width, T
    ranks that share each layer: a block takes N * 2 * (4 C I + 3 C F) / T, and attention 4 * S * I / T for each query.

    Args:
        tables: whether the modulation comes from tables.
    """
    sizes, ranks = transformer_sizes(model), setup.parallel.tp_degree
    embedded = rows.video * sizes.video_width + rows.audio * sizes.audio_width + rows.whole_text * sizes.text_dim
    heads = rows.mine * (sizes.video_width + sizes.audio_width)
    times = rows.levels * (sizes.freq_dim * sizes.time_hidden + sizes.time_hidden * sizes.time_dim)
    modulation = rows.levels * sizes.time_dim * sizes.hidden
    modulated = 2 * modulation + (0 if tables else sizes.layers * FACTORS * MODALITIES * modulation // ranks)
    layers = sizes.layers * rows.mine + sizes.refiner_layers * rows.whole_text
    products = (embedded + heads) * sizes.hidden + times + modulated + layers * _block_products(sizes) // ranks
    text = sizes.refiner_layers * rows.whole_text**2 * sizes.inner // ranks
    return 2 * products + 4 * (sizes.layers * attention_products(sizes, rows) + text)


def _block_products(sizes: TransformerSizes) -> int:
    """Products of one row in one block."""
    return 4 * sizes.hidden * sizes.inner + 3 * sizes.hidden * sizes.ffn


def attention_products(sizes: TransformerSizes, rows: RankRows) -> int:
    """Products of queries and keys of one block on this rank: its block of rows by all used rows, its heads."""
    queries, keys = sum(rows.ulysses_rows), sum(rows.ring_blocks)
    return queries * keys * rows.heads[rows.ulysses_index] * sizes.head_dim


def text_encoder_flops(model: ServedModel, setup: Setup, request: RequestSize) -> int:
    """Return the operations of encoding the prompt on one of the ranks that share the text encoder."""
    config = model.configs["text_encoder"]
    text, vision = TextSizes.of(config), VisionSizes.of(config)
    rows, ranks = request.text_rows, setup.parallel.text_encoder_tp_degree
    attended = text.heads * text.head_dim
    layer = 2 * text.hidden * (attended + text.kv_heads * text.head_dim) + 3 * text.hidden * text.ffn
    language = text.layers * (2 * rows * layer + 4 * rows**2 * attended) // ranks
    return language + _vision_flops(vision, request)


def _vision_flops(sizes: VisionSizes, request: RequestSize) -> int:
    patches = request.vision_patches
    block = 4 * sizes.hidden**2 + 2 * sizes.hidden * sizes.ffn
    merged = sizes.hidden * sizes.merged
    mergers = (1 + len(sizes.deepstack)) * (merged**2 + merged * sizes.out) // sizes.merged
    products = sizes.hidden * math.prod(sizes.patch) + sizes.depth * block + mergers
    # A picture, or two frames of a clip, attend to themselves alone.
    pairs = sum(time * (height * width) ** 2 for time, height, width in request.vision)
    return 2 * patches * products + 4 * sizes.depth * pairs * sizes.hidden


def decode_tile_flops(model: ServedModel, tiles: TileCount) -> int:
    """Return the operations of decoding one tile of one chunk."""
    sizes = VaeSizes.of(model.configs["vae"])
    cells = (geometry.LATENTS_PER_CHUNK + LOOK_AHEAD) * tiles.height * tiles.width // sizes.ratio**2
    tokens = cells + sizes.registers + 1
    block = 2 * tokens * (4 * sizes.width**2 + 3 * sizes.width * sizes.ffn) + 4 * tokens**2 * sizes.width
    ends = cells * sizes.latents * (sizes.width + sizes.latents) + tokens * sizes.width * sizes.patch
    return sizes.depth * block + 2 * ends


def encode_tile_flops(model: ServedModel, tiles: TileCount, medium: MediumSize) -> int:
    """Return the operations of encoding one tile of one clip of ``medium``."""
    sizes = VaeSizes.of(model.configs["vae"])
    assert medium.video is not None
    frames = 1 if medium.video[0] == 1 else geometry.FRAMES_PER_CHUNK
    height, width, before, taps = tiles.height, tiles.width, sizes.channels[0], 27
    products = taps * sizes.inputs * before * frames * height * width
    for level, channels in enumerate(sizes.channels):
        first = taps * channels * (before + channels) + (before * channels if before != channels else 0)
        block = first + (sizes.layers - 1) * 2 * taps * channels**2
        products += block * frames * height * width
        space, time = sizes.spatial[level], sizes.temporal[level]
        if space * time > 1:
            frames, height, width = -(-frames // time), -(-height // space), -(-width // space)
            products += taps * channels**2 * frames * height * width
        before = channels
    ends = taps * before * 2 * sizes.latents + (2 * sizes.latents) ** 2
    return 2 * (products + ends * frames * height * width)


def decode_sound_flops(model: ServedModel, latents: int) -> int:
    """Return the operations of decoding ``latents`` of each channel, the filters of the activations left out."""
    sizes = AudioVaeSizes.of(model.configs["audio_vae"])
    width, length = sizes.decoder, latents
    products = length * sizes.trunk * (sizes.latents + 7 * width)
    for rate, kernel in zip(sizes.rates, sizes.kernels, strict=True):
        products += length * width * width // 2 * kernel
        width, length = width // 2, length * rate
        taps = sum(2 * size * len(dilations) for size, dilations in sizes.blocks)
        products += length * width**2 * taps
    return 2 * geometry.AUDIO_CHANNELS * (products + 7 * length * width)
