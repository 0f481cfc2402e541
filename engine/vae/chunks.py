"""The chunks in which the video VAE decodes. Pure arithmetic, known without the VAE; raises nothing."""

from __future__ import annotations

from ..contract import geometry

OVERLAP = 2
"""Latent frames that each chunk looks ahead."""


def count_chunks(latent_frames: int) -> int:
    """Return how many chunks ``latent_frames`` >= 1 decode in."""
    return max(1, -(-(latent_frames - OVERLAP) // geometry.LATENTS_PER_CHUNK))
