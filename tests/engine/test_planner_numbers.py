"""The planner's closed forms against the real classes: tensors, bytes, rows, peaks and operations."""

from __future__ import annotations

import copy
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKLMiniMaxH3, AutoencoderKLMiniMaxH3Audio, MiniMaxH3Transformer3DModel
from transformers import Qwen3VLConfig, Qwen3VLModel

from engine.checkpoint_facts import TEXT_LAYERS
from engine.planner_shapes import component_shapes, is_computed
from engine.planner_sizes import RELEASED, Config
from engine.rank_options import WEIGHTED

CLASSES: dict[str, Any] = {
    "transformer": MiniMaxH3Transformer3DModel,
    "transformer_ref": MiniMaxH3Transformer3DModel,
    "vae": AutoencoderKLMiniMaxH3,
    "audio_vae": AutoencoderKLMiniMaxH3Audio,
}


@pytest.fixture(scope="module")
def checkpoints(tiny_checkpoint: Path, small_checkpoint: Path) -> dict[str, Path]:
    """Return the folder of each preset."""
    return {"tiny": tiny_checkpoint, "small": small_checkpoint}


def read_configs(folder: Path) -> dict[str, Config]:
    return {name: json.loads((folder / name / "config.json").read_text()) for name in WEIGHTED}


def build_on_meta(component: str, config: Config) -> Any:
    """Build the class itself, without memory; the text encoder as the engine cuts it."""
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        if component != "text_encoder":
            return CLASSES[component].from_config(dict(config))
        cut = Qwen3VLConfig.from_dict(copy.deepcopy(dict(config)))
        cut.text_config.num_hidden_layers = TEXT_LAYERS
        model = Qwen3VLModel(cut)
        model.language_model.norm = torch.nn.Identity()
        return model


def tensors_of(model: Any) -> dict[str, tuple[int, ...]]:
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: tuple(tensor.shape) for name, tensor in named}


@pytest.mark.parametrize("preset", ["tiny", "small", "released"])
@pytest.mark.parametrize("component", WEIGHTED)
def test_the_closed_form_names_every_tensor_of_the_real_class_and_its_shape(
    component: str, preset: str, checkpoints: dict[str, Path]
) -> None:
    config = RELEASED[component] if preset == "released" else read_configs(checkpoints[preset])[component]
    model = build_on_meta(component, config)
    found = component_shapes(component, config)
    assert found == tensors_of(model)
    assert {name for name in found if is_computed(name)} == found.keys() - model.state_dict().keys()
