"""The size of a request that came in, for the planner: from the request and the headers of its parts.

Promise: no tensor is read but the masks of an edit, piece by piece, without numpy. The request and the headers were
checked; raises `OSError` where a part cannot be read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from ..contract import geometry
from ..contract.check_masks import MASK_TENSORS, MASKS
from ..contract.framing import TensorInfo, read_header
from ..contract.limits import ModelFacts
from ..contract.requests import Decode, Denoise, Generate
from ..contract.tensors import Headers, check_latent_part
from .request import MediumSize, RequestSize, vision_grid, vision_rows

Tensors = Mapping[str, TensorInfo]
_STEPS = 256
"""What a row's mask is counted in."""
MASK_LEVELS = _STEPS * len(MASK_TENSORS)
"""Times that the rows of an edit may have besides their streams', in picture and in sound."""
_PIECE = 2**18
"""Bytes of a mask that are looked at in one go; other threads run in between."""
_SAMPLED_EVERY = 12
"""Frames of a clip for each that the text encoder is shown: two a second."""


def size_of_denoise(request: Denoise, headers: Headers, files: Mapping[str, Path]) -> RequestSize:
    """Return the size of a resolved request to denoise; ``files`` are its parts."""
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
        mask_levels=_mask_levels(request, headers, files) if "latents" in headers else 0,
    )


def _mask_levels(request: Denoise, headers: Headers, files: Mapping[str, Path]) -> int:
    """Return how many times the rows of an edit have at most besides their streams'.

    A row takes one of its cells' values, rounded up: of both masks it is the values below 1 that count.
    """
    numbers = {"video": request.video_mask, "audio": request.audio_mask}
    found = sum(number is not None and number < 1 for number in numbers.values())
    if MASKS not in headers:
        return found
    with files[MASKS].open("rb") as file:
        tensors = read_header(file, files[MASKS].stat().st_size, field=MASKS)
        data = file.tell()
        for name in MASK_TENSORS.values():
            if name in tensors:
                file.seek(data + tensors[name].start)
                found += _count_steps(file, tensors[name].end - tensors[name].start)
    return found


def _count_steps(file: BinaryIO, size: int) -> int:
    """Return how many distinct values below 1 the next ``size`` bytes have, float32, rounded up to `_STEPS`."""
    steps: set[int] = set()
    for start in range(0, size, _PIECE):
        values = set(memoryview(file.read(min(_PIECE, size - start))).cast("f"))
        # What is no mask (not a number, below 0) the ranks refuse.
        steps |= {step for value in values if 0 <= value < 1 and (step := math.ceil(value * _STEPS)) < _STEPS}
        if len(steps) >= _STEPS - 1:
            return _STEPS
    return len(steps)


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
