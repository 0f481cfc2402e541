"""The loaded components of one rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..contract.limits import ModelFacts

COMPONENTS = ("text_encoder", "transformer", "vae", "audio_vae")
"""Components with weights, in loading order. ``tokenizer`` and the schedulers are small and always loaded."""
VAES = ("vae", "audio_vae")
"""Those that are on the device only while they are used."""


@dataclass
class Models:
    """What a rank holds; a component it does not hold is None.

    Attributes:
        text_encoder: transformers' Qwen3-VL model without its head, cut after decoder layer 50, final norm an identity.
        tokenizer: the checkpoint's tokenizer.
        transformer: diffusers' ``MiniMaxH3Transformer3DModel``.
        vae: diffusers' ``AutoencoderKLMiniMaxH3``.
        audio_vae: diffusers' ``AutoencoderKLMiniMaxH3Audio``.
        scheduler: video schedule (shift 12 as released). audio_scheduler: audio schedule (shift 3).
        facts: channels, widths and canvas of the checkpoint.
        dtype: the compute type that was asked for (modules that must stay fp32 do).
    """

    facts: ModelFacts
    dtype: torch.dtype
    tokenizer: Any
    scheduler: Any
    audio_scheduler: Any
    text_encoder: Any = None
    transformer: Any = None
    vae: Any = None
    audio_vae: Any = None
