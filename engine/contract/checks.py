"""Checks of a request against the model and the operator's limits, before any rank wakes.

`check_request` returns a `Plan`: the request with every default and snap resolved, plus what the user should be told.
A prompt's tokens are counted by the caller, who passes the plan through `check_tokens` then; a plan with media is final
once they were read, and has passed `finish_media`. Raises `RequestError`; touches no tensor data, only headers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from . import geometry
from .check_edits import check_edit_fields
from .check_masks import check_edit
from .check_media import check_media, check_parts, resolve_guides
from .conditions import check_conditions, kinds_of
from .edits import SourceEdit
from .errors import RequestError
from .extend import plan_extension
from .lengths import check_prompt_tokens, check_rows
from .limits import DEFAULT_SECONDS, MAX_OUTPUTS, MAX_SEED, MAX_STEPS, Limits, ModelFacts
from .media_limits import check_reference_counts
from .messages import Warned
from .requests import Decode, Denoise, Echo, EncodeMedia, EncodePrompt, Generate, Request, media_of, stages_of
from .tensors import Headers, check_latent_part, check_text

_Sized = TypeVar("_Sized", bound=EncodePrompt | EncodeMedia | Generate)


@dataclass(frozen=True)
class Plan:
    """A checked request.

    Attributes:
        request: the request with sizes and frames resolved; ``width`` and ``height`` are None as long as they follow
            from media that were not read yet.
        warnings: what to tell the user.
        facts: what the request came to, for the ``started`` event.
        text_tokens: of the prompt itself, once they are counted.
        planned: bytes that each stage is planned to take of each rank's device; empty where nobody planned.
    """

    request: Request
    warnings: tuple[Warned, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    text_tokens: int = 0
    planned: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages that will run, in order."""
        return stages_of(self.request)

    @property
    def has_media(self) -> bool:
        """Whether there are pictures or sound to be read before the ranks can start."""
        return next(media_of(self.request), None) is not None


def check_request(
    request: Request, *, facts: ModelFacts, limits: Limits, headers: Headers, stages: tuple[str, ...]
) -> Plan:
    """Check ``request`` and the headers of its parts, and resolve it.

    Args:
        headers: of every part that was sent. stages: the stages this engine serves.

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
                remedy=f"It serves {', '.join(stages)}; ask an engine that serves {stage!r}.",
            )
    if isinstance(request, (EncodePrompt, EncodeMedia, Generate)):
        check_media(request)
    check_parts(request, headers)
    if isinstance(request, Denoise):
        return _check_denoise(request, headers, facts, limits)
    if isinstance(request, Decode):
        width, height, frames = check_latent_part(headers["latents"], facts=facts)
        check_length(frames, limits)
        _check_sides(width, height, limits, path="parts.latents.")
        found = {"width": width, "height": height, "frames": frames, "seconds": frames / geometry.FPS}
        return Plan(request, facts=found)
    if isinstance(request, Echo):
        return Plan(request)
    if not isinstance(request, EncodeMedia):
        _check_prompt(request.prompt)
    if isinstance(request, Generate):
        return _check_sampling(_resolve_generate(request, facts, limits), facts, limits)
    return _check_encode(_resolve_size(request, facts), facts, limits)


def check_tokens(plan: Plan, tokens: int, *, facts: ModelFacts, limits: Limits) -> Plan:
    """Check what hangs on the token count of the prompt: its own length and a pinned length of the sequence.

    Args:
        plan: of `EncodePrompt` or `Generate`, from `check_request`.

    Raises:
        RequestError: ``prompt_too_long``, or ``out_of_range`` for ``pad_seq_len``.
    """
    check_prompt_tokens(tokens, limits)
    plan = dataclasses.replace(plan, text_tokens=tokens)
    if isinstance(plan.request, Generate) and not plan.has_media:
        return _with_rows(plan, text_rows=tokens, facts=facts, limits=limits)
    return plan


def finish_media(
    plan: Plan,
    request: Request,
    *,
    found: Mapping[str, Any],
    warnings: tuple[Warned, ...],
    facts: ModelFacts,
    limits: Limits,
) -> Plan:
    """Return the final plan of a request whose media were read.

    Args:
        plan: from `check_request` and `check_tokens`. request: the same request, its size resolved by what was read.
        found: facts of the media. warnings: what reading them came to.

    Raises:
        RequestError: as `check_request`, for a canvas that follows from a picture; ``out_of_range`` for a
            ``pad_seq_len`` that cannot hold even what is known.
    """
    if isinstance(request, Generate):
        checked = _check_sampling(request, facts, limits)
        if request.pad_seq_len is not None:
            # Pictures take rows of the text too, which the ranks count: this is the least that there will be.
            _with_rows(checked, text_rows=plan.text_tokens, facts=facts, limits=limits)
    else:
        assert isinstance(request, (EncodePrompt, EncodeMedia))
        checked = _check_encode(request, facts, limits)
    told = [*plan.warnings, *(warning for warning in (*checked.warnings, *warnings) if warning not in plan.warnings)]
    return dataclasses.replace(
        plan, request=checked.request, warnings=tuple(told), facts={**plan.facts, **checked.facts, **found}
    )


def _with_rows(plan: Plan, *, text_rows: int, facts: ModelFacts, limits: Limits, condition_rows: int = 0) -> Plan:
    assert isinstance(plan.request, (Denoise, Generate))
    found = check_rows(plan.request, text_rows=text_rows, condition_rows=condition_rows, facts=facts, limits=limits)
    return dataclasses.replace(plan, facts={**plan.facts, **found})


def _check_denoise(request: Denoise, headers: Headers, facts: ModelFacts, limits: Limits) -> Plan:
    tensors = headers["conditioning"]
    longest, remedy = limits.max_prompt_tokens, "Shorten the prompt, or raise --max-prompt-tokens."
    if request.conditions or request.references:
        # The text's rows include its pictures': how many of them are words, only the ranks can see.
        longest, remedy = limits.max_pad_seq_len, "Send fewer or smaller pictures, or raise --max-pad-seq-len."
    text_rows = check_text(tensors, facts=facts, longest=longest, remedy=remedy)
    check_reference_counts(list(kinds_of(request.references)))
    plan = _check_sampling(request, facts, limits)
    assert isinstance(plan.request, Denoise)
    rows = check_conditions(plan.request, tensors, facts)
    check_edit(plan.request, headers, facts)
    return _with_rows(plan, text_rows=text_rows, condition_rows=rows, facts=facts, limits=limits)


def _check_prompt(prompt: str) -> None:
    if not prompt.strip():
        raise RequestError(
            "prompt_empty",
            "The prompt is empty.",
            field="request.prompt",
            value=prompt,
            remedy="Describe the shot in a few words.",
        )


def _check_encode(request: EncodePrompt | EncodeMedia, facts: ModelFacts, limits: Limits) -> Plan:
    """Check the size of the video that something is encoded for, as far as it is known."""
    found: dict[str, Any] = {}
    warnings: list[Warned] = []
    if request.width is not None and request.height is not None:
        _check_canvas(request.width, request.height, facts, limits)
        found |= {"width": request.width, "height": request.height}
    if request.frames is not None:
        frames = geometry.snap_frames(request.frames, path="request.")
        check_length(frames, limits)
        found |= {"frames": frames, "seconds": frames / geometry.FPS}
        warnings += _length_warnings(request.frames, frames)
        request = dataclasses.replace(request, frames=frames)
        if isinstance(request, EncodeMedia):
            request = dataclasses.replace(request, guides=resolve_guides(request.guides, frames))
    return Plan(request, tuple(warnings), found)


def _resolve_size(request: _Sized, facts: ModelFacts) -> _Sized:
    """Fill in the default canvas where nothing else decides it, and see that what is needed is there."""
    if (request.width is None) != (request.height is None):
        missing = "width" if request.width is None else "height"
        raise RequestError(
            "missing_field",
            "Give width and height together, or neither.",
            field=f"request.{missing}",
            remedy=f"Add {missing}, or leave both out.",
        )
    guided = isinstance(request, EncodeMedia) and bool(request.guides)
    edits = isinstance(request, Generate) and request.edit is not None
    follows = isinstance(request, EncodeMedia) or edits or bool(request.keyframes)
    if not isinstance(request, Generate) and next(media_of(request), None) is None:
        return request
    if guided and request.width is None:
        raise _needed("width", "Guides are encoded for a canvas.")
    if request.frames is None and (guided or isinstance(request, EncodePrompt)):
        raise _needed("frames", "Pictures and sound are encoded for a video of a certain length.")
    if request.width is None and not follows:
        width, height = geometry.default_canvas(
            short_edge=facts.canvas_short_edge,
            max_pixels=facts.canvas_max_pixels,
            multiple=facts.canvas_multiple,
        )
        return dataclasses.replace(request, width=width, height=height)
    return request


def _needed(name: str, message: str) -> RequestError:
    return RequestError(
        "missing_field", message, field=f"request.{name}", remedy=f"Send the {name} of the video to come."
    )


def _resolve_generate(request: Generate, facts: ModelFacts, limits: Limits) -> Generate:
    if request.edit is not None:
        check_edit_fields(request.edit, {"frames": request.frames, "seconds": request.seconds})
        _check_edited_length(request.edit, limits)
        return _resolve_size(request, facts)
    if request.seconds is not None and request.frames is not None:
        raise RequestError(
            "out_of_range",
            "Give seconds or frames, not both.",
            field="request.frames",
            value=request.frames,
            remedy="Leave one of them out.",
        )
    frames = request.frames
    if frames is None:
        seconds = DEFAULT_SECONDS if request.seconds is None else request.seconds
        frames = geometry.frames_of_seconds(seconds, path="request.")
        check_length(geometry.snap_frames(frames), limits, seconds=seconds)
    return dataclasses.replace(_resolve_size(request, facts), frames=frames, seconds=None)


def _check_edited_length(edit: SourceEdit, limits: Limits) -> None:
    """Check the least that an edit comes to: nobody reads a clip for a video that is too long whatever is in it."""
    path = "request.edit."
    frames = geometry.MIN_FRAMES if edit.frames is None else geometry.snap_frames(edit.frames, path=path)
    check_length(frames, limits, field=f"{path}frames")
    if edit.extends:
        plan = plan_extension(frames, before=edit.before, after=edit.after, path=path)
        check_length(plan.frames, limits, field=path + ("before" if edit.before > edit.after else "after"))


def _check_sampling(request: Denoise | Generate, facts: ModelFacts, limits: Limits) -> Plan:
    """Check what is sampled; its canvas and length too, unless they follow from media that were not read yet."""
    warnings: list[Warned] = []
    size: dict[str, Any] = {}
    if request.width is not None and request.height is not None:
        _check_canvas(request.width, request.height, facts, limits)
        warnings += _canvas_warnings(request.width, request.height, facts)
        size = {"width": request.width, "height": request.height}
    _check_range("steps", request.steps, 1, MAX_STEPS, "A step is one forward of the transformer; 30 to 50 are usual.")
    _check_seeds(request)
    made = {"steps": request.steps, "seed": request.seed, "num_outputs": request.num_outputs}
    if request.frames is None:
        return Plan(request, tuple(warnings), {**size, **made})
    frames = geometry.snap_frames(request.frames, path="request.")
    check_length(frames, limits)
    warnings = [*_length_warnings(request.frames, frames), *warnings]
    if isinstance(request, Generate):
        request = dataclasses.replace(request, guides=resolve_guides(request.guides, frames))
    return Plan(
        dataclasses.replace(request, frames=frames),
        tuple(warnings),
        {
            **size,
            "frames": frames,
            "seconds": frames / geometry.FPS,
            "latent_frames": geometry.latent_frames(frames),
            "audio_latents": geometry.audio_latents(frames),
            **made,
        },
    )


def _check_seeds(request: Denoise | Generate) -> None:
    _check_range("num_outputs", request.num_outputs, 1, MAX_OUTPUTS, "Send several requests for more.")
    _check_range("seed", request.seed, 0, MAX_SEED, "Use a whole number from 0 to 2^64 - 1.")
    if request.seed + request.num_outputs - 1 > MAX_SEED:
        raise RequestError(
            "out_of_range",
            "The outputs' seeds, each one more than the last, go beyond 2^64 - 1.",
            field="request.seed",
            value=request.seed,
            remedy=f"Use {MAX_SEED - request.num_outputs + 1} or less.",
        )


def _check_canvas(width: int, height: int, facts: ModelFacts, limits: Limits) -> None:
    geometry.check_canvas(width, height, multiple=facts.canvas_multiple, path="request.")
    _check_sides(width, height, limits, path="request.")


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


def check_length(frames: int, limits: Limits, *, seconds: float | None = None, field: str = "request.frames") -> None:
    """Check a snapped frame count against the operator's longest video.

    Args:
        seconds: what the caller asked for, when that was a duration.
        field: which the frames come from, when they were not a duration.

    Raises:
        RequestError: ``out_of_range``.
    """
    longest = geometry.snap_frames(max(geometry.MIN_FRAMES, round(limits.max_seconds * geometry.FPS)))
    if frames > longest:
        raise RequestError(
            "out_of_range",
            f"{frames} frames are {frames / geometry.FPS:.1f} s; this engine makes at most {limits.max_seconds:g} s.",
            field=field if seconds is None else "request.seconds",
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
