"""The encoded keyframes, guides and references of a conditioning, checked against the video they are meant for.

`Denoise` says what there is (`Condition`, `EncodedReference`), the header of its part ``conditioning`` what was sent:
both agree, and everything fits the canvas and the timeline, before any rank wakes. Raises `RequestError`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from . import geometry
from .errors import RequestError
from .framing import TensorInfo
from .limits import ModelFacts
from .media import Condition, EncodedReference, ReferenceKind
from .media_limits import guide_audio_latents
from .requests import Denoise
from .tensors import FLOATS, Tensors, tensor_of

_PART = "conditioning"
_STREAMS: dict[str, tuple[str, ...]] = {
    "image": ("video",),
    "video": ("video",),
    "video_audio": ("video", "audio"),
    "audio": ("audio",),
}
"""Kind of an encoded reference → its tensors."""


def check_conditions(request: Denoise, tensors: Tensors, facts: ModelFacts) -> int:
    """Check the conditions and references of a resolved request; return the rows that they take.

    Raises:
        RequestError: ``bad_tensor``, ``wrong_model`` or ``out_of_range``, naming the condition or reference.
    """
    _check_names(request, tensors)
    rows = 0
    for index, condition in enumerate(request.conditions):
        rows += _check_condition(request, condition, f"conditions.{index}", tensors, facts)
    for index, reference in enumerate(request.references):
        rows += _check_reference(reference, f"references.{index}", tensors, facts)
    return rows


def _check_names(request: Denoise, tensors: Tensors) -> None:
    """Check that no encoded tensor is there that the request says nothing of: it would be left out in silence."""
    counts = {"conditions": len(request.conditions), "references": len(request.references)}
    for name in tensors:
        found = re.fullmatch(r"(conditions|references)\.(\d+)\.(video|audio)", name, re.ASCII)
        if found and int(found[2]) >= counts[found[1]]:
            raise RequestError(
                "bad_tensor",
                f"The conditioning holds {name}, the request names {counts[found[1]]} {found[1]}.",
                field=f"request.{found[1]}",
                value=name,
                remedy=f"Send the facts {found[1]!r} of the job that encoded it.",
            )


def _check_condition(request: Denoise, condition: Condition, name: str, tensors: Tensors, facts: ModelFacts) -> int:
    """Return the rows of one keyframe or guide."""
    streams = [stream for stream in ("video", "audio") if f"{name}.{stream}" in tensors]
    if not streams:
        tensor_of(tensors, part=_PART, name=f"{name}.video", dtypes=FLOATS, rank=5)
    field = f"request.{name.replace('.', '[')}].frame"
    if not 0 <= condition.frame < request.frames:
        raise RequestError(
            "out_of_range",
            f"{name} starts at frame {condition.frame}; the video has the frames 0 to {request.frames - 1}.",
            field=field,
            value=condition.frame,
            remedy="Encode it for a video of this length.",
        )
    rows = 0
    for stream in streams:
        if stream == "video":
            rows += _check_condition_video(request, condition, f"{name}.video", tensors, facts)
        else:
            rows += _check_condition_audio(request, condition, f"{name}.audio", tensors, facts)
    return rows


def _check_condition_video(
    request: Denoise, condition: Condition, name: str, tensors: Tensors, facts: ModelFacts
) -> int:
    info = _video(tensors, name, facts)
    height, width = (side * facts.spatial_ratio for side in info.shape[3:])
    if (width, height) != (request.width, request.height):
        raise RequestError(
            "bad_tensor",
            f"{name} was encoded for a canvas of {width}x{height}, this video is {request.width}x{request.height}.",
            field=f"parts.{_PART}.{name}",
            value=str(list(info.shape)),
            remedy=f"Encode it for {request.width}x{request.height}, or make a video of {width}x{height}.",
        )
    length = geometry.frames_of_latents(info.shape[2])
    if condition.frame + length > request.frames:
        raise RequestError(
            "bad_tensor",
            f"{name} covers the frames {condition.frame} to {condition.frame + length - 1}, this video has "
            f"{request.frames}.",
            field=f"parts.{_PART}.{name}",
            value=str(list(info.shape)),
            remedy=f"Encode it for a video of {request.frames} frames, start it earlier, or make a longer video.",
        )
    return _video_rows(info, facts)


def _check_condition_audio(
    request: Denoise, condition: Condition, name: str, tensors: Tensors, facts: ModelFacts
) -> int:
    info = _audio(tensors, name, facts)
    room = guide_audio_latents(start=condition.frame, frames=request.frames)
    if info.shape[3] > room:
        raise RequestError(
            "bad_tensor",
            f"{name} has {info.shape[3]} audio latents; from frame {condition.frame} of {request.frames} on there is "
            f"room for {room}.",
            field=f"parts.{_PART}.{name}",
            value=str(list(info.shape)),
            remedy=f"Encode it for a video of {request.frames} frames, start it earlier, or make a longer video.",
        )
    return _audio_rows(info)


def _check_reference(reference: EncodedReference, name: str, tensors: Tensors, facts: ModelFacts) -> int:
    """Return the rows of one reference."""
    wanted = _STREAMS[reference.kind]
    rows = 0
    for stream in ("video", "audio"):
        if stream not in wanted and f"{name}.{stream}" in tensors:
            raise RequestError(
                "bad_tensor",
                f"A reference of the kind {reference.kind!r} has no {stream}.",
                field=f"parts.{_PART}.{name}.{stream}",
                value=reference.kind,
                remedy="Send the facts 'references' of the job that encoded it.",
            )
    if "video" in wanted:
        info = _video(tensors, f"{name}.video", facts)
        if reference.kind == "image" and info.shape[2] != 1:
            raise _wrong_shape(f"{name}.video", info, "The latent of an image has one frame")
        rows += _video_rows(info, facts)
    if "audio" in wanted:
        rows += _audio_rows(_audio(tensors, f"{name}.audio", facts))
    return rows


def _video(tensors: Tensors, name: str, facts: ModelFacts) -> TensorInfo:
    info = tensor_of(tensors, part=_PART, name=name, dtypes=FLOATS, rank=5)
    channels, (_, _, _, height, width) = facts.latent_channels, info.shape
    if info.shape[1] != channels:
        raise _wrong_shape(name, info, f"This model's latents have {channels} channels", code="wrong_model")
    if info.shape[0] != 1 or min(info.shape) < 1 or height % facts.patch or width % facts.patch:
        raise _wrong_shape(name, info, f"It is [1, {channels}, t, h, w] with h and w multiples of {facts.patch}")
    return info


def _audio(tensors: Tensors, name: str, facts: ModelFacts) -> TensorInfo:
    info = tensor_of(tensors, part=_PART, name=name, dtypes=FLOATS, rank=4)
    channels = facts.audio_latent_channels
    if info.shape[1] != channels:
        raise _wrong_shape(name, info, f"This model's audio latents have {channels} channels", code="wrong_model")
    if info.shape[0] != 1 or info.shape[2] != geometry.AUDIO_CHANNELS or info.shape[3] < 1:
        raise _wrong_shape(name, info, f"It is [1, {channels}, 2, a]")
    return info


def _wrong_shape(name: str, info: TensorInfo, wanted: str, *, code: str = "bad_tensor") -> RequestError:
    shape = list(info.shape)
    return RequestError(
        code,
        f"{wanted}; {name} is {shape}.",
        field=f"parts.{_PART}.{name}",
        value=str(shape),
        remedy="Encode it with the engine, or with a MiniMax-H3 encoder of the same model.",
    )


def _video_rows(info: TensorInfo, facts: ModelFacts) -> int:
    _, _, latents, height, width = info.shape
    return latents * (height // facts.patch) * (width // facts.patch)


def _audio_rows(info: TensorInfo) -> int:
    return info.shape[2] * info.shape[3]


def kinds_of(references: tuple[EncodedReference, ...]) -> Iterator[ReferenceKind]:
    """Yield of each encoded reference what it was: ``image``, ``video`` or ``audio``."""
    for reference in references:
        yield "video" if reference.kind == "video_audio" else reference.kind
