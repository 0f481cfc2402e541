"""Stage ``encode_media``: prepared pictures and sound to normalised latents.

Promise: keyframes and references come out as diffusers encodes them, bit for bit (sound on a CPU with as many
threads); ``boundary`` before each encoding on every rank, ``report`` after each medium. Raises what ``boundary``
raises, and `JobError` ``out_of_memory``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from ..contract import geometry
from ..vae.encode import normalise_pixels, sample_latents
from ..vae.sound import encode_sound
from ..vae.spread import encode_pixels
from .base import Prepared, StageContext


@dataclass(frozen=True)
class EncodedMedium:
    """Normalised fp32 latents on the CPU: ``video`` [1, C, t, h, w] and ``audio`` [1, Ca, 2, a], or None."""

    video: torch.Tensor | None = None
    audio: torch.Tensor | None = None


def encode_media(ctx: StageContext, media: Sequence[Prepared]) -> list[EncodedMedium] | None:
    """Encode ``media`` in order; every rank calls it with the same. None on ranks that do not answer.

    Of a clip the first 17k+5 frames are used, of fewer than 5 the first.
    """
    found = []
    for number, medium in enumerate(media, 1):
        video = None if medium.frames is None else _encode_frames(ctx, medium.frames)
        audio = None if medium.waveform is None else _encode_sound(ctx, medium.waveform)
        found.append(EncodedMedium(video, audio))
        ctx.report(number, len(media))
    return found if ctx.vaes is not None and ctx.vaes.answers else None


def _encode_frames(ctx: StageContext, frames: torch.Tensor) -> torch.Tensor | None:
    assert ctx.vaes is not None
    used = frames[: geometry.floor_frames(frames.shape[0])].permute(3, 0, 1, 2)[None]
    ratio = ctx.models.facts.spatial_ratio
    moments = encode_pixels(ctx.vaes, used, boundary=ctx.boundary, ratio=ratio, prepare=normalise_pixels)
    if moments is None:
        return None
    sample = partial(sample_latents, ctx.models.vae, moments)
    return ctx.vaes.room.make(sample, what="the sampled latents", stage="encode_media")


def _encode_sound(ctx: StageContext, waveform: torch.Tensor) -> torch.Tensor | None:
    assert ctx.vaes is not None
    ctx.boundary()
    return encode_sound(ctx.vaes, waveform[None])
