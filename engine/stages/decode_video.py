"""Stage ``decode_video``: video latents to pictures, chunk by chunk.

Promise: the chunks, joined, are bit-equal to diffusers' decode with the same tiles, on any number of ranks; memory
holds one chunk, its tiles and one round of tiles, whatever the length. All ranks that hold the VAE decode; rank 0
yields each chunk while the others work on the next, the other ranks yield nothing. ``boundary`` before each round of
tiles on every rank. The VAE is on the device until the iterator ends, fails or is closed. Raises what ``boundary``
raises, and `JobError` ``out_of_memory`` naming what holds the memory, after all was tried once more with freed caches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from ..vae.chunks import count_chunks
from ..vae.pixels import PIXEL_MEAN, PIXEL_STD
from ..vae.spread import decode_frames
from .base import StageContext


def decode_video(ctx: StageContext, video: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the pictures of ``video`` [1, C, T, h, w] (normalised) in order; every rank calls it with the same.

    Yields:
        [f, H, W, 3] fp32 in 0..1, not yet rounded, on the rank's device; `count_chunks` (T) pieces on rank 0.
    """
    assert ctx.vaes is not None
    total = count_chunks(video.shape[2])
    latents = ctx.vaes.room.make(partial(_denormalised, ctx, video), what="the latents", stage="decode_video")
    ratio = ctx.models.facts.spatial_ratio
    pieces = decode_frames(ctx.vaes, latents, boundary=ctx.boundary, ratio=ratio, convert=_to_pictures)
    for index, frames in enumerate(pieces):
        yield frames
        ctx.report(index + 1, total)


def _denormalised(ctx: StageContext, video: torch.Tensor) -> torch.Tensor:
    """Return the latents ``video`` on the rank's device as the VAE takes them; as they are on a rank without it."""
    latents = video.to(ctx.device, torch.float32)
    vae = ctx.models.vae
    if vae is None:
        return latents
    std, mean = (_channels(values, latents) for values in (vae.config.latents_std, vae.config.latents_mean))
    return latents * std + mean


def _to_pictures(pixels: torch.Tensor) -> torch.Tensor:
    """Return ``pixels`` [1, 3, f, H, W] of the VAE's pixel space as [f, H, W, 3] fp32 in 0..1."""
    frames = (pixels.float() * _channels(PIXEL_STD, pixels)).add_(_channels(PIXEL_MEAN, pixels)).clamp_(0, 1)
    return frames[0].permute(1, 2, 3, 0).contiguous()


def _channels(values: Sequence[float], like: torch.Tensor) -> torch.Tensor:
    """Return ``values``, one a channel, as [1, C, 1, 1, 1] on the device of ``like``."""
    return torch.tensor(values, device=like.device).view(1, -1, 1, 1, 1)


def to_uint8(frames: torch.Tensor) -> torch.Tensor:
    """Round pictures 0..1 to bytes as diffusers does (half to even); what is not a number becomes 0."""
    return frames.nan_to_num(nan=0.0).mul_(255).round_().to(torch.uint8)
