"""Stage ``decode_video``: video latents to pictures, chunk by chunk.

Promise: the chunks, joined, are bit-equal to diffusers' decode; memory holds one chunk, whatever the length.
``boundary`` before each chunk on every rank, also on ranks without the VAE, which yield nothing. Raises what
``boundary`` raises.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..vae.chunks import count_chunks, decode_chunks
from ..vae.pixels import PIXEL_MEAN, PIXEL_STD
from .base import StageContext


def decode_video(ctx: StageContext, video: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the pictures of ``video`` [1, C, T, h, w] (normalised) in order.

    Yields:
        [f, H, W, 3] fp32 in 0..1, not yet rounded, on the rank's device; `count_chunks` (T) pieces.
    """
    total = count_chunks(video.shape[2])
    vae = ctx.models.vae
    if vae is None:
        for _ in range(total):
            ctx.boundary()
        return
    mean = torch.tensor(vae.config.latents_mean, device=ctx.device).view(1, -1, 1, 1, 1)
    std = torch.tensor(vae.config.latents_std, device=ctx.device).view(1, -1, 1, 1, 1)
    latents = video.to(ctx.device, torch.float32) * std + mean
    pixel_mean = torch.tensor(PIXEL_MEAN, device=ctx.device).view(1, -1, 1, 1, 1)
    pixel_std = torch.tensor(PIXEL_STD, device=ctx.device).view(1, -1, 1, 1, 1)
    for index, pixels in enumerate(decode_chunks(vae, latents, before_chunk=ctx.boundary)):
        frames = (pixels.float() * pixel_std + pixel_mean).clamp(0, 1)  # [1, 3, f, H, W]
        yield frames[0].permute(1, 2, 3, 0).contiguous()
        ctx.report(index + 1, total)


def to_uint8(frames: torch.Tensor) -> torch.Tensor:
    """Round pictures 0..1 to bytes as diffusers does (half to even); what is not a number becomes 0."""
    return (frames.nan_to_num(nan=0.0) * 255).round().to(torch.uint8)
