"""Peaks of decoding and encoding sound, walked through diffusers' audio VAE, its activations slice by slice.

Of a sound longer than is run at once, each piece takes that. torch's weight_norm makes each convolution's weight anew
when it runs and keeps it, so that weights gather beside the activations while a forward goes on. What a convolution's
library takes for itself is not counted.
"""

from __future__ import annotations

import math

from ..contract import geometry
from ..contract.limits import SOUND_SLICE_BYTES
from .sizes import AudioVaeSizes
from .walk import Walk
from .weights import ServedModel

_FP32 = 4
_NORMED = "weight_v"
"""The end of the name of a weight under weight_norm."""
_AT_ONCE = geometry.audio_latents(geometry.TRAINED_MAX_FRAMES)


def decode_sound_peak(model: ServedModel, latents: int) -> int:
    """Return the bytes that decoding ``latents`` of each channel allocates at its peak.

    That is in a convolution of the last level's residual blocks: its input and result beside the level's input, the sum
    so far, the block before, its own state and what its convolution before made, seven of the level's tensors with
    three blocks side by side. Of a short sound it is in a slice of an activation, or in the first levels' weights.
    """
    sizes = AudioVaeSizes.of(model.configs["audio_vae"])
    walk = Walk()
    length, width = min(latents, _AT_ONCE), sizes.decoder
    weights = _made(model, "dec_in_proj.", "decoder.conv_pre.")
    before = _bytes(width, length)
    walk.at_once(weights, _bytes(sizes.trunk, length), before)
    several = len(sizes.blocks)
    # Until a level has summed its own blocks, the sum and the last block of the one before it are variables still.
    left = 0
    for level, rate in enumerate(sizes.rates):
        length, width = length * rate, width // 2
        blocks = (f"decoder.resblocks.{level * several + place}." for place in range(several))
        weights += _made(model, f"decoder.ups.{level}.", *blocks)
        state = _bytes(width, length)
        with walk.holding(weights):
            walk.at_once(before, left, state)
            with walk.holding(state, max(min(several - 1, 2) * state, left)):
                deeper = any(len(dilations) > 1 for _, dilations in sizes.blocks)
                with walk.holding(state, state if deeper else 0):
                    _activate(walk, state)
                    walk.at_once(state, state)
        before, left = state, min(several, 2) * state
    with walk.holding(weights, before, left):
        _activate(walk, before)
    return walk.peak + _pieces_bytes(latents)


def _activate(walk: Walk, state: int) -> None:
    """An activation at twice the rate: brought there (padded, doubled, scaled), three tensors there, brought back."""
    part = min(state, SOUND_SLICE_BYTES)
    # The result of all slices, and the one that is worked on.
    with walk.holding(*((state, part) if part < state else ())):
        walk.at_once(part, 2 * part, 2 * part)
        walk.at_once(2 * part, 2 * part, 2 * part)
        walk.at_once(2 * part, 2 * part, part)


def _pieces_bytes(latents: int) -> int:
    """Return what the waveforms of a sound in pieces take while they are joined."""
    return 2 * _bytes(1, latents * geometry.SAMPLES_PER_AUDIO_LATENT) if latents > _AT_ONCE else 0


def encode_sound_peak(model: ServedModel, latents: int) -> int:
    """Return the bytes that encoding a sound of ``latents`` of each channel allocates at its peak.

    That is in an activation of the first levels' residual units: the level's input, the unit's, its own, what was made
    of that, and a slice.
    """
    sizes = AudioVaeSizes.of(model.configs["audio_vae"])
    walk = Walk()
    samples = _bytes(1, latents * geometry.SAMPLES_PER_AUDIO_LATENT)
    length, width = min(latents, _AT_ONCE) * math.prod(sizes.strides), sizes.encoder
    weights = _made(model, "encoder.block.0.")
    with walk.holding(samples):
        walk.at_once(weights, _bytes(width, length))
        for level, stride in enumerate(sizes.strides, 1):
            state = _bytes(width, length)
            weights += _made(model, f"encoder.block.{level}.")
            length, width = length // stride, 2 * width
            part = min(state, SOUND_SLICE_BYTES)
            with walk.holding(weights, state, state):
                walk.at_once(state, state)
                # The unit's first convolution gave what the second activation reads.
                walk.at_once(state, part, part, *((state, part) if part < state else ()))
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
