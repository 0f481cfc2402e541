"""A job's edit on one rank: its source and masks as they came, and what is said of them.

The parts are ``latents``, the source, and ``masks``. Promise: alike on every rank that was given the same. Raises
`RequestError` for values that are no latents or masks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from .contract.check_masks import MASK_TENSORS, MASKS
from .contract.edits import SourceEdit
from .contract.extend import moved_by
from .contract.messages import Warned
from .contract.requests import Denoise
from .masking import Edit
from .outputs import Outputs
from .stages.base import Latents


def load_edit(request: Denoise, inputs: Mapping[str, Path]) -> Edit | None:
    """Return the edit of a request whose parts the server checked; None: there is no source.

    Raises:
        RequestError: as `Edit.read`.
    """
    if "latents" not in inputs:
        return None
    masks = load_file(inputs[MASKS]) if MASKS in inputs else {}
    source = load_file(inputs["latents"])
    return Edit.read(source, masks, video_mask=request.video_mask, audio_mask=request.audio_mask)


def place_source(source: Latents, asked: SourceEdit, masks: Mapping[str, torch.Tensor]) -> Edit:
    """Return the edit of a clip's latents: in a longer video they stand where `plan_extension` says.

    Args:
        masks: the part ``masks``, of the whole video; where it is 1 it does not matter what stands there.
    """
    if not asked.extends:
        return Edit.read(vars(source), masks)
    lengths = masks[MASK_TENSORS["video"]].shape[2], masks[MASK_TENSORS["audio"]].shape[3]
    video = source.video.new_zeros((*source.video.shape[:2], lengths[0], *source.video.shape[3:]))
    audio = source.audio.new_zeros((*source.audio.shape[:3], lengths[1]))
    first, first_of_sound = moved_by(asked.before)
    video[:, :, first : first + source.video.shape[2]] = source.video
    audio[..., first_of_sound : first_of_sound + source.audio.shape[3]] = source.audio
    return Edit.read({"video": video, "audio": audio}, masks)


def tell_of(edit: Edit | None, *, frames: int, outputs: Outputs) -> dict[str, Any]:
    """Warn of masks that change nothing or everything; return the fact ``masks``, what they change."""
    if edit is None:
        return {}
    report = dataclasses.asdict(edit.report(frames=frames))
    for sentence in report.pop("warnings"):
        outputs.event(Warned("mask_effect", sentence))
    return {"masks": report}
