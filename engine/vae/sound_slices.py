"""The audio VAE's layers run slice by slice over time, with the bits of the whole, so that they take little memory.

What takes memory in diffusers' audio VAE is less the sound than what its layers hold while they run: an activation
works at twice the rate, and a CPU's convolutions fill few channels up to a block (two to sixteen with AVX-512): up to
24 times the input. Inside `sliced` these give their result slice by slice: the activations everywhere, and on a CPU
with AVX-512 the convolutions of fewer channels than a block, which add in the same order there whatever the length. All
other convolutions run whole: over another length they may add in another order. So what grows with the sound is the
layers' results and what a whole convolution's library makes of its own. Raises nothing of its own; the layers' own code
is back when the block ends, whatever happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from diffusers import AutoencoderKLMiniMaxH3Audio
from diffusers.models.autoencoders.autoencoder_kl_minimax_h3_audio import (
    MiniMaxH3AudioActivation1d,
    MiniMaxH3AudioSnake1d,
)
from torch import nn

from ..contract.limits import SOUND_SLICE_BYTES
from ..devices import convolves_with_avx512
from .sound_pieces import reach_of

_LEAST = 256
"""Samples of a slice: fewer would be mostly what slices share."""
_BLOCK = 16
"""Channels in a block of AVX-512."""


@contextmanager
def sliced(vae: nn.Module) -> Iterator[None]:
    """Have the layers of ``vae`` run slice by slice inside the block; of a class that is not diffusers', none."""
    known = isinstance(vae, AutoencoderKLMiniMaxH3Audio)
    layers = [layer for layer in vae.modules() if _can_be_sliced(layer)] if known else []
    try:
        for layer in layers:
            layer.forward = partial(_in_slices, layer.forward, reach_of(layer))
        yield
    finally:
        for layer in layers:
            # The class's own is found again.
            vars(layer).pop("forward", None)


def _can_be_sliced(layer: nn.Module) -> bool:
    """Whether ``layer`` gives the whole's bits in slices."""
    if isinstance(layer, (MiniMaxH3AudioActivation1d, MiniMaxH3AudioSnake1d)):
        return True
    if not isinstance(layer, nn.Conv1d) or layer.stride != (1,):
        return False
    few = max(layer.in_channels, layer.out_channels) < _BLOCK
    return few and convolves_with_avx512(next(layer.parameters()).device)


def _in_slices(whole: Callable[[torch.Tensor], torch.Tensor], reach: int, hidden: torch.Tensor) -> torch.Tensor:
    """Return what ``whole`` makes of ``hidden`` [2, C, L], of which it reads ``reach`` samples to either side.

    Returns:
        [2, C', L], the bits of ``whole(hidden)``.
    """
    length = hidden.shape[-1]
    step = max(_LEAST, SOUND_SLICE_BYTES * length // max(1, hidden.nbytes))
    if length <= step:
        return whole(hidden)
    made: torch.Tensor | None = None
    for start in range(0, length, step):
        end = min(start + step, length)
        first, last = max(0, start - reach), min(end + reach, length)
        part = whole(hidden[..., first:last].contiguous())[..., start - first : end - first]
        if made is None:
            made = part.new_empty((*part.shape[:-1], length))
        made[..., start:end] = part
    assert made is not None
    return made
