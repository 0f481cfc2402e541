"""What a checkpoint's configurations say of the model, as `ModelFacts`. No torch.

Raises `ConfigError` ``checkpoint_invalid`` for a component of another geometry, or components that do not belong
together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .checkpoint_files import invalid, read_json
from .contract import geometry
from .contract.limits import ModelFacts

TEXT_LAYERS = 50
"""Decoder layers of the text encoder that are run: its hidden state 50 is the conditioning."""


def read_facts(index: Mapping[str, Any], folders: Mapping[str, Path]) -> ModelFacts:
    """Gather the facts, and check that the components present fit each other and the geometry of H3.

    Args:
        index: ``modular_model_index.json``. folders: where each component is, or would be.

    Raises:
        ConfigError: ``checkpoint_invalid``.
    """
    facts: dict[str, Any] = {fact: index[key] for key, fact in _INDEXED.items() if key in index}
    for name, value in facts.items():
        if type(value) is not int or value < 1:
            raise invalid("modular_model_index.json", value, f"{name} is a whole number above 0.")
    for name, reader in _FACTS_OF.items():
        shown = f"{name}/config.json"
        if not (folders[name] / "config.json").is_file():
            continue
        config = read_json(folders[name] / "config.json", shown)
        try:
            found = reader(name, config)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise invalid(shown, repr(error), f"{shown} lacks a value or has one of a wrong type.") from error
        for key, value in found.items():
            if type(value) is not int or value < 1:
                raise invalid(shown, value, f"{key} of {name} is a whole number above 0.")
            if facts.setdefault(key, value) != value:
                raise invalid(shown, value, f"{name} has {key} {value}, another component {facts[key]}.")
    return ModelFacts(**facts)


_INDEXED = {
    "canvas_short_edge": "canvas_short_edge",
    "canvas_max_pixels": "canvas_max_pixels",
    "reference_image_short_edge": "reference_short_edge",
}
"""Facts by their names in ``modular_model_index.json``."""


def _transformer_facts(name: str, config: dict[str, Any]) -> dict[str, Any]:
    patch = config["patch_size"]
    _expect(name, "patch_size", list(patch), [1, patch[1], patch[1]])
    return {
        "latent_channels": config["in_channels"],
        "audio_latent_channels": config["audio_in_channels"],
        "text_dim": config["text_dim"],
        "patch": patch[1],
        "heads": config["num_attention_heads"],
        "ffn_dim": config["ffn_dim"],
    }


def _vae_facts(name: str, config: dict[str, Any]) -> dict[str, Any]:
    _expect(name, "clip_length", config.get("clip_length", geometry.FRAMES_PER_CHUNK), geometry.FRAMES_PER_CHUNK)
    _expect(name, "token_drop", config.get("token_drop", 3), 3)
    _expect(name, "temporal_downsample_factors", math.prod(config["temporal_downsample_factors"]), 4)
    return {
        "latent_channels": config["latent_channels"],
        "spatial_ratio": math.prod(config["spatial_downsample_factors"]),
    }


def _audio_vae_facts(name: str, config: dict[str, Any]) -> dict[str, Any]:
    _expect(name, "encoder_rates", math.prod(config["encoder_rates"]), geometry.SAMPLES_PER_AUDIO_LATENT)
    _expect(name, "sampling_rate", config["sampling_rate"], geometry.SAMPLE_RATE)
    return {"audio_latent_channels": config["latent_channels"], "sample_rate": config["sampling_rate"]}


def _text_encoder_facts(name: str, config: dict[str, Any]) -> dict[str, Any]:
    text = config["text_config"]
    layers = text["num_hidden_layers"]
    if layers <= TEXT_LAYERS:
        raise invalid(
            f"{name}/config.json",
            layers,
            f"The text encoder has {layers} layers; the conditioning is its state {TEXT_LAYERS} before the final norm.",
        )
    return {
        "text_dim": text["hidden_size"],
        "text_kv_heads": text["num_key_value_heads"],
        "text_ffn_dim": text["intermediate_size"],
    }


_FACTS_OF = {
    "transformer": _transformer_facts,
    "transformer_ref": _transformer_facts,
    "vae": _vae_facts,
    "audio_vae": _audio_vae_facts,
    "text_encoder": _text_encoder_facts,
}


def _expect(component: str, key: str, value: object, wanted: object) -> None:
    if value != wanted:
        raise invalid(f"{component}/config.json", value, f"{key} of a MiniMax-H3 {component} comes to {wanted}.")
