"""Qwen3-VL cut to what MiniMax-H3 reads.

Promise: ``last_hidden_state`` of the model built here equals ``hidden_states[50]`` of the whole one bit for bit: the
layers after the 50th, the final norm and the head do not exist, so nobody reads, stores or runs them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3VLConfig, Qwen3VLModel

from ..checkpoint_code import OwnCode
from ..checkpoint_facts import TEXT_LAYERS
from .own_code import own_class


def build_text_encoder(folder: Path, own_code: OwnCode | None = None) -> Any:
    """Return the cut model of the configuration in ``folder``, its weights not filled.

    Args:
        own_code: trusted code, which may bring the configuration, the model without its head, or both.

    Raises:
        ConfigError, OSError, ValueError: when the configuration cannot be used.
    """
    config_class = own_class("text_encoder", own_code, Qwen3VLConfig, role="AutoConfig")
    model_class = own_class("text_encoder", own_code, Qwen3VLModel, role="AutoModel")
    config = config_class.from_pretrained(folder, local_files_only=True)
    config.text_config.num_hidden_layers = TEXT_LAYERS
    model = model_class(config)
    model.language_model.norm = torch.nn.Identity()
    return model


def checkpoint_name(name: str) -> str:
    """Return the name that a checkpoint, saved with a head, gives to the tensor ``name`` of the cut model."""
    return f"model.{name}"
