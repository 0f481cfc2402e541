"""Requests against the model and the operator's limits: every bad input gets its code, field, value and remedy."""

from __future__ import annotations

from typing import Any

import pytest

from engine.contract.checks import Plan, check_request
from engine.contract.errors import RequestError
from engine.contract.framing import TensorInfo
from engine.contract.limits import Limits, ModelFacts
from engine.contract.requests import STAGES, parse_request
from engine.contract.tensors import check_latent_shapes

FACTS = ModelFacts()
LIMITS = Limits()
DENOISE = {"task": "denoise", "width": 1344, "height": 768, "frames": 124, "steps": 4, "seed": 0}
GENERATE = {"task": "generate", "prompt": "a red fox"}


def info(name: str, dtype: str, *shape: int) -> TensorInfo:
    """Return a tensor's description; the checks do not read its byte range."""
    return TensorInfo(name, dtype, shape, 0, 0)


def conditioning(
    rows: int = 9, width: int = 5120, *, batch: int = 1, tags: int | None = None, dtype: str = "F32"
) -> Any:
    """Return the header of a conditioning part."""
    return {
        "conditioning": {
            "prompt_embeds": info("prompt_embeds", dtype, batch, rows, width),
            "token_tags": info("token_tags", "I64", rows if tags is None else tags),
        }
    }


def latents(video: tuple[int, ...] = (1, 24, 37, 48, 84), audio: tuple[int, ...] = (1, 32, 2, 207)) -> Any:
    """Return the header of a latents part (124 frames of 1344x768)."""
    return {"latents": {"video": info("video", "F32", *video), "audio": info("audio", "F32", *audio)}}


def check(
    data: dict[str, Any], headers: Any = None, *, limits: Limits = LIMITS, stages: tuple[str, ...] = STAGES
) -> Plan:
    """Parse and check a request."""
    return check_request(parse_request(data), facts=FACTS, limits=limits, headers=headers or {}, stages=stages)


def refused(data: dict[str, Any], headers: Any = None, **options: Any) -> RequestError:
    """Return the error that a request gets, complete with message and remedy."""
    with pytest.raises(RequestError) as caught:
        check(data, headers, **options)
    error = caught.value
    assert error.message
    assert error.remedy
    assert error.field
    assert 400 <= error.status < 500
    return error


def codes(plan: Plan) -> list[str]:
    """Return the codes of a plan's warnings."""
    return [warning.code for warning in plan.warnings]


# --- what passes --------------------------------------------------------------------------------------------------


def test_a_generate_request_without_sizes_gets_the_default_canvas_and_five_seconds() -> None:
    plan = check(GENERATE)
    assert (plan.facts["width"], plan.facts["height"], plan.facts["frames"]) == (1344, 768, 124)
    assert plan.stages == ("encode_prompt", "denoise", "decode_audio", "decode_video")
    assert codes(plan) == ["frames_snapped"]


def test_a_snapped_frame_count_is_reported_never_silent() -> None:
    plan = check({**GENERATE, "frames": 120})
    assert plan.facts["frames"] == 124
    assert "120 frames became 124" in plan.warnings[0].message
    assert codes(check({**GENERATE, "frames": 124})) == []


def test_fifteen_seconds_are_in_the_trained_range() -> None:
    plan = check({**GENERATE, "seconds": 15.0})
    assert plan.facts["frames"] == 362
    assert "untrained_length" not in codes(plan)


@pytest.mark.parametrize("seconds", [0.25, 3.0, 16.0, 45.0, 60.0])
def test_lengths_outside_the_trained_range_pass_with_a_warning(seconds: float) -> None:
    assert "untrained_length" in codes(check({**GENERATE, "seconds": seconds}))


@pytest.mark.parametrize("seconds", [4.0, 5.0, 15.0])
def test_lengths_inside_the_trained_range_do_not_warn(seconds: float) -> None:
    assert "untrained_length" not in codes(check({**GENERATE, "seconds": seconds}))


@pytest.mark.parametrize("rows", [1, 2048])
def test_the_shortest_and_the_longest_conditioning_pass(rows: int) -> None:
    assert check(DENOISE, conditioning(rows=rows)).facts["frames"] == 124


def test_a_canvas_over_the_trained_area_passes_with_advice() -> None:
    plan = check({**GENERATE, "width": 1376, "height": 768, "frames": 124})
    assert codes(plan) == ["untrained_canvas"]
    assert "1344x768" in plan.warnings[0].message
    assert codes(check({**GENERATE, "width": 864, "height": 480, "frames": 124})) == []


def test_denoise_and_decode_report_what_the_request_came_to() -> None:
    assert check(DENOISE, conditioning()).facts["audio_latents"] == 207
    assert check({"task": "decode"}, latents()).facts == {
        "width": 1344,
        "height": 768,
        "frames": 124,
        "seconds": 124 / 24,
    }


def test_a_latent_of_one_frame_can_be_decoded() -> None:
    assert check_latent_shapes((1, 24, 1, 4, 4), (1, 32, 2, 2), FACTS) == 1


def test_echo_takes_any_part() -> None:
    assert check({"task": "echo"}, {"anything": {}}).stages == ()


# --- what does not ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", ["", " ", "\n\t"])
@pytest.mark.parametrize("task", ["generate", "encode_prompt"])
def test_an_empty_prompt_is_refused(task: str, prompt: str) -> None:
    error = refused({"task": task, "prompt": prompt})
    assert (error.code, error.field, error.value) == ("prompt_empty", "request.prompt", prompt)


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"width": 848, "height": 480}, "bad_canvas", "request.width"),
        ({"width": 864, "height": 488}, "bad_canvas", "request.height"),
        ({"width": 0, "height": 480}, "bad_canvas", "request.width"),
        ({"width": -64, "height": 480}, "bad_canvas", "request.width"),
        ({"width": 3232, "height": 800}, "bad_aspect", "request.width"),
        ({"width": 800, "height": 3232}, "bad_aspect", "request.width"),
        ({"width": 864}, "missing_field", "request.height"),
        ({"height": 480}, "missing_field", "request.width"),
        ({"width": 864.0, "height": 480}, "wrong_type", "request.width"),
        ({"width": "864", "height": 480}, "wrong_type", "request.width"),
        ({"seconds": 0}, "out_of_range", "request.seconds"),
        ({"seconds": -5.0}, "out_of_range", "request.seconds"),
        ({"seconds": float("nan")}, "out_of_range", "request.seconds"),
        ({"seconds": float("inf")}, "out_of_range", "request.seconds"),
        ({"seconds": 1e300}, "out_of_range", "request.seconds"),
        ({"seconds": "5"}, "wrong_type", "request.seconds"),
        ({"seconds": True}, "wrong_type", "request.seconds"),
        ({"seconds": 0.1}, "out_of_range", "request.seconds"),
        ({"seconds": 61.0}, "out_of_range", "request.seconds"),
        ({"seconds": 5.0, "frames": 124}, "out_of_range", "request.frames"),
        ({"frames": 4}, "out_of_range", "request.frames"),
        ({"frames": 1}, "out_of_range", "request.frames"),
        ({"frames": 2**62}, "out_of_range", "request.frames"),
        ({"frames": 10**400}, "out_of_range", "request.frames"),
        ({"frames": 124.0}, "wrong_type", "request.frames"),
        ({"steps": 0}, "out_of_range", "request.steps"),
        ({"steps": -1}, "out_of_range", "request.steps"),
        ({"steps": 1001}, "out_of_range", "request.steps"),
        ({"steps": True}, "wrong_type", "request.steps"),
        ({"seed": -1}, "out_of_range", "request.seed"),
        ({"seed": 2**64}, "out_of_range", "request.seed"),
        ({"seed": 1.5}, "wrong_type", "request.seed"),
        ({"container": "mkv"}, "out_of_range", "request.container"),
        ({"prompt": None}, "wrong_type", "request.prompt"),
        ({"prompt": "half of \ud83d"}, "out_of_range", "request.prompt"),
        ({"negative_prompt": "x"}, "unknown_field", "request.negative_prompt"),
    ],
)
def test_a_bad_field_of_generate_is_refused(change: dict[str, Any], code: str, field: str) -> None:
    error = refused({**GENERATE, **change})
    assert (error.code, error.field) == (code, field)


def test_the_largest_seed_passes() -> None:
    assert check({**GENERATE, "seed": 2**64 - 1}).facts["seed"] == 2**64 - 1


@pytest.mark.parametrize("task", [None, 1, "upscale", ["generate"]])
def test_an_unknown_task_is_refused(task: Any) -> None:
    error = refused({"task": task, "prompt": "x"})
    assert (error.code, error.field) == ("missing_field" if task is None else "unknown_message", "request.task")


@pytest.mark.parametrize(
    ("headers", "code", "field"),
    [
        ({}, "missing_field", "parts.conditioning"),
        ({"conditioning": {}}, "bad_tensor", "parts.conditioning.prompt_embeds"),
        ({**conditioning(), "more": {}}, "unknown_field", "parts.more"),
        (conditioning(width=4096), "wrong_model", "parts.conditioning.prompt_embeds"),
        (conditioning(batch=2), "bad_tensor", "parts.conditioning"),
        (conditioning(rows=0), "bad_tensor", "parts.conditioning"),
        (conditioning(tags=8), "bad_tensor", "parts.conditioning"),
        (conditioning(dtype="I64"), "bad_tensor", "parts.conditioning.prompt_embeds"),
        (conditioning(rows=2049), "prompt_too_long", "parts.conditioning.prompt_embeds"),
    ],
)
def test_a_conditioning_that_does_not_fit_is_refused(headers: Any, code: str, field: str) -> None:
    error = refused(DENOISE, headers)
    assert (error.code, error.field) == (code, field)


@pytest.mark.parametrize(
    ("headers", "code", "field"),
    [
        (latents(video=(1, 4, 37, 48, 84)), "wrong_model", "parts.latents"),
        (latents(audio=(1, 8, 2, 207)), "wrong_model", "parts.latents"),
        (latents(video=(2, 24, 37, 48, 84)), "bad_tensor", "parts.latents"),
        (latents(audio=(1, 32, 1, 207)), "bad_tensor", "parts.latents"),
        (latents(video=(1, 24, 0, 48, 84)), "bad_tensor", "parts.latents"),
        (latents(audio=(1, 32, 2, 206)), "bad_tensor", "parts.latents.audio"),
        (latents(video=(1, 24, 37, 47, 84)), "bad_canvas", "parts.latents.height"),
        (latents(video=(1, 24, 37, 4, 84)), "bad_aspect", "parts.latents.width"),
        (latents(video=(1, 24, 37, 48)), "bad_tensor", "parts.latents.video"),
        ({"latents": {"samples": info("samples", "F32", 1, 4, 64, 64)}}, "bad_tensor", "parts.latents.video"),
        ({}, "missing_field", "parts.latents"),
    ],
)
def test_a_latent_of_another_model_is_refused(headers: Any, code: str, field: str) -> None:
    error = refused({"task": "decode"}, headers)
    assert (error.code, error.field) == (code, field)


def test_a_latent_longer_than_the_operator_allows_is_refused() -> None:
    headers = latents(video=(1, 24, 37, 4, 4))
    error = refused({"task": "decode"}, headers, limits=Limits(max_seconds=2.0))
    assert (error.code, error.value) == ("out_of_range", 124)
    assert "--max-seconds" in str(error.remedy)


def test_the_operators_own_limits_are_used() -> None:
    refused({**GENERATE, "seconds": 3.0}, limits=Limits(max_seconds=2.0))
    assert check({**GENERATE, "seconds": 90.0}, limits=Limits(max_seconds=90.0)).facts["frames"] >= 90 * 24
    assert refused(DENOISE, conditioning(rows=11), limits=Limits(max_prompt_tokens=10)).code == "prompt_too_long"


@pytest.mark.parametrize(("task", "served"), [("generate", ("denoise",)), ("decode", ("decode_video",))])
def test_a_stage_that_is_not_served_is_refused(task: str, served: tuple[str, ...]) -> None:
    error = refused({**GENERATE} if task == "generate" else {"task": task}, stages=served)
    assert (error.code, error.status) == ("stage_not_served", 422)
    assert served[0] in str(error.remedy)


@pytest.mark.parametrize(("width", "height", "field"), [(8224, 4096, "width"), (4096, 8224, "height")])
def test_a_side_above_the_operators_limit_is_refused(width: int, height: int, field: str) -> None:
    error = refused({**GENERATE, "width": width, "height": height})
    assert (error.code, error.field, error.value) == ("bad_canvas", f"request.{field}", 8224)
    assert check({**GENERATE, "width": 8192, "height": 8192}).facts["width"] == 8192
    assert refused({**GENERATE, "width": 64, "height": 64}, limits=Limits(max_side=32)).code == "bad_canvas"
    assert refused({"task": "decode"}, latents(), limits=Limits(max_side=1312)).field == "parts.latents.width"
