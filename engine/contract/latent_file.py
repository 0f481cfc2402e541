"""A latent as a file: one safetensors file with both streams, their masks when there are any, and what they are.

The part ``latents`` of a result is such a file, ``h3-engine decode`` takes one, and the nodes save and load them.
Tensors: ``video`` [1, C, T, H/16, W/16] and ``audio`` [1, Ca, 2, A], normalised; ``video_mask`` [1, 1, T, H/16, W/16]
and ``audio_mask`` [1, 1, 2, A], or one ``noise_mask`` of any shape for the video alone, 1 = to be made anew. Metadata:
`describe`. Raises `RequestError` ``bad_tensor``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, BinaryIO

from . import geometry
from .errors import RequestError
from .extend import OwnLength
from .framing import MAX_HEADER_BYTES, TensorInfo, read_header
from .version import ENGINE_VERSION

METADATA = "minimax_h3_latent"
"""The one entry of the metadata."""
MASKS = ("video_mask", "audio_mask")
PLAIN_MASK = "noise_mask"
OWN_FACTS = ("own_frames", "own_audio_latents")
"""What of a source is its own, see `OwnLength`: in the metadata, and in the facts of a job that read one."""
_DIMENSIONS = {"video": 5, "audio": 4}
_ROOM_FOR_TEXTS = MAX_HEADER_BYTES - 100_000
"""Bytes of the header; the rest is for `describe` and the tensors."""
_LARGEST_FACT = 2**64
_LONGEST_FACT = 80


def describe(latent_frames: int, *, seed: int | None = None, own: OwnLength | None = None) -> dict[str, str]:
    """Return the metadata of a latent of ``latent_frames`` >= 1; ``seed`` and ``own`` are left out where not known.

    It is one entry, JSON with sorted names, so that equal latents are equal files.
    """
    frames = geometry.frames_of_latents(latent_frames)
    facts: dict[str, Any] = {
        "engine": ENGINE_VERSION,
        "frames": frames,
        "seconds": round(frames / geometry.FPS, 3),
        "fps": geometry.FPS,
        "sample_rate": geometry.SAMPLE_RATE,
    }
    if seed is not None:
        facts["seed"] = seed
    if own is not None:
        facts |= zip(OWN_FACTS, (own.frames, own.audio_latents), strict=True)
    return {METADATA: json.dumps(facts, sort_keys=True)}


def fitting_texts(texts: Mapping[str, str]) -> dict[str, str]:
    """Return those of ``texts``, in their order, that a latent file has room for: what is written can be read again."""
    fitting: dict[str, str] = {}
    room = _ROOM_FOR_TEXTS
    for name, text in texts.items():
        length = len(json.dumps({name: text}, ensure_ascii=False).encode("utf-8", "surrogatepass"))
        if length <= room:
            fitting[name] = text
            room -= length
    return fitting


def read_facts(metadata: Mapping[str, str] | None) -> dict[str, Any]:
    """Return what `describe` wrote, nothing from a file of somebody else, and no fact that cannot be one."""
    try:
        facts = json.loads((metadata or {}).get(METADATA, "{}"))
    except (ValueError, RecursionError):
        return {}
    return {name: fact for name, fact in facts.items() if _may_be(fact)} if isinstance(facts, dict) else {}


def _may_be(fact: object) -> bool:
    """Whether ``fact`` is a number or a short text."""
    if isinstance(fact, str):
        return len(fact) <= _LONGEST_FACT
    if isinstance(fact, bool) or not isinstance(fact, (int, float)):
        return False
    return math.isfinite(fact) if isinstance(fact, float) else abs(fact) < _LARGEST_FACT


def read_latent_header(file: BinaryIO, length: int, *, field: str) -> Mapping[str, TensorInfo]:
    """Return the header of a latent file of ``length`` bytes, at whose start ``file`` stands.

    Raises:
        RequestError: it is no safetensors file, or holds no MiniMax-H3 latent.
    """
    header = read_header(file, length, field=field)
    wrong = [name for name, rank in _DIMENSIONS.items() if name not in header or len(header[name].shape) != rank]
    if wrong:
        shown = ", ".join(f"{name} {list(info.shape)}" for name, info in header.items()) or "nothing"
        raise RequestError(
            "bad_tensor",
            f"The file holds no MiniMax-H3 latent: {' and '.join(wrong)} missing or of another shape.",
            field=field,
            value=shown,
            remedy="Use a latent that was saved in ComfyUI, or that h3-engine generate kept.",
        )
    return header
