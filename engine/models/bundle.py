"""The loaded components of one rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from ..contract.limits import ModelFacts

VAES = ("vae", "audio_vae")
"""Those that are on the device only while they are used."""


def _no_processor() -> Any:
    raise AssertionError("the controller lets no pictures through without a processor")


@dataclass
class Models:
    """What a rank holds; a component it does not hold is None.

    Attributes:
        text_encoder: transformers' Qwen3-VL model without its head, cut after decoder layer 50, final norm an identity.
        tokenizer: the checkpoint's tokenizer.
        transformer: diffusers' ``MiniMaxH3Transformer3DModel``.
        transformer_ref: likewise, the partition that reads references.
        vae: diffusers' ``AutoencoderKLMiniMaxH3``, its encoder or decoder None when no served stage needs it.
        audio_vae: diffusers' ``AutoencoderKLMiniMaxH3Audio``, likewise.
        scheduler: video schedule (shift 12 as released). audio_scheduler: audio schedule (shift 3).
        facts: channels, widths and canvas of the checkpoint.
        dtype: the compute type that was asked for (modules that must stay fp32 do).
        load_processor: makes `processor`.
    """

    facts: ModelFacts
    dtype: torch.dtype
    tokenizer: Any
    scheduler: Any
    audio_scheduler: Any
    text_encoder: Any = None
    transformer: Any = None
    transformer_ref: Any = None
    vae: Any = None
    audio_vae: Any = None
    load_processor: Callable[[], Any] = _no_processor

    @cached_property
    def processor(self) -> Any:
        """The text encoder's ``Qwen3VLProcessor``, loaded when the first picture comes.

        Raises:
            RequestError: ``missing_package`` without a torchvision that works.
            ConfigError: ``checkpoint_missing``, ``checkpoint_invalid``.
        """
        return self.load_processor()
