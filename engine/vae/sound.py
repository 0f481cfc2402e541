"""Decoding and encoding sound with diffusers' audio VAE, on the rank that answers; the other ranks do nothing.

The VAE is mono: the two channels of a stereo sound are its batch, in their order. Promise: bit-equal to diffusers' for
sounds up to `sound_pieces.LONGEST_WHOLE`, 15 s. Longer ones are run in pieces of that length and equal diffusers' to
the rounding of fp32; they take the memory of 15 s, beside the result, 256 kB a second, and to encode what the encoder's
last block works on, in which each latent attends to all before it: 5 MB a second as released. The layers run slice by
slice (`sound_slices`), so that up to 15 s decoding grows by 15 MB a second as released. A class of VAE that the
checkpoint brings is run whole, as it is. When memory runs out, shorter pieces are tried with freed caches. Raises
`JobError` ``out_of_memory`` when that fails too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLMiniMaxH3Audio

from ..devices_memory import attempt, exhausted
from .crew import VaeCrew
from .sound_pieces import LONGEST_WHOLE, cut, decoder_reach, encoder_reach
from .sound_slices import sliced

_SHORT = LONGEST_WHOLE // 4
"""Latents of a piece when memory ran out."""


def decode_sound(crew: VaeCrew, latents: torch.Tensor, *, width: int = LONGEST_WHOLE) -> torch.Tensor | None:
    """Decode ``latents`` [1, Ca, 2, A] (normalised).

    Args:
        width: latents of a piece.

    Returns:
        [1, 2, 800 A] fp32 in -1..1 on the rank's device; None on a rank without the audio VAE.
    """

    def decode(vae: Any, width: int) -> torch.Tensor:
        mean, std = _statistics(vae, crew.mesh.device)
        channels = latents[0].to(crew.mesh.device, torch.float32).permute(1, 0, 2).contiguous()  # [2, Ca, A]
        return _decode(vae, channels * std + mean, width).float().permute(1, 0, 2)

    return _use(crew, decode, stage="decode_audio", width=width)


def encode_sound(crew: VaeCrew, waveform: torch.Tensor, *, width: int = LONGEST_WHOLE) -> torch.Tensor | None:
    """Encode ``waveform`` [1, 2, N] at the checkpoint's rate, -1..1; filled with silence to whole latents.

    Args:
        width: latents of a piece.

    Returns:
        the posterior's mean, normalised, [1, Ca, 2, ceil(N / 800)] fp32 on the CPU; None on a rank without the audio
        VAE.
    """

    def encode(vae: Any, width: int) -> torch.Tensor:
        channels = waveform[0].to(crew.mesh.device, torch.float32)[:, None]  # [2, 1, N]
        latents = _encode(vae, channels, width).float().cpu()  # [2, Ca, A]
        # Normalised on the CPU, where division gives the same bits everywhere.
        mean, std = _statistics(vae, latents.device)
        return ((latents - mean) / std).permute(1, 0, 2)[None].contiguous()

    return _use(crew, encode, stage="encode_media", width=width)


def _decode(vae: Any, latents: torch.Tensor, width: int) -> torch.Tensor:
    """Return the waveform [2, 1, N] of ``latents`` [2, Ca, A], denormalised."""
    total = latents.shape[-1]
    if total <= width or not isinstance(vae, AutoencoderKLMiniMaxH3Audio):
        whole: torch.Tensor = vae.decode(latents, return_dict=False)[0]
        return whole
    kept, hop = [], vae.hop_length
    for piece in cut(total, width=width, reach=decoder_reach(vae)):
        waveform = vae.decode(latents[..., piece.start : piece.end].contiguous(), return_dict=False)[0]
        kept.append(waveform[..., (piece.first - piece.start) * hop : (piece.last - piece.start) * hop])
    return torch.cat(kept, dim=-1)


def _encode(vae: Any, waveform: torch.Tensor, width: int) -> torch.Tensor:
    """Return the posterior's mean [2, Ca, A] of ``waveform`` [2, 1, N]."""
    if not isinstance(vae, AutoencoderKLMiniMaxH3Audio) or waveform.shape[-1] <= width * vae.hop_length:
        whole: torch.Tensor = vae.encode(waveform, return_dict=False)[0].mode()
        return whole
    hop = vae.hop_length
    samples = F.pad(waveform, (0, -waveform.shape[-1] % hop))
    kept = []
    for piece in cut(samples.shape[-1] // hop, width=width, reach=encoder_reach(vae)):
        trunk = vae.encoder(samples[..., piece.start * hop : piece.end * hop].contiguous())
        kept.append(trunk[..., piece.first - piece.start : piece.last - piece.start])
    # Each latent attends to all before it: here the sound is whole.
    mean: torch.Tensor = vae.mean_proj(vae.pre_block(torch.cat(kept, dim=-1).transpose(1, 2)).transpose(1, 2))
    return mean


def _statistics(vae: Any, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean and the standard deviation of the latents, each [1, Ca, 1]."""
    mean, std = (torch.tensor(values, device=device) for values in (vae.config.latents_mean, vae.config.latents_std))
    return mean.view(1, -1, 1), std.view(1, -1, 1)


def _use(crew: VaeCrew, call: Callable[[Any, int], torch.Tensor], *, stage: str, width: int) -> torch.Tensor | None:
    """Call with the audio VAE on the device; once more with freed caches and shorter pieces when memory ran out."""
    try:
        with crew.staging.bring("audio_vae", stage=stage) as vae, torch.no_grad():
            if vae is None:
                return None
            for latents in (width, min(width, _SHORT)):
                with sliced(vae):
                    made = attempt(partial(call, vae, latents))
                if made is not None:
                    return made
                crew.free()
            raise exhausted("a few seconds of sound at once", stage=stage, rank=crew.rank, held=crew.held())
    finally:
        crew.finish()
