"""Checks of a request against the model and the operator's limits, before any rank wakes.

`check_request` returns a `Plan`: the request with every default and snap resolved, plus what the user should be told.
A prompt's tokens are counted by the caller, who passes the plan through `check_tokens` then.
Raises `RequestError`; touches no tensor data, only headers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from . import geometry
from .errors import RequestError
from .framing import TensorInfo
from .lengths import check_prompt_tokens, check_rows
from .limits import DEFAULT_SECONDS, MAX_SEED, MAX_STEPS, Limits, ModelFacts
from .messages import Warned
from .requests import Decode, Denoise, Echo, EncodePrompt, Generate, Request, input_parts, stages_of

Headers = Mapping[str, Mapping[str, TensorInfo]]
"""Part name → tensor name → info."""


@dataclass(frozen=True)
class Plan:
    """A checked request.

    Attributes:
        request: the request with sizes and frames resolved (``width``, ``height``, ``frames`` are final).
        warnings: what to tell the user.
        facts: what the request came to, for the ``started`` event.
    """

    request: Request
    warnings: tuple[Warned, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages that will run, in order."""
        return stages_of(self.request)


def check_request(
    request: Request, *, facts: ModelFacts, limits: Limits, headers: Headers, stages: tuple[str, ...]
) -> Plan:
    """Check ``request`` and the headers of its parts, and resolve it.

    Args:
        stages: the stages this engine serves.

    Raises:
        RequestError: naming field, value and remedy.
    """
    for stage in stages_of(request):
        if stage not in stages:
            raise RequestError(
                "stage_not_served",
                f"This engine does not serve the stage {stage!r}.",
                field="request.task",
                value=request.task,
                remedy=f"It serves {', '.join(stages)}; point this node at an engine that serves {stage!r}.",
            )
    _check_parts(request, headers)
    if isinstance(request, EncodePrompt):
        _check_prompt(request.prompt)
        return Plan(request)
    if isinstance(request, Denoise):
        text_rows = _check_conditioning(headers["conditioning"], facts, limits)
        return _with_rows(_check_sampling(request, facts, limits), text_rows=text_rows, facts=facts, limits=limits)
    if isinstance(request, Decode):
        return _check_latents(request, headers["latents"], facts, limits)
    if isinstance(request, Generate):
        _check_prompt(request.prompt)
        return _check_sampling(_resolve_generate(request, facts, limits), facts, limits)
    assert isinstance(request, Echo)
    return Plan(request)


def check_tokens(plan: Plan, tokens: int, *, facts: ModelFacts, limits: Limits) -> Plan:
    """Check what hangs on the token count of the prompt: its own length and a pinned length of the sequence.

    Args:
        plan: of `EncodePrompt` or `Generate`, from `check_request`.

    Raises:
        RequestError: ``prompt_too_long``, or ``out_of_range`` for ``pad_seq_len``.
    """
    check_prompt_tokens(tokens, limits)
    if isinstance(plan.request, Generate):
        return _with_rows(plan, text_rows=tokens, facts=facts, limits=limits)
    return plan


def _with_rows(plan: Plan, *, text_rows: int, facts: ModelFacts, limits: Limits) -> Plan:
    assert isinstance(plan.request, (Denoise, Generate))
    found = check_rows(plan.request, text_rows=text_rows, facts=facts, limits=limits)
    return dataclasses.replace(plan, facts={**plan.facts, **found})


def _check_parts(request: Request, headers: Headers) -> None:
    wanted = input_parts(request)
    for name in wanted:
        if name not in headers:
            raise RequestError(
                "missing_field",
                f"The task {request.task!r} needs the part {name!r}.",
                field=f"parts.{name}",
                remedy=f"Send the part {name!r} as safetensors.",
            )
    if not isinstance(request, Echo):
        for name in headers:
            if name not in wanted:
                raise RequestError(
                    "unknown_field",
                    f"The task {request.task!r} takes no part {name!r}.",
                    field=f"parts.{name}",
                    remedy=f"It takes {', '.join(wanted) or 'no part'}.",
                )


def _check_prompt(prompt: str) -> None:
    if not prompt.strip():
        raise RequestError(
            "prompt_empty",
            "The prompt is empty.",
            field="request.prompt",
            value=prompt,
            remedy="Describe the shot in a few words.",
        )


def _resolve_generate(request: Generate, facts: ModelFacts, limits: Limits) -> Generate:
    if request.seconds is not None and request.frames is not None:
        raise RequestError(
            "out_of_range",
            "Give seconds or frames, not both.",
            field="request.frames",
            value=request.frames,
            remedy="Leave one of them out.",
        )
    if (request.width is None) != (request.height is None):
        missing = "width" if request.width is None else "height"
        raise RequestError(
            "missing_field",
            "Give width and height together, or neither.",
            field=f"request.{missing}",
            remedy=f"Add {missing}, or leave both out for the default canvas.",
        )
    width, height = request.width, request.height
    if width is None or height is None:
        width, height = geometry.default_canvas(
            short_edge=facts.canvas_short_edge,
            max_pixels=facts.canvas_max_pixels,
            multiple=facts.canvas_multiple,
        )
    frames = request.frames
    if frames is None:
        seconds = DEFAULT_SECONDS if request.seconds is None else request.seconds
        frames = geometry.frames_of_seconds(seconds, path="request.")
        check_length(geometry.snap_frames(frames), limits, seconds=seconds)
    return dataclasses.replace(request, width=width, height=height, frames=frames, seconds=None)


def _check_sampling(request: Denoise | Generate, facts: ModelFacts, limits: Limits) -> Plan:
    assert request.width is not None
    assert request.height is not None
    assert request.frames is not None
    geometry.check_canvas(request.width, request.height, multiple=facts.canvas_multiple, path="request.")
    _check_sides(request.width, request.height, limits, path="request.")
    _check_range("steps", request.steps, 1, MAX_STEPS, "A step is one forward of the transformer; 30 to 50 are usual.")
    _check_range("seed", request.seed, 0, MAX_SEED, "Use a whole number from 0 to 2^64 - 1.")
    frames = geometry.snap_frames(request.frames, path="request.")
    check_length(frames, limits)
    warnings = [
        *_length_warnings(request.frames, frames),
        *_canvas_warnings(request.width, request.height, facts),
    ]
    return Plan(
        dataclasses.replace(request, frames=frames),
        tuple(warnings),
        {
            "width": request.width,
            "height": request.height,
            "frames": frames,
            "seconds": frames / geometry.FPS,
            "latent_frames": geometry.latent_frames(frames),
            "audio_latents": geometry.audio_latents(frames),
            "steps": request.steps,
            "seed": request.seed,
        },
    )


def _check_sides(width: int, height: int, limits: Limits, *, path: str) -> None:
    for name, value in (("width", width), ("height", height)):
        if value > limits.max_side:
            raise RequestError(
                "bad_canvas",
                f"This engine makes at most {limits.max_side} pixels a side.",
                field=f"{path}{name}",
                value=value,
                remedy=f"Use {limits.max_side} or less, or raise --max-side.",
            )


def check_length(frames: int, limits: Limits, *, seconds: float | None = None) -> None:
    """Check a snapped frame count against the operator's longest video.

    Args:
        seconds: what the caller asked for, when that was a duration.

    Raises:
        RequestError: ``out_of_range``.
    """
    longest = geometry.snap_frames(max(geometry.MIN_FRAMES, round(limits.max_seconds * geometry.FPS)))
    if frames > longest:
        raise RequestError(
            "out_of_range",
            f"{frames} frames are {frames / geometry.FPS:.1f} s; this engine makes at most {limits.max_seconds:g} s.",
            field="request.frames" if seconds is None else "request.seconds",
            value=frames if seconds is None else seconds,
            remedy=f"Ask for {limits.max_seconds:g} s or less, or start the engine (h3-engine serve) with a higher "
            "--max-seconds.",
        )


def _check_range(name: str, value: int, low: int, high: int, remedy: str) -> None:
    if not low <= value <= high:
        raise RequestError(
            "out_of_range",
            f"{name} must be {low} to {high}.",
            field=f"request.{name}",
            value=value,
            remedy=remedy,
        )


def _length_warnings(asked: int, frames: int) -> list[Warned]:
    warnings = []
    if asked != frames:
        warnings.append(
            Warned(
                "frames_snapped",
                f"{asked} frames became {frames} ({frames / geometry.FPS:.2f} s): the model makes 17n+5.",
            )
        )
    if not geometry.TRAINED_MIN_FRAMES <= frames <= geometry.TRAINED_MAX_FRAMES:
        warnings.append(
            Warned(
                "untrained_length",
                f"{frames / geometry.FPS:.1f} s is outside the trained range of about 4 to 15 s.",
            )
        )
    return warnings


def _canvas_warnings(width: int, height: int, facts: ModelFacts) -> list[Warned]:
    if width * height <= facts.canvas_max_pixels:
        return []
    best = geometry.default_canvas(
        width,
        height,
        short_edge=facts.canvas_short_edge,
        max_pixels=facts.canvas_max_pixels,
        multiple=facts.canvas_multiple,
    )
    return [
        Warned(
            "untrained_canvas",
            f"{width}x{height} is larger than the trained area; {best[0]}x{best[1]} has nearly the same shape.",
        )
    ]


def _check_conditioning(tensors: Mapping[str, TensorInfo], facts: ModelFacts, limits: Limits) -> int:
    """Return the text rows."""
    embeds = _tensor(tensors, "conditioning", "prompt_embeds", ("F32", "BF16", "F16"), 3)
    tags = _tensor(tensors, "conditioning", "token_tags", ("I64",), 1)
    if embeds.shape[2] != facts.text_dim:
        raise RequestError(
            "wrong_model",
            f"The conditioning is {embeds.shape[2]} wide, this model reads {facts.text_dim}.",
            field="parts.conditioning.prompt_embeds",
            value=str(list(embeds.shape)),
            remedy="Encode the prompt with H3EngineTextEncode (or a MiniMax-H3 encoder) of the same model.",
        )
    if embeds.shape[0] != 1 or embeds.shape[1] < 1 or tags.shape != (embeds.shape[1],):
        raise RequestError(
            "bad_tensor",
            f"prompt_embeds is [1, L, {facts.text_dim}] and token_tags [L].",
            field="parts.conditioning",
            value=f"{list(embeds.shape)}, {list(tags.shape)}",
            remedy="Send one prompt with one tag for each of its rows.",
        )
    if embeds.shape[1] > limits.max_prompt_tokens:
        raise RequestError(
            "prompt_too_long",
            f"The conditioning has {embeds.shape[1]} rows, the limit is {limits.max_prompt_tokens}.",
            field="parts.conditioning.prompt_embeds",
            value=embeds.shape[1],
            remedy="Shorten the prompt, or raise --max-prompt-tokens.",
        )
    return embeds.shape[1]


def _check_latents(request: Decode, tensors: Mapping[str, TensorInfo], facts: ModelFacts, limits: Limits) -> Plan:
    video = _tensor(tensors, "latents", "video", ("F32", "BF16", "F16"), 5)
    audio = _tensor(tensors, "latents", "audio", ("F32", "BF16", "F16"), 4)
    frames = check_latent_shapes(video.shape, audio.shape, facts)
    check_length(frames, limits)
    height, width = (side * facts.spatial_ratio for side in video.shape[3:])
    geometry.check_canvas(width, height, multiple=facts.canvas_multiple, path="parts.latents.")
    _check_sides(width, height, limits, path="parts.latents.")
    return Plan(
        request,
        (),
        {"width": width, "height": height, "frames": frames, "seconds": frames / geometry.FPS},
    )


def check_latent_shapes(video: tuple[int, ...], audio: tuple[int, ...], facts: ModelFacts) -> int:
    """Check that two latent shapes are this model's and belong together; return the pixel frames they make.

    Args:
        video: [1, C, T, H/16, W/16]. audio: [1, Ca, 2, A].

    Raises:
        RequestError: ``wrong_model`` or ``bad_tensor``.
    """
    channels = (facts.latent_channels, facts.audio_latent_channels)
    wanted = f"video [1, {channels[0]}, T, H/16, W/16] and audio [1, {channels[1]}, 2, A]"
    shown = f"{list(video)} and {list(audio)}"
    if len(video) != 5 or len(audio) != 4 or (video[1], audio[1]) != channels:
        message = f"A latent of this model is {wanted}; this is {shown}."
        raise _latent_error("wrong_model", message, field="parts.latents", value=shown)
    if video[0] != 1 or audio[0] != 1 or audio[2] != geometry.AUDIO_CHANNELS or min(video) < 1 or min(audio) < 1:
        message = f"The batch is 1 and the sound stereo: {wanted}; this is {shown}."
        raise _latent_error("bad_tensor", message, field="parts.latents", value=shown)
    frames = geometry.frames_of_latents(video[2])
    needed = geometry.audio_latents(frames)
    if audio[3] != needed:
        message = f"{video[2]} latent frames make {frames} frames and need {needed} audio latents, not {audio[3]}."
        raise _latent_error("bad_tensor", message, field="parts.latents.audio", value=audio[3])
    return frames


def _latent_error(code: str, message: str, *, field: str, value: object) -> RequestError:
    remedy = "Connect a latent from H3EngineEmptyLatent or H3EngineSampler of the same model."
    return RequestError(code, message, field=field, value=value, remedy=remedy)


def _tensor(tensors: Mapping[str, TensorInfo], part: str, name: str, dtypes: tuple[str, ...], rank: int) -> TensorInfo:
    info = tensors.get(name)
    path = f"parts.{part}.{name}"
    if info is None:
        raise RequestError(
            "bad_tensor",
            f"The part {part!r} has no tensor {name!r}.",
            field=path,
            value=", ".join(tensors),
            remedy=f"Store {name!r} in it.",
        )
    if info.dtype not in dtypes or len(info.shape) != rank:
        raise RequestError(
            "bad_tensor",
            f"{name} has {rank} dimensions and one of the types {', '.join(dtypes)}.",
            field=path,
            value=f"{info.dtype} {list(info.shape)}",
            remedy="Convert the tensor.",
        )
    return info
