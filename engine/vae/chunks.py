"""Decoding a latent video chunk by chunk with diffusers' video VAE.

Promise: the pieces, joined, are bit-equal to ``AutoencoderKLMiniMaxH3.decode`` for every length that it decodes (3
latent frames and more), and shorter videos decode too; one chunk and the overlap into the next are held at a time.
Tiling stays as the VAE ships it. Raises what ``before_chunk`` raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..contract import geometry

_OVERLAP = 2
"""Latent frames that each chunk looks ahead."""


def count_chunks(latent_frames: int) -> int:
    """Return how many chunks ``latent_frames`` >= 1 decode in; known without the VAE."""
    return max(1, -(-(latent_frames - _OVERLAP) // geometry.LATENTS_PER_CHUNK))


def decode_chunks(vae: Any, latents: torch.Tensor, *, before_chunk: Callable[[], None]) -> Iterator[torch.Tensor]:
    """Yield the pixels of ``latents`` [1, C, T, h, w] (denormalised) in order.

    Args:
        vae: diffusers' ``AutoencoderKLMiniMaxH3``.
        before_chunk: called before each chunk is decoded.

    Yields:
        [1, 3, f, H, W] in the VAE's pixel space; the last piece includes the overlap, cut to the frames asked for.
    """
    step = geometry.LATENTS_PER_CHUNK
    chunks = count_chunks(latents.shape[2])
    missing = chunks * step + _OVERLAP - latents.shape[2]
    left = geometry.frames_of_latents(latents.shape[2])
    latents = latents.to(next(vae.post_quant_conv.parameters()).dtype)
    # A clip needs its two latent frames of look-ahead; without them the VAE has nothing to decode.
    latents = torch.cat([latents, latents[:, :, -1:].expand(-1, -1, missing, -1, -1)], dim=2)
    overlap: torch.Tensor | None = None
    for index in range(chunks):
        before_chunk()
        with torch.no_grad():
            head, tail = _decode_clip(vae, latents[:, :, index * step : (index + 1) * step + _OVERLAP])
            if overlap is not None:
                head = vae._blend(overlap, head, vae.frame_overlap, dim=-3)
            if index == chunks - 1:
                head = torch.cat([head, tail], dim=2)
        overlap = tail
        piece = head[:, :, :left]
        left -= piece.shape[2]
        yield piece


def _decode_clip(vae: Any, latents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the 17 frames of a clip [1, C, 7, h, w] and the 5 that the next clip fades in over."""
    clip = vae._decode_clip(latents)
    span = geometry.LATENTS_PER_CHUNK * vae.temporal_compression_ratio
    # Each part starts with the frames of the encoder's causal padding. The tail is copied so that the clip can go.
    return clip[:, :, vae.frame_pre_padding : span], clip[:, :, span + vae.frame_pre_padding :].clone()
