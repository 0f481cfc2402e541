"""Qwen3-VL cut to what MiniMax-H3 reads.

Promise: ``last_hidden_state`` of the model built here equals ``hidden_states[50]`` of the whole one bit for bit: the
layers after the 50th, the final norm and the head do not exist, so nobody reads, stores or runs them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3VLConfig, Qwen3VLModel

from ..checkpoint import TEXT_LAYERS


def build_text_encoder(folder: Path) -> Any:
    """Return the cut model of the configuration in ``folder``, its weights not filled.

    Raises:
        OSError, ValueError: when the configuration cannot be used.
    """
    config = Qwen3VLConfig.from_pretrained(folder, local_files_only=True)
    config.text_config.num_hidden_layers = TEXT_LAYERS
    model = Qwen3VLModel(config)
    model.language_model.norm = torch.nn.Identity()
    return model


def checkpoint_name(name: str) -> str:
    """Return the name that a checkpoint, saved with a head, gives to the tensor ``name`` of the cut model."""
    return f"model.{name}"
