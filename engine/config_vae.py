"""The options of the VAEs, resolved, and what they have to do with the checkpoint and the picture.

Raises `ConfigError` naming option, value and remedy. Imports no torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from .contract import geometry
from .contract.errors import ConfigError
from .contract.limits import ModelFacts
from .contract.messages import Warned
from .rank_options import VaeOptions

TILE_RANGES = {"vae_tile": (32, 4096), "vae_tile_overlap": (16, 2048)}
"""Option → the smallest and largest number, pixels."""


def resolve_vae(values: Mapping[str, Any]) -> VaeOptions:
    """Return the options of the VAEs among ``values``.

    Raises:
        ConfigError: ``config_conflict`` when tiles overlap by more than half.
    """
    options = VaeOptions(**{field.name: values[field.name] for field in dataclasses.fields(VaeOptions)})
    if 2 * options.vae_tile_overlap > options.vae_tile:
        raise ConfigError(
            "config_conflict",
            f"Tiles of {options.vae_tile} pixels cannot overlap by more than half.",
            field="vae_tile_overlap",
            value=options.vae_tile_overlap,
            remedy=f"Use {options.vae_tile // 32 * 16} or less, or larger tiles.",
        )
    return options


def check_tiles(options: VaeOptions, facts: ModelFacts) -> None:
    """Check that tiles begin and end with latents.

    Raises:
        ConfigError: ``config_bad_value``.
    """
    for name, (low, high) in TILE_RANGES.items():
        value, ratio = getattr(options, name), facts.spatial_ratio
        near = round(value / ratio) * ratio
        if value % ratio:
            raise ConfigError(
                "config_bad_value",
                f"{name} must be a multiple of {ratio} pixels, the side of a latent.",
                field=name,
                value=value,
                remedy=f"Use a multiple of {ratio} from {low} to {high}, such as {max(low, near)}.",
            )


def tile_warnings(options: VaeOptions) -> tuple[Warned, ...]:
    """Return what a user must know of pictures that are decoded with these options."""
    if options.trained_tiles:
        return ()
    text = (
        f"This engine uses tiles of {options.vae_tile} pixels, overlapping by {options.vae_tile_overlap}. Its VAE "
        f"was trained with {geometry.TRAINED_TILE} and {geometry.TRAINED_TILE_OVERLAP}; others change the picture."
    )
    return (Warned("untrained_tiles", text),)
