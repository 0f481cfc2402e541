"""Between ComfyUI's CONDITIONING and the part ``conditioning``: text, keyframes and guides, references.

In a graph a MiniMax-H3 conditioning is one entry ``[prompt_embeds, extra]``; ``extra`` holds ``minimax_token_tags``,
``minimax_keyframes`` (keyframes and guides alike) and ``minimax_refs``, as ComfyUI's own H3 nodes write and read them.
On the wire these are tensors of one part, and `Condition` and `EncodedReference` in the request. Structure and
dimensions are checked here; channels, canvas and lengths by the contract. Knows nothing of ComfyUI's modules.

Raises `RequestError` naming the node's input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from ..engine.contract.media import Condition, EncodedReference
from .convert import as_float, bad_tensor, read_part, write_part

Conditioning = list[list[Any]]
_INPUT = "conditioning"
_TAGS = "minimax_token_tags"
_KEYFRAMES = "minimax_keyframes"
_REFERENCES = "minimax_refs"
_TEXT_TAG = 1
_VIDEO_DIMS = 5
_AUDIO_DIMS = 4
_KINDS: dict[tuple[bool, bool], Literal["video", "video_audio", "audio"]] = {
    (True, False): "video",
    (True, True): "video_audio",
    (False, True): "audio",
}
"""Whether there are video and audio latents → kind of a reference."""


@dataclass(frozen=True)
class Sent:
    """A CONDITIONING as a request takes it: the part's bytes, and the fields that say what is in it."""

    part: bytes
    conditions: tuple[Condition, ...]
    references: tuple[EncodedReference, ...]


def to_wire(conditioning: Sequence[Sequence[Any]]) -> Sent:
    """Return a CONDITIONING as the part ``conditioning`` and its fields.

    The part holds prompt_embeds [1, L, D], token_tags [L] int64, and of condition i and reference j the tensors
    ``conditions.<i>.video`` and ``references.<j>.video`` [1, C, t, h, w], likewise ``.audio`` [1, Ca, 2, a].

    Raises:
        RequestError: ``bad_tensor`` for another structure.
    """
    if len(conditioning) != 1:
        raise bad_tensor(
            _INPUT,
            f"{len(conditioning)} entries",
            "The model takes one prompt.",
            "Connect one text encode node.",
        )
    embeds, extra = conditioning[0][0], conditioning[0][1]
    if embeds.dim() != 3 or embeds.shape[0] != 1:
        raise bad_tensor(
            _INPUT,
            list(embeds.shape),
            "A MiniMax-H3 conditioning is [1, L, D].",
            "Connect H3EngineTextEncode, or ComfyUI's text encode with a MiniMax-H3 text encoder.",
        )
    tags = extra.get(_TAGS)
    if tags is None:
        tags = torch.full((embeds.shape[1],), _TEXT_TAG)
    tensors = {"prompt_embeds": as_float(embeds), "token_tags": tags.reshape(-1).to(torch.int64)}
    keyframes, references = extra.get(_KEYFRAMES) or (), extra.get(_REFERENCES) or ()
    conditions = []
    for index, entry in enumerate(keyframes):
        tensors.update(_latents(entry, name=f"conditions.{index}", shown=f"{_KEYFRAMES}[{index}]"))
        conditions.append(Condition(int(entry["resolved_frame_index"])))
    encoded = []
    for index, entry in enumerate(references):
        tensors.update(_latents(entry, name=f"references.{index}", shown=f"{_REFERENCES}[{index}]"))
        encoded.append(EncodedReference(entry["kind"]))
    return Sent(write_part(tensors), tuple(conditions), tuple(encoded))


def _latents(entry: Mapping[str, Any], *, name: str, shown: str) -> dict[str, torch.Tensor]:
    """Return the latents of a keyframe, guide or reference, under their names in the part."""
    found = {}
    for key, suffix, dims in (("latent", "video", _VIDEO_DIMS), ("audio_latent", "audio", _AUDIO_DIMS)):
        latent = entry.get(key)
        if latent is None:
            continue
        if latent.dim() != dims or latent.shape[0] != 1:
            raise bad_tensor(
                f"{_INPUT}: {shown}.{key}",
                list(latent.shape),
                f"A MiniMax-H3 {suffix} latent has {dims} dimensions and a batch of 1.",
                "Connect a conditioning of the H3 Engine nodes, or of ComfyUI's own for MiniMax-H3.",
            )
        found[f"{name}.{suffix}"] = as_float(latent)
    if not found:
        raise bad_tensor(
            f"{_INPUT}: {shown}",
            ", ".join(map(str, entry)),
            "It holds neither pictures nor sound.",
            "Connect a conditioning of the H3 Engine nodes, or of ComfyUI's own for MiniMax-H3.",
        )
    return found


def from_wire(data: bytearray, facts: Mapping[str, Any]) -> Conditioning:
    """Return the part ``conditioning`` as ComfyUI's CONDITIONING in its native H3 form.

    Args:
        facts: of the job; ``conditions`` says at which ``frame`` each condition starts.
    """
    tensors = read_part(data, name="conditioning")
    extra: dict[str, Any] = {_TAGS: tensors["token_tags"]}
    keyframes, references = _keyframes(tensors, facts), _references(tensors)
    if keyframes:
        extra[_KEYFRAMES] = keyframes
    if references:
        extra[_REFERENCES] = references
    return [[tensors["prompt_embeds"], extra]]


def with_guides(conditioning: Conditioning, data: bytearray, facts: Mapping[str, Any]) -> Conditioning:
    """Return ``conditioning`` with the guides of a part ``conditioning`` behind those that it has; nothing is changed
    in place, since ComfyUI may hand the same conditioning to other nodes."""
    guides = _keyframes(read_part(data, name="conditioning"), facts)
    return [
        [embeds, {**extra, _KEYFRAMES: [*(extra.get(_KEYFRAMES) or ()), *guides]}, *rest]
        for embeds, extra, *rest in conditioning
    ]


def _keyframes(tensors: Mapping[str, torch.Tensor], facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    entries = []
    for index, condition in enumerate(facts.get("conditions") or ()):
        entry: dict[str, Any] = {"resolved_frame_index": int(condition["frame"])}
        for key, suffix in (("latent", "video"), ("audio_latent", "audio")):
            if f"conditions.{index}.{suffix}" in tensors:
                entry[key] = tensors[f"conditions.{index}.{suffix}"]
        entries.append(entry)
    return entries


def _references(tensors: Mapping[str, torch.Tensor]) -> list[dict[str, Any]]:
    """Return the references with the keys that ComfyUI's model reads; an absent latent has no key there."""
    entries: list[dict[str, Any]] = []
    pictures = 0
    while True:
        video, audio = (tensors.get(f"references.{len(entries)}.{suffix}") for suffix in ("video", "audio"))
        if video is None and audio is None:
            return entries
        # One latent frame is a picture: a clip has two or more.
        is_picture = video is not None and audio is None and video.shape[2] == 1
        pictures += is_picture
        entry: dict[str, Any] = {"kind": "image" if is_picture else _KINDS[video is not None, audio is not None]}
        if video is not None:
            latent_t, latent_h, latent_w = video.shape[2:]
            entry |= {"latent": video, "latent_t": latent_t, "latent_h": latent_h, "latent_w": latent_w}
        entry["ref_audio_t"] = 0 if audio is None else audio.shape[3]
        if audio is not None:
            entry["audio_latent"] = audio
        if is_picture:
            entry["picture_index"] = pictures
        entries.append(entry)
