"""The pixel and latent spaces of the video VAE: how its numbers relate to bytes and to normalised latents."""

from __future__ import annotations

PIXEL_MEAN = (0.485, 0.456, 0.406)
PIXEL_STD = (0.229, 0.224, 0.225)
"""ImageNet's: the VAE reads and gives (pixel - mean) / std of pixels 0..1."""
