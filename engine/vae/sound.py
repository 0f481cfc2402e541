"""Decoding and encoding sound with diffusers' audio VAE, on the rank that answers; the other ranks do nothing.

The VAE is mono: the two channels of a stereo sound are its batch, in their order. Promise: bit-equal to diffusers'.
Raises `JobError` ``out_of_memory`` when there is no room even after the caches were freed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..devices_memory import attempt, exhausted
from .crew import VaeCrew


def decode_sound(crew: VaeCrew, latents: torch.Tensor) -> torch.Tensor | None:
    """Decode ``latents`` [1, Ca, 2, A] (normalised).

    Returns:
        [1, 2, 800 A] fp32 in -1..1 on the rank's device; None on a rank without the audio VAE.
    """

    def decode(vae: Any) -> torch.Tensor:
        mean, std = _statistics(vae, crew.mesh.device)
        channels = latents[0].to(crew.mesh.device, torch.float32).permute(1, 0, 2).contiguous()  # [2, Ca, A]
        waveform: torch.Tensor = vae.decode(channels * std + mean, return_dict=False)[0]  # [2, 1, N]
        return waveform.float().permute(1, 0, 2)

    return _use(crew, decode, stage="decode_audio")


def encode_sound(crew: VaeCrew, waveform: torch.Tensor) -> torch.Tensor | None:
    """Encode ``waveform`` [1, 2, N] at the checkpoint's rate, -1..1; filled with silence to whole latents.

    Returns:
        the posterior's mean, normalised, [1, Ca, 2, ceil(N / 800)] fp32 on the CPU; None on a rank without the audio
        VAE.
    """

    def encode(vae: Any) -> torch.Tensor:
        channels = waveform[0].to(crew.mesh.device, torch.float32)[:, None]  # [2, 1, N]
        latents: torch.Tensor = vae.encode(channels, return_dict=False)[0].mode().float().cpu()  # [2, Ca, A]
        # Normalised on the CPU, where division gives the same bits everywhere.
        mean, std = _statistics(vae, latents.device)
        return ((latents - mean) / std).permute(1, 0, 2)[None].contiguous()

    return _use(crew, encode, stage="encode_media")


def _statistics(vae: Any, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean and the standard deviation of the latents, each [1, Ca, 1]."""
    mean, std = (torch.tensor(values, device=device) for values in (vae.config.latents_mean, vae.config.latents_std))
    return mean.view(1, -1, 1), std.view(1, -1, 1)


def _use(crew: VaeCrew, call: Callable[[Any], torch.Tensor], *, stage: str) -> torch.Tensor | None:
    """Call with the audio VAE on the device; once more with freed caches when memory ran out."""
    try:
        with crew.staging.bring("audio_vae", stage=stage) as vae, torch.no_grad():
            if vae is None:
                return None
            for _ in range(2):
                made = attempt(lambda: call(vae))
                if made is not None:
                    return made
                crew.free()
            raise exhausted("the whole sound at once", stage=stage, rank=crew.rank, held=crew.held())
    finally:
        crew.finish()
