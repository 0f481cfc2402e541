"""Stage ``encode_prompt``: a prompt, and the pictures that it speaks of, to conditioning.

Promise: no chat template, no special tokens; a label and a vision block for each keyframe, image and merged pair of
video frames, a label for each sound, then the prompt verbatim; the rows are the text encoder's hidden state 50. All of
it as diffusers does, bit for bit. Raises `RequestError` and `ConfigError` when pictures cannot be processed here (see
`Models.processor`), and what ``boundary`` raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from diffusers.modular_pipelines.minimax_h3.encoders import MiniMaxH3Ref2VATextEncoderStep
from diffusers.modular_pipelines.minimax_h3.references import (
    MiniMaxH3AudioReference,
    MiniMaxH3ImageReference,
    MiniMaxH3VideoReference,
)
from PIL import Image

from ..contract import geometry
from .base import Prepared, PromptEmbeds, StageContext

_TEXT_TAG = 1
_VISION_TAG = 0


@dataclass(frozen=True)
class Shown:
    """A keyframe (an ``image``) or reference that the prompt may speak of; a video with sound counts as both."""

    kind: Literal["image", "video", "audio"]
    medium: Prepared


@torch.no_grad()
def encode_prompt(ctx: StageContext, *, prompt: str, shown: Sequence[Shown] = ()) -> PromptEmbeds | None:
    """Encode ``prompt`` after the labels of ``shown``, in order; None on a rank without the text encoder.

    Returns:
        prompt_embeds [1, L, text_dim] in the text encoder's type and token_tags [L], both on the rank's device.
    """
    # Before the boundary: a rank without room for it keeps nobody waiting.
    with ctx.using("text_encoder", stage="encode_prompt") as encoder:
        ctx.boundary()
        if encoder is None:
            return None
        text = _present(ctx, prompt, shown)
        hidden = _run(ctx, encoder, text)
        ctx.report(1, 1)
    return PromptEmbeds(hidden, torch.tensor(text.tags, dtype=torch.long, device=ctx.device))


def _run(ctx: StageContext, encoder: Any, text: _Presentation) -> torch.Tensor:
    """Return the hidden states [1, L, text_dim] of ``text``."""
    input_ids = torch.tensor([text.token_ids], dtype=torch.long, device=ctx.device)  # [1, L]
    hidden: torch.Tensor = encoder(
        input_ids=input_ids,
        attention_mask=torch.ones_like(input_ids),
        mm_token_type_ids=torch.tensor([text.type_ids], dtype=torch.long, device=ctx.device),
        use_cache=False,
        **{
            name: value.to(ctx.device, encoder.dtype if name.startswith("pixel_") else value.dtype)
            for name, value in text.vision.items()
        },
    ).last_hidden_state
    return hidden


@dataclass(frozen=True)
class _Presentation:
    """What the text encoder reads.

    Attributes:
        token_ids, tags: of the L rows; the tags are H3's, 1 text and 0 vision.
        type_ids: Qwen3-VL's own: 0 text, 1 image, 2 video.
        vision: tensors of the vision blocks by the names of the encoder's arguments.
    """

    token_ids: list[int]
    tags: list[int]
    type_ids: list[int]
    vision: dict[str, torch.Tensor]


def _present(ctx: StageContext, prompt: str, shown: Sequence[Shown]) -> _Presentation:
    tokenizer = ctx.models.tokenizer
    if not shown:
        token_ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        return _Presentation(token_ids, [_TEXT_TAG] * len(token_ids), [0] * len(token_ids), {})
    processor = ctx.models.processor
    references = [_reference(item) for item in shown]
    step = _PresentationStep()
    vision, *counts = step._gather_vision_features(processor, references, float(geometry.FPS))
    token_ids, tags = step._build_presentation(
        tokenizer, prompt, references, *counts, text_tag=_TEXT_TAG, video_tag=_VISION_TAG
    )
    (type_ids,) = processor.create_mm_token_type_ids([token_ids])
    return _Presentation(token_ids, tags, list(type_ids), vision)


class _PresentationStep(MiniMaxH3Ref2VATextEncoderStep):  # type: ignore[misc]
    """diffusers' step, which also takes a clip that is sampled once: its frame fills a block, at 0 s."""

    @staticmethod
    def _sample_video_condition_frames(
        frames: np.ndarray[Any, Any], fps: float, sample_fps: float, temporal_patch: int
    ) -> tuple[list[np.ndarray[Any, Any]], list[float]]:
        if frames.shape[0] <= round((temporal_patch - 1) * fps / sample_fps):
            return [frames[0]] * temporal_patch, [0.0]
        sampled: tuple[list[np.ndarray[Any, Any]], list[float]] = (
            MiniMaxH3Ref2VATextEncoderStep._sample_video_condition_frames(frames, fps, sample_fps, temporal_patch)
        )
        return sampled


def _reference(item: Shown) -> Any:
    """Return ``item`` as diffusers' functions want it; they read no samples of a sound."""
    medium = item.medium
    if item.kind == "audio":
        return MiniMaxH3AudioReference(medium.waveform)
    assert medium.frames is not None
    if item.kind == "image":
        return MiniMaxH3ImageReference(Image.fromarray(medium.frames[0].numpy()))
    return MiniMaxH3VideoReference(medium.frames.numpy(), audio=medium.waveform)
