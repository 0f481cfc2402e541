"""Models and requests that the planner's numbers are compared on."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
from diffusers import AutoencoderKLMiniMaxH3, AutoencoderKLMiniMaxH3Audio, MiniMaxH3Transformer3DModel
from transformers import Qwen3VLConfig, Qwen3VLModel

from engine.checkpoint_facts import TEXT_LAYERS
from engine.planner.activations_transformer import RankRows, transformer_sizes
from engine.planner.request import RequestSize
from engine.planner.sizes import RELEASED, Config
from engine.planner.weights import ServedModel
from engine.rank_options import ParallelOptions

CLASSES: dict[str, Any] = {
    "transformer": MiniMaxH3Transformer3DModel,
    "transformer_ref": MiniMaxH3Transformer3DModel,
    "vae": AutoencoderKLMiniMaxH3,
    "audio_vae": AutoencoderKLMiniMaxH3Audio,
}


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


def request(**given: Any) -> RequestSize:
    return RequestSize(**{"width": 1344, "height": 768, "frames": 362, **given})


def inputs_of(model: ServedModel, rows: RankRows, dtype: torch.dtype, *, device: str) -> dict[str, torch.Tensor]:
    sizes = transformer_sizes(model)
    index = torch.arange(rows.total, device=device)
    first, second = rows.text, rows.text + rows.audio
    return {
        "hidden_states": torch.ones(1, rows.video, sizes.video_width, device=device),
        "audio_hidden_states": torch.ones(1, rows.audio, sizes.audio_width, device=device),
        "encoder_hidden_states": torch.ones(1, rows.text, sizes.text_dim, dtype=dtype, device=device),
        "timestep": torch.linspace(0, 1, rows.levels, device=device),
        "timestep_indices": torch.zeros_like(index),
        "token_tags": torch.zeros_like(index),
        "position_ids": torch.zeros(rows.total, 3, dtype=torch.float64, device=device),
        "text_indices": index[:first],
        "audio_indices": index[first:second],
        "video_indices": index[second:],
    }


RELEASED_MODEL = ServedModel(RELEASED)
ONE = ParallelOptions(ulysses_degree=1)
