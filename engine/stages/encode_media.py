"""Stage ``encode_media``: prepared pictures and sound to normalised latents.

Promise: keyframes and references come out as diffusers encodes them, bit for bit; ``boundary`` before each encoding on
every rank, ``report`` after each medium. Raises what ``boundary`` raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..contract import geometry
from ..vae.encode import encode_pixels, encode_waveform, sample_latents
from .base import Prepared, StageContext


@dataclass(frozen=True)
class EncodedMedium:
    """Normalised fp32 latents on the CPU: ``video`` [1, C, t, h, w] and ``audio`` [1, Ca, 2, a], or None."""

    video: torch.Tensor | None = None
    audio: torch.Tensor | None = None


def encode_media(ctx: StageContext, media: Sequence[Prepared]) -> list[EncodedMedium] | None:
    """Encode ``media`` in order; None on a rank without the VAEs.

    Of a clip the first 17k+5 frames are used, of fewer than 5 the first.
    """
    found = []
    for number, medium in enumerate(media, 1):
        video = None if medium.frames is None else _encode_frames(ctx, medium.frames)
        audio = None if medium.waveform is None else _encode_sound(ctx, medium.waveform)
        found.append(EncodedMedium(video, audio))
        ctx.report(number, len(media))
    return None if ctx.models.vae is None else found


def _encode_frames(ctx: StageContext, frames: torch.Tensor) -> torch.Tensor | None:
    vae = ctx.models.vae
    used = frames[: geometry.floor_frames(frames.shape[0])]
    moments = encode_pixels(vae, used, boundary=ctx.boundary)
    return None if moments is None else sample_latents(vae, moments)


def _encode_sound(ctx: StageContext, waveform: torch.Tensor) -> torch.Tensor | None:
    ctx.boundary()
    audio_vae = ctx.models.audio_vae
    return None if audio_vae is None else encode_waveform(audio_vae, waveform)
