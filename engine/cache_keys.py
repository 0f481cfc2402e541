"""Keys of results: a hash of everything that a result is made from.

Two requests with one key give the same bytes. So a key holds each field that a stage reads, the hash of each file that
it reads, and a scope: the weights, types and layout of the ranks. What may change a bit is in it (``pad_seq_len``
changes rounding); what a stage does not read is not (the seed, of an encoding). A test has a table of every field.

Raises KeyError when the hash of a file is missing.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .contract.requests import Decode, Denoise, EncodeMedia, EncodePrompt, Generate, Request

STAGE_OF = {"text": "encode_prompt", "conditions": "encode_media", "source": "encode_media"}
"""What the ranks can be given instead of making it → the stage that makes it."""


@dataclass(frozen=True)
class Keys:
    """Under which keys the results of a job are filed.

    Attributes:
        whole: of all that it gives; None: it is not kept.
        stages: kind (`STAGE_OF`) → key of what one of its stages makes.
    """

    whole: str | None = None
    stages: Mapping[str, str] = field(default_factory=dict)


def keys_of(request: Request, parts: Mapping[str, str], *, scope: str) -> Keys:
    """Return the keys of a resolved request.

    Args:
        parts: name → sha256 of each file that the ranks are given; media as they were prepared.
        scope: of the ranks.
    """
    stages = {kind: _key(scope, kind, read) for kind, read in _reads(request, parts).items()}
    if isinstance(request, Generate):
        return Keys(stages=stages)
    if isinstance(request, (EncodePrompt, EncodeMedia)) and len(stages) == 1:
        # All that it gives is what this one stage makes, whoever asks for it.
        return Keys(whole=next(iter(stages.values())))
    if isinstance(request, (EncodePrompt, Denoise, Decode)):
        return Keys(_key(scope, "whole", [dataclasses.asdict(request), dict(parts)]), stages)
    return Keys()


def _reads(request: Request, parts: Mapping[str, str]) -> dict[str, Any]:
    """Return what each stage of ``request`` reads whose result can be given to the ranks: kind → JSON."""
    found: dict[str, Any] = {}
    if isinstance(request, (EncodePrompt, Generate)):
        found["text"] = [request.prompt, _shown(request, parts)]
    if isinstance(request, (EncodePrompt, EncodeMedia, Generate)):
        conditions = _conditions(request, parts)
        if conditions:
            found["conditions"] = conditions
    if isinstance(request, EncodeMedia) and request.source is not None:
        found["source"] = [request.width, request.height, request.frames, parts["source"]]
    if isinstance(request, Generate) and request.edit is not None:
        found["source"] = [request.width, request.height, request.edit.frames, parts["source"]]
    return found


def _shown(request: EncodePrompt | Generate, parts: Mapping[str, str]) -> list[Any]:
    """Return what the text encoder is shown, in order."""
    return [
        *(["image", parts[f"keyframes.{i}"]] for i in range(len(request.keyframes))),
        *([entry.kind, parts[f"references.{j}"]] for j, entry in enumerate(request.references)),
    ]


def _conditions(request: EncodePrompt | EncodeMedia | Generate, parts: Mapping[str, str]) -> dict[str, Any]:
    """Return what keyframes, guides and references are encoded from; empty without any."""
    keyframes = () if isinstance(request, EncodeMedia) else request.keyframes
    references = () if isinstance(request, EncodeMedia) else request.references
    guides = () if isinstance(request, EncodePrompt) else request.guides
    found: dict[str, Any] = {
        "keyframes": [[entry.at, parts[f"keyframes.{i}"]] for i, entry in enumerate(keyframes)],
        "guides": [[entry.frame, parts[f"guides.{i}"]] for i, entry in enumerate(guides)],
        "references": [[entry.kind, parts[f"references.{j}"]] for j, entry in enumerate(references)],
    }
    if not any(found.values()):
        return {}
    # A last keyframe stands on the last frame, and a guide's sound ends there; references know no timeline.
    return {**found, "frames": request.frames if keyframes or guides else None}


def _key(scope: str, kind: str, read: Any) -> str:
    return hashlib.sha256(json.dumps([scope, kind, read], sort_keys=True).encode()).hexdigest()
