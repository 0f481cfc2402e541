"""Stage ``decode_audio``: audio latents to a stereo waveform.

Promise: bit-equal up to 15 s to diffusers' decode on the same device, on a CPU with as many threads (its convolutions
add in another order with another number), equal to the rounding of fp32 beyond, and in bounded memory (`vae.sound`);
the audio VAE is on the device for that time alone. Raises what ``boundary`` raises, and `JobError` ``out_of_memory``.
"""

from __future__ import annotations

import torch

from ..vae.sound import decode_sound
from .base import StageContext


def decode_audio(ctx: StageContext, audio: torch.Tensor) -> torch.Tensor | None:
    """Decode ``audio`` [1, Ca, 2, A] (normalised); None on a rank without the audio VAE.

    Returns:
        The waveform [1, 2, N] fp32 in -1..1 with N = 800 A samples at the checkpoint's rate, on the rank's device.
    """
    assert ctx.vaes is not None
    ctx.boundary()
    waveform = decode_sound(ctx.vaes, audio)
    if waveform is not None:
        ctx.report(1, 1)
    return waveform
