"""Stage ``decode_audio``: audio latents to a stereo waveform.

Promise: bit-equal to diffusers' decode. Raises what ``boundary`` raises.
"""

from __future__ import annotations

import torch

from .base import StageContext


@torch.no_grad()
def decode_audio(ctx: StageContext, audio: torch.Tensor) -> torch.Tensor | None:
    """Decode ``audio`` [1, Ca, 2, A] (normalised); None on a rank without the audio VAE.

    Returns:
        The waveform [1, 2, N] fp32 in -1..1 with N = 800 A samples at the checkpoint's rate, on the rank's device.
    """
    ctx.boundary()
    vae = ctx.models.audio_vae
    if vae is None:
        return None
    mean = torch.tensor(vae.config.latents_mean, device=ctx.device).view(1, -1, 1)
    std = torch.tensor(vae.config.latents_std, device=ctx.device).view(1, -1, 1)
    # The VAE is mono: the two channels are its batch. [1, Ca, 2, A] -> [2, Ca, A]
    channels = audio[0].to(ctx.device, torch.float32).permute(1, 0, 2).contiguous()
    waveform: torch.Tensor = vae.decode(channels * std + mean, return_dict=False)[0]  # [2, 1, N]
    ctx.report(1, 1)
    return waveform.float().permute(1, 0, 2)
