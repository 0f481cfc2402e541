"""The size of a request that came in, for the planner: from the request and the headers of its parts.

Promise: no tensor is read. Raises nothing: the request and the headers were checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .contract import geometry
from .contract.check_masks import MASK_TENSORS
from .contract.framing import TensorInfo, read_header
from .contract.limits import ModelFacts
from .contract.requests import Decode, Denoise, Generate
from .contract.tensors import Headers, check_latent_part
from .planner_request import MediumSize, RequestSize, vision_grid, vision_rows

Tensors = Mapping[str, TensorInfo]
MASK_LEVELS = 512
"""Times that the rows of an edit may have besides their streams': a mask has 256 steps, in picture and in sound."""
_SAMPLED_EVERY = 12
"""Frames of a clip for each that the text encoder is shown: two a second."""


def size_of_denoise(request: Denoise, headers: Headers) -> RequestSize:
    """Return the size of a resolved request to denoise."""
    tensors = headers["conditioning"]
    assert request.width is not None
    assert request.height is not None
    media = [_encoded(tensors, f"conditions.{i}", reference=False) for i in range(len(request.conditions))]
    media += [_encoded(tensors, f"references.{j}", reference=True) for j in range(len(request.references))]
    return RequestSize(
        width=request.width,
        height=request.height,
        frames=request.frames,
        text_rows=tensors["token_tags"].shape[0],
        media=tuple(media),
        pad_seq_len=request.pad_seq_len,
        steps=request.steps,
        # Without masks a source may be kept in part by a number for each stream.
        mask_levels=MASK_LEVELS if "masks" in headers else 2 * ("latents" in headers),
    )


def size_of_decode(request: Decode, headers: Headers, facts: ModelFacts) -> RequestSize:
    """Return the size of latents to decode."""
    width, height, frames = check_latent_part(headers["latents"], facts=facts)
    return RequestSize(width=width, height=height, frames=frames)


def size_of_generate(
    request: Generate,
    *,
    text_tokens: int,
    parts: Mapping[str, Path],
    facts: ModelFacts,
    mask_levels: int = len(MASK_TENSORS),
) -> RequestSize | None:
    """Return the size of a request for a video; None as long as its canvas or length follows from unread media.

    Args:
        parts: the prepared media, by name; those that are missing were not read yet.
        mask_levels: of an edit, the times that its masks add to the streams'; before they are read the fewest.
    """
    if request.width is None or request.height is None or request.frames is None:
        return None
    keyframes = [f"keyframes.{i}" for i in range(len(request.keyframes))]
    guides = [f"guides.{i}" for i in range(len(request.guides))]
    references = [f"references.{j}" for j in range(len(request.references))]
    known = {name: _header(parts[name]) for name in (*keyframes, *guides, *references) if name in parts}
    media = [_prepared(known[name], facts, reference=name in references) for name in known]
    vision = tuple(grid for name in (*keyframes, *references) if (grid := _shown(known.get(name, {}))) is not None)
    return RequestSize(
        width=request.width,
        height=request.height,
        frames=request.frames,
        text_rows=text_tokens + vision_rows(vision),
        media=tuple(media),
        vision=vision,
        pad_seq_len=request.pad_seq_len,
        steps=request.steps,
        mask_levels=0 if request.edit is None else mask_levels,
    )


def _header(path: Path) -> Tensors:
    with path.open("rb") as file:
        return read_header(file, path.stat().st_size, field=path.name)


def _encoded(tensors: Tensors, name: str, *, reference: bool) -> MediumSize:
    video, audio = tensors.get(f"{name}.video"), tensors.get(f"{name}.audio")
    shape = None if video is None else (video.shape[2], video.shape[3], video.shape[4])
    return MediumSize(shape, 0 if audio is None else audio.shape[3], reference)


def _prepared(tensors: Tensors, facts: ModelFacts, *, reference: bool) -> MediumSize:
    """Return the latents that prepared pictures [F, H, W, 3] and sound [2, N] will have."""
    frames, waveform = tensors.get("frames"), tensors.get("waveform")
    audio = 0 if waveform is None else geometry.latents_of_samples(waveform.shape[1])
    if frames is None:
        return MediumSize(None, audio, reference)
    count, height, width, _ = frames.shape
    return MediumSize(geometry.latents_of_pictures(count, height, width, ratio=facts.spatial_ratio), audio, reference)


def _shown(tensors: Tensors) -> tuple[int, int, int] | None:
    """Return the patches that the text encoder sees of prepared pictures."""
    frames = tensors.get("frames")
    if frames is None:
        return None
    count, height, width, _ = frames.shape
    return vision_grid(width, height, frames=max(1, 2 * -(-count // (2 * _SAMPLED_EVERY))) if count > 1 else 1)
