"""The golden numbers: layouts, forwards and sampling runs that an independent implementation of H3 computed.

``tests/golden/README.md`` says what is in the files and which rules differ; tolerances are in ``index.json``.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
from diffusers import MiniMaxH3Transformer3DModel
from safetensors.torch import load_file

from engine.conditioning import Conditions, EncodedCondition, EncodedReference
from engine.packing import LatentGrid, PackedLayout, build_layout

FOLDER = Path(__file__).resolve().parents[1] / "golden"


@cache
def index() -> dict[str, Any]:
    """Return ``index.json``."""
    found: dict[str, Any] = json.loads((FOLDER / "index.json").read_text())
    return found


@cache
def _tensors(file: str) -> dict[str, torch.Tensor]:
    return load_file(FOLDER / file)


def tensors(file: str, run: str) -> dict[str, torch.Tensor]:
    """Return the tensors of one run or scenario by their own names."""
    return {
        name.removeprefix(f"{run}."): value
        for name, value in _tensors(f"{file}.safetensors").items()
        if name.startswith(f"{run}.")
    }


def tensor(file: str, name: str) -> torch.Tensor:
    """Return one tensor by its whole name."""
    return _tensors(f"{file}.safetensors")[name]


def transformer() -> Any:
    """Return the tiny transformer that the numbers were computed with."""
    model = MiniMaxH3Transformer3DModel.from_config(index()["transformer_config"])
    model.load_state_dict(_tensors("transformer.safetensors"))
    return model.requires_grad_(False).eval()


def grid(scenario: dict[str, Any]) -> LatentGrid:
    """Return the target's grid of a scenario of ``layout``."""
    config = index()["transformer_config"]
    return LatentGrid(
        channels=config["in_channels"],
        frames=scenario["latent_t"],
        height=scenario["latent_h"],
        width=scenario["latent_w"],
        audio_channels=config["audio_in_channels"],
        audio_length=scenario["audio_t"],
        patch=config["patch_size"][1],
    )


def token_tags(scenario: dict[str, Any]) -> torch.Tensor:
    """Return the tags [L] of a scenario's text."""
    runs = scenario["text_tag_runs"] or [[1, scenario["text_len"]]]
    return torch.cat([torch.full((count,), tag, dtype=torch.long) for tag, count in runs])


def conditions(scenario: dict[str, Any], latents: dict[str, torch.Tensor] | None = None) -> Conditions:
    """Return a scenario's guides and references, of ``latents`` (``cond_video_latent.<j>``, …) or of zeros."""
    counts = {"video": 0, "audio": 0}

    def take(kind: str, entry: dict[str, Any], key: str) -> torch.Tensor | None:
        if not entry.get(key):
            return None
        number, counts[kind] = counts[kind], counts[kind] + 1
        return torch.zeros(entry[key]) if latents is None else latents[f"cond_{kind}_latent.{number}"]

    return Conditions(
        tuple(
            EncodedCondition(
                entry["resolved_frame_index"], take("video", entry, "latent"), take("audio", entry, "audio_latent")
            )
            for entry in scenario["keyframes"]
        ),
        tuple(
            EncodedReference(entry["kind"], take("video", entry, "latent"), take("audio", entry, "audio_latent"))
            for entry in scenario["refs"]
        ),
    )


def layout(scenario: dict[str, Any]) -> PackedLayout:
    """Return our layout of a scenario."""
    return build_layout(token_tags(scenario), grid(scenario), conditions(scenario).blocks())
