"""Peaks of decoding and encoding sound, walked through diffusers' audio VAE; all of a sound goes at once.

torch's weight_norm makes each convolution's weight anew when it runs and keeps it, so that weights gather beside the
activations while a forward goes on. What a convolution's library takes for itself is not counted.
"""

from __future__ import annotations

import math

from .contract import geometry
from .planner_sizes import AudioVaeSizes
from .planner_walk import Walk
from .planner_weights import ServedModel

_FP32 = 4
_NORMED = "weight_v"
"""The end of the name of a weight under weight_norm."""


def decode_sound_peak(model: ServedModel, latents: int) -> int:
    """Return the bytes that decoding ``latents`` of each channel allocates at its peak.

    That is in the last level's residual blocks, which run at twice the rate inside their activations: three tensors of
    that rate beside the level's input, the sum so far, the block before, its own state and what its first convolution
    made: eleven of the level's tensors with three blocks side by side.
    """
    sizes = AudioVaeSizes.of(model.configs["audio_vae"])
    walk = Walk()
    length, width = latents, sizes.decoder
    weights = _made(model, "dec_in_proj.", "decoder.conv_pre.")
    before = _bytes(width, length)
    walk.at_once(weights, _bytes(sizes.trunk, length), before)
    several = len(sizes.blocks)
    for level, rate in enumerate(sizes.rates):
        length, width = length * rate, width // 2
        blocks = (f"decoder.resblocks.{level * several + place}." for place in range(several))
        weights += _made(model, f"decoder.ups.{level}.", *blocks)
        state = _bytes(width, length)
        with walk.holding(weights):
            walk.at_once(before, state)
            # What the block before this one gave is a variable still, at the first of a level too.
            with walk.holding(state, max(min(several - 1, 2) * state, before if level else 0)):
                deeper = any(len(dilations) > 1 for _, dilations in sizes.blocks)
                with walk.holding(state, state if deeper else 0):
                    _activate(walk, state)
        before = state
    with walk.holding(weights, before):
        _activate(walk, before)
    return walk.peak


def _activate(walk: Walk, state: int) -> None:
    """An activation at twice the rate: brought there (padded, doubled, scaled), three tensors there, brought back."""
    walk.at_once(state, 2 * state, 2 * state)
    walk.at_once(2 * state, 2 * state, 2 * state)
    walk.at_once(2 * state, 2 * state, state)


def encode_sound_peak(model: ServedModel, latents: int) -> int:
    """Return the bytes that encoding a sound of ``latents`` of each channel allocates at its peak.

    That is in a residual unit of the first levels: the level's input, the unit's, and three of an activation.
    """
    sizes = AudioVaeSizes.of(model.configs["audio_vae"])
    walk = Walk()
    samples = _bytes(1, latents * geometry.SAMPLES_PER_AUDIO_LATENT)
    length, width = latents * math.prod(sizes.strides), sizes.encoder
    weights = _made(model, "encoder.block.0.")
    with walk.holding(samples):
        walk.at_once(weights, _bytes(width, length))
        for level, stride in enumerate(sizes.strides, 1):
            state = _bytes(width, length)
            weights += _made(model, f"encoder.block.{level}.")
            length, width = length // stride, 2 * width
            with walk.holding(weights, state, state):
                walk.at_once(state, state, state)
                walk.at_once(_bytes(width, length))
        weights += _made(model, f"encoder.block.{len(sizes.strides) + 2}.")
        walk.at_once(weights, _bytes(width, length), _bytes(sizes.trunk, length))
    return walk.peak


def _made(model: ServedModel, *prefixes: str) -> int:
    """Return the bytes of the weights that weight_norm makes of the tensors whose names begin with ``prefixes``."""
    shapes = model.shapes["audio_vae"].items()
    found = (shape for name, shape in shapes if name.startswith(prefixes) and name.endswith(_NORMED))
    return sum(math.prod(shape) for shape in found) * _FP32


def _bytes(channels: int, length: int) -> int:
    """Bytes of [2, channels, length]: the two channels of a stereo sound are a batch."""
    return geometry.AUDIO_CHANNELS * channels * length * _FP32
