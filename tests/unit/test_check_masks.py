"""Edits against their video: a source and masks that do not fit are refused by their headers, both sides named."""

from __future__ import annotations

from typing import Any

import pytest

from engine.contract.requests import optional_parts, parse_request
from tests.unit.test_checks import DENOISE, check, conditioning, info, latents, refused


def masks(video: tuple[int, ...] | None = (1, 1, 37, 48, 84), audio: tuple[int, ...] | None = (1, 1, 2, 207)) -> Any:
    """Return the header of a masks part (124 frames of 1344x768)."""
    found = {}
    if video is not None:
        found["video_noise_mask"] = info("video_noise_mask", "F32", *video)
    if audio is not None:
        found["audio_noise_mask"] = info("audio_noise_mask", "F32", *audio)
    return {"masks": found}


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({}, {}),
        ({}, masks()),
        ({}, masks(audio=None)),
        ({}, masks(video=None)),
        ({"video_mask": 0.0}, {}),
        ({"video_mask": 1, "audio_mask": 0.5}, {}),
        ({"video_mask": 0.25}, masks(video=None)),
    ],
)
def test_an_edit_that_fits_passes(fields: dict[str, Any], parts: Any) -> None:
    plan = check({**DENOISE, **fields}, {**conditioning(), **latents(), **parts})
    assert plan.stages == ("denoise",)
    for name, value in fields.items():
        assert getattr(plan.request, name) == value


@pytest.mark.parametrize(("fields", "parts"), [({"audio_mask": 0.0}, {}), ({"video_mask": 1.0}, {}), ({}, masks())])
def test_a_mask_without_a_source_is_an_error(fields: dict[str, Any], parts: Any) -> None:
    error = refused({**DENOISE, **fields}, {**conditioning(), **parts})
    assert (error.code, error.field) == ("missing_field", "parts.latents")


@pytest.mark.parametrize(
    ("shape", "found"),
    [
        ((1, 1, 37, 30, 54), "864x480 and 37 latent frames"),
        ((1, 1, 32, 48, 84), "1344x768 and 32 latent frames"),
        ((1, 1, 37, 24, 42), "672x384 and 37 latent frames"),
    ],
)
def test_a_mask_of_another_canvas_or_length_names_both(shape: tuple[int, ...], found: str) -> None:
    error = refused(DENOISE, {**conditioning(), **latents(), **masks(video=shape)})
    assert (error.code, error.field) == ("bad_mask", "parts.masks.video_noise_mask")
    assert found in error.message
    assert "1344x768 and 37" in error.message
    assert error.value == str(list(shape))


def test_a_sound_mask_of_another_length_names_both() -> None:
    error = refused(DENOISE, {**conditioning(), **latents(), **masks(audio=(1, 1, 2, 206))})
    assert (error.code, error.field) == ("bad_mask", "parts.masks.audio_noise_mask")
    assert "206" in error.message
    assert "207" in error.message


def test_a_source_of_another_canvas_names_both() -> None:
    error = refused(DENOISE, {**conditioning(), **latents((1, 24, 37, 30, 54)), "masks": {}})
    assert (error.code, error.field) == ("bad_tensor", "parts.latents")
    assert "864x480" in error.message
    assert "1344x768" in error.message


def test_a_source_of_another_length_names_both() -> None:
    error = refused(DENOISE, {**conditioning(), **latents((1, 24, 7, 48, 84), (1, 32, 2, 37))})
    assert error.field == "parts.latents"
    assert "22 frames" in error.message
    assert "124 frames" in error.message


@pytest.mark.parametrize("value", [-0.01, 1.01, 255])
@pytest.mark.parametrize("name", ["video_mask", "audio_mask"])
def test_a_number_beyond_0_to_1_is_no_mask(name: str, value: float) -> None:
    error = refused({**DENOISE, name: value}, {**conditioning(), **latents()})
    assert (error.code, error.field, error.value) == ("out_of_range", f"request.{name}", value)


def test_two_masks_of_one_stream_are_refused() -> None:
    error = refused({**DENOISE, "video_mask": 0.5}, {**conditioning(), **latents(), **masks()})
    assert (error.code, error.field) == ("out_of_range", "request.video_mask")


@pytest.mark.parametrize("dtype", ["BF16", "F64", "U8", "BOOL"])
def test_a_mask_is_float32(dtype: str) -> None:
    header = {"masks": {"video_noise_mask": info("video_noise_mask", dtype, 1, 1, 37, 48, 84)}}
    error = refused(DENOISE, {**conditioning(), **latents(), **header})
    assert (error.code, error.field) == ("bad_tensor", "parts.masks.video_noise_mask")


def test_an_unknown_mask_is_refused() -> None:
    header = {"masks": {"mask": info("mask", "F32", 1, 1, 37, 48, 84)}}
    error = refused(DENOISE, {**conditioning(), **latents(), **header})
    assert (error.code, error.field) == ("bad_mask", "parts.masks.mask")


def test_other_tasks_take_no_masks() -> None:
    assert optional_parts(parse_request({"task": "decode"})) == ()
    error = refused({"task": "decode"}, {**latents(), **masks()})
    assert (error.code, error.field) == ("unknown_field", "parts.masks")
