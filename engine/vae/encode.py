"""Encoding pictures and sound with diffusers' VAEs into normalised latents.

Promise: of what diffusers encodes (keyframes, references) the latents are its own, bit for bit: the posterior is
sampled under a generator of its own and rounded to fp16, sound takes the posterior's mean. The VAEs' settings, tiling
included, are as they were, whatever happens. Raises what ``boundary`` raises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution

from .pixels import PIXEL_MEAN, PIXEL_STD

ENCODE_SEED = 42
"""Seed of a posterior's sample, whatever the request's seed: the same picture is always the same latent."""


@torch.no_grad()
def encode_pixels(vae: Any, pixels: torch.Tensor, *, boundary: Callable[[], None]) -> torch.Tensor | None:
    """Return the moments of ``pixels``; every rank calls it with the same, the rank that holds the VAE encodes.

    Args:
        vae: diffusers' ``AutoencoderKLMiniMaxH3``; None on a rank without it.
        pixels: [F, H, W, 3] uint8; one frame takes the spatial path alone.
        boundary: called once before the encoding.

    Returns:
        [1, 2C, t, H/16, W/16] on the VAE's device, or None.
    """
    boundary()
    if vae is None:
        return None
    device = vae.quant_conv.weight.device
    mean = torch.tensor(PIXEL_MEAN, device=device).view(1, -1, 1, 1, 1)
    std = torch.tensor(PIXEL_STD, device=device).view(1, -1, 1, 1, 1)
    frames = pixels.to(device).permute(3, 0, 1, 2)[None].to(torch.float32).div(255.0)
    moments: torch.Tensor = vae.encode((frames - mean) / std, return_dict=False)[0].parameters
    return moments


def sample_latents(vae: Any, moments: torch.Tensor) -> torch.Tensor:
    """Return normalised latents [1, C, t, h, w] fp32 on the CPU of the posterior ``moments`` [1, 2C, t, h, w]."""
    posterior = DiagonalGaussianDistribution(moments)
    sample = posterior.sample(generator=torch.Generator().manual_seed(ENCODE_SEED))
    mean = torch.tensor(vae.config.latents_mean).view(1, -1, 1, 1, 1)
    std = torch.tensor(vae.config.latents_std).view(1, -1, 1, 1, 1)
    # Rounded and normalised on the CPU, where division gives the same bits everywhere.
    latents: torch.Tensor = (sample.to(torch.float16).float().cpu() - mean) / std
    return latents


@torch.no_grad()
def encode_waveform(audio_vae: Any, waveform: torch.Tensor) -> torch.Tensor:
    """Return normalised latents [1, Ca, 2, ceil(N / 800)] fp32 on the CPU of ``waveform`` [2, N] fp32 at 32 kHz."""
    device = next(audio_vae.parameters()).device
    # The VAE is mono: the two channels are its batch. [2, N] -> [2, 1, N]
    posterior = audio_vae.encode(waveform.to(device)[:, None], return_dict=False)[0]
    latents = posterior.mode().float().cpu()  # [2, Ca, a]
    mean = torch.tensor(audio_vae.config.latents_mean).view(1, -1, 1)
    std = torch.tensor(audio_vae.config.latents_std).view(1, -1, 1)
    normalised: torch.Tensor = (latents - mean) / std
    return normalised.permute(1, 0, 2)[None].contiguous()
