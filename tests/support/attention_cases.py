"""Small transformers and packed inputs of every awkward size, for the tests of parallel attention."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch

from engine.packing import PackedLayout
from engine.tiny import AUDIO_LATENT_CHANNELS, LATENT_CHANNELS, PRESETS, _transformer

CPU = torch.device("cpu")
PATCH_CELLS = 4


@dataclass(frozen=True)
class Case:
    """One forward.

    Attributes:
        heads: of the transformer. text, audio, video: rows of each modality, conditions included.
        video_conditions, audio_conditions: how many of them are conditions.
        pad: rows of the pinned sequence, or None.
    """

    heads: int
    text: int
    audio: int
    video: int
    video_conditions: int = 0
    audio_conditions: int = 0
    pad: int | None = None

    @property
    def used(self) -> int:
        return self.text + self.audio + self.video

    @property
    def label(self) -> str:
        return "/".join(f"{name[:2]}{value}" for name, value in dataclasses.asdict(self).items() if value)


CASES = (
    Case(4, 10, 30, 40),
    Case(4, 11, 30, 40),
    Case(4, 12, 31, 42, 8, 5),
    Case(4, 12, 31, 42, 8, 5, pad=128),
    Case(4, 10, 30, 40, pad=192),
    Case(3, 9, 11, 21),
    Case(2, 7, 6, 16, 4, pad=64),
    Case(1, 5, 8, 12),
    Case(4, 1, 1, 1),
    Case(3, 1, 1, 1, pad=64),
)
"""Remainders by 2, 3 and 4; whole ranks of padding; heads that do not divide, or are fewer than the ranks; fewer rows
than ranks; with and without conditions."""


def make_transformer(heads: int, dtype: torch.dtype = torch.float32) -> Any:
    """Return a transformer in which a lost or misplaced row shows."""
    torch.manual_seed(heads)
    preset = dataclasses.replace(PRESETS["tiny"], heads=heads, hidden=12 * heads)
    model = _transformer(preset).requires_grad_(False)
    if dtype != torch.float32:
        for name, parameter in model.named_parameters():
            if not any(kept in name for kept in model._keep_in_fp32_modules):
                parameter.data = parameter.data.to(dtype)
    return model


def make_layout(case: Case) -> PackedLayout:
    """Return text | conditions | target audio | target video (| padding)."""
    order = {
        "text": case.text,
        "video conditions": case.video_conditions,
        "audio conditions": case.audio_conditions,
        "audio": case.audio - case.audio_conditions,
        "video": case.video - case.video_conditions,
    }
    spans = dict(zip(order, torch.arange(case.used).split(list(order.values())), strict=True))
    tags = torch.cat([torch.full((count,), {"t": 1, "a": 2, "v": 0}[name[0]]) for name, count in order.items()])
    rows = torch.arange(case.used, dtype=torch.float64)
    layout = PackedLayout(
        position_ids=torch.stack((rows / 3, rows % 5, rows % 7), 1),
        token_tags=tags,
        video_indices=torch.cat([spans["video conditions"], spans["video"]]),
        audio_indices=torch.cat([spans["audio conditions"], spans["audio"]]),
        text_indices=spans["text"],
        condition_video_rows=case.video_conditions,
        condition_audio_rows=case.audio_conditions,
    )
    return layout if case.pad is None else layout.padded(case.pad)


def make_inputs(case: Case, model: Any) -> dict[str, Any]:
    """Return the arguments of an unwrapped transformer's forward (of the padded sequence, if there is padding)."""
    generator = torch.Generator().manual_seed(case.used)
    layout = make_layout(case)
    times, indices = layout.row_times(0.3, 0.6)

    def random(rows: int, width: int) -> torch.Tensor:
        return torch.randn((1, rows, width), generator=generator)

    return {
        "hidden_states": random(case.video, LATENT_CHANNELS * PATCH_CELLS),
        "audio_hidden_states": random(case.audio, AUDIO_LATENT_CHANNELS),
        "encoder_hidden_states": random(case.text, model.config.text_dim),
        "timestep": times,
        "timestep_indices": indices,
        "return_dict": False,
        **layout.forward_inputs(CPU),
    }
