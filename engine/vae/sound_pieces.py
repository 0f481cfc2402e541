"""How a long sound is cut into pieces that the audio VAE runs one by one, so that memory does not grow with its length.

The VAE's convolutions reach over a known number of latents: a piece that brings so many of its neighbours' on each side
gives the whole's values. Not always the last bit of them: a CPU's convolutions add in an order that depends on the
length (oneDNN's transposed ones with AVX-512, with AVX2 the others too), so that sounds up to `LONGEST_WHOLE` are never
cut. Pure functions; raises nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..contract import geometry

LONGEST_WHOLE = geometry.audio_latents(geometry.TRAINED_MAX_FRAMES)
"""Latents of a sound, 603 or 15 s, that is run at once; of a longer one, of each piece."""


@dataclass(frozen=True)
class Piece:
    """Latents ``start`` to ``end`` of a sound are run; of the result ``first`` to ``last`` are used."""

    start: int
    end: int
    first: int
    last: int


def cut(total: int, *, width: int, reach: int) -> list[Piece]:
    """Cut ``total`` latents into pieces that are alike, so that all are run by the same kernels.

    Args:
        width: latents of a piece, but at least four times ``reach``; a shorter sound is one piece.
        reach: latents on either side that a latent's result depends on.
    """
    width = max(width, 4 * reach)
    if total <= width:
        return [Piece(0, total, 0, total)]
    pieces: list[Piece] = []
    done = 0
    while done < total:
        start = min(max(0, done - reach), total - width)
        end = start + width
        last = total if end == total else end - reach
        pieces.append(Piece(start, end, done, last))
        done = last
    return pieces


def decoder_reach(vae: Any) -> int:
    """Return how many latents on either side a decoded sample depends on, at most (`AutoencoderKLMiniMaxH3Audio`)."""
    decoder = vae.decoder
    per_stage = len(decoder.resblocks) // len(decoder.ups)
    rate, reach = 1, float(reach_of(decoder.conv_pre))
    for stage, (up,) in enumerate(decoder.ups):
        reach += math.ceil(up.kernel_size[0] / up.stride[0]) / rate
        rate *= up.stride[0]
        # The blocks of a stage stand side by side.
        reach += max(map(reach_of, decoder.resblocks[stage * per_stage : (stage + 1) * per_stage])) / rate
    return math.ceil(reach + (reach_of(decoder.activation_post) + reach_of(decoder.conv_post)) / rate)


def encoder_reach(vae: Any) -> int:
    """Return how many latents' samples on either side the encoder's trunk reads for one latent, at most."""
    samples, reach = 1, 0
    for convolution in _convolutions(vae.encoder):
        reach += convolution.padding[0] * samples
        samples *= convolution.stride[0]
    return math.ceil(reach / samples)


def _convolutions(module: nn.Module) -> list[Any]:
    return [part for part in module.modules() if isinstance(part, nn.Conv1d)]


def reach_of(module: nn.Module) -> int:
    """Return the samples, at a module's own rate, on either side that it reads in all."""
    # Activations resample: up by a stride and down again, each through a filter at the higher rate.
    filters: list[Any] = [part for part in module.modules() if hasattr(part, "filter")]
    resampled: int = sum(math.ceil(part.filter.shape[-1] / (2 * part.stride)) for part in filters)
    convolved: int = sum(part.padding[0] for part in _convolutions(module))
    return convolved + resampled
