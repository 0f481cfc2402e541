"""What surrounds the video VAE's encoder: pictures into its pixel space, its posterior to normalised latents.

Promise: of what diffusers encodes (keyframes, references) the latents are its own, bit for bit: the posterior is
sampled under a generator of its own and rounded to fp16. Raises nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution

from .pixels import PIXEL_MEAN, PIXEL_STD

ENCODE_SEED = 42
"""Seed of a posterior's sample, whatever the request's seed: the same picture is always the same latent."""


def normalise_pixels(frames: torch.Tensor) -> torch.Tensor:
    """Return ``frames`` [1, 3, F, H, W] uint8 in the VAE's pixel space, fp32 on the same device."""
    mean = torch.tensor(PIXEL_MEAN, device=frames.device).view(1, -1, 1, 1, 1)
    std = torch.tensor(PIXEL_STD, device=frames.device).view(1, -1, 1, 1, 1)
    return (frames.to(torch.float32).div(255.0) - mean) / std


def sample_latents(vae: Any, moments: torch.Tensor) -> torch.Tensor:
    """Return normalised latents [1, C, t, h, w] fp32 on the CPU of the posterior ``moments`` [1, 2C, t, h, w]."""
    posterior = DiagonalGaussianDistribution(moments)
    sample = posterior.sample(generator=torch.Generator().manual_seed(ENCODE_SEED))
    mean = torch.tensor(vae.config.latents_mean).view(1, -1, 1, 1, 1)
    std = torch.tensor(vae.config.latents_std).view(1, -1, 1, 1, 1)
    # Rounded and normalised on the CPU, where division gives the same bits everywhere.
    latents: torch.Tensor = (sample.to(torch.float16).float().cpu() - mean) / std
    return latents
