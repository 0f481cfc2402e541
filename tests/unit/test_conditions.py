"""Encoded keyframes, guides and references against the video that `Denoise` asks for."""

from __future__ import annotations

from typing import Any

import pytest

from engine.contract.checks import check_request
from engine.contract.errors import RequestError
from engine.contract.framing import TensorInfo
from engine.contract.limits import Limits, ModelFacts
from engine.contract.requests import STAGES, parse_request

FACTS = ModelFacts()
DENOISE = {"task": "denoise", "width": 1344, "height": 768, "frames": 124, "steps": 4}
ROWS = 37_721
"""Rows of `DENOISE` with a text of 11."""
CANVAS = (48, 84)


def tensor(*shape: int, dtype: str = "F32") -> TensorInfo:
    return TensorInfo("", dtype, shape, 0, 0)


def video(t: int = 1, h: int = CANVAS[0], w: int = CANVAS[1], channels: int = 24) -> TensorInfo:
    return tensor(1, channels, t, h, w)


def audio(a: int, channels: int = 32) -> TensorInfo:
    return tensor(1, channels, 2, a)


def check(fields: dict[str, Any], tensors: dict[str, TensorInfo], *, text: int = 11, limits: Any = None) -> Any:
    """Check a `Denoise` request whose conditioning holds ``tensors`` besides its text."""
    text_part = {"prompt_embeds": tensor(1, text, 5120), "token_tags": tensor(text, dtype="I64")}
    headers = {"conditioning": {**text_part, **tensors}}
    request = parse_request({**DENOISE, **fields})
    return check_request(request, facts=FACTS, limits=limits or Limits(), headers=headers, stages=STAGES)


def refused(fields: dict[str, Any], tensors: dict[str, TensorInfo], **options: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        check(fields, tensors, **options)
    assert caught.value.remedy
    return caught.value


def at(*frames: int) -> dict[str, Any]:
    return {"conditions": [{"frame": frame} for frame in frames]}


def references(*kinds: str) -> dict[str, Any]:
    return {"references": [{"kind": kind} for kind in kinds]}


def test_without_conditions_the_rows_are_what_they_were() -> None:
    assert check({}, {}).facts["rows"] == ROWS


def test_every_condition_and_reference_adds_its_rows() -> None:
    cell = 24 * 42
    held = {"conditions.0.video": video(), "conditions.1.video": video(7), "conditions.1.audio": audio(10)}
    assert check(at(0, 102), held).facts["rows"] == ROWS + cell + 7 * cell + 20
    taken = {"references.0.video": video(1, 30, 20), "references.1.audio": audio(80)}
    assert check(references("image", "audio"), taken).facts["rows"] == ROWS + 150 + 160
    both = {"references.0.video": video(2, 4, 6), "references.0.audio": audio(3)}
    assert check(references("video_audio"), both).facts["rows"] == ROWS + 12 + 6


def test_a_reference_keeps_its_own_size() -> None:
    assert check(references("video"), {"references.0.video": video(12, 62, 2)}).facts["width"] == 1344


@pytest.mark.parametrize(("frame", "latents"), [(0, 1), (123, 1), (0, 37), (102, 7), (119, 2)])
def test_a_condition_that_ends_with_the_video_fits(frame: int, latents: int) -> None:
    check(at(frame), {"conditions.0.video": video(latents)})


@pytest.mark.parametrize(("frame", "latents"), [(1, 37), (103, 7), (120, 2)])
def test_a_condition_beyond_the_end_names_its_frames_and_the_videos(frame: int, latents: int) -> None:
    error = refused(at(frame), {"conditions.0.video": video(latents)})
    assert (error.code, error.field) == ("bad_tensor", "parts.conditioning.conditions.0.video")
    assert str(frame) in error.message
    assert "124" in error.message


@pytest.mark.parametrize("frame", [-1, 124, 2**40])
def test_a_condition_starts_inside_the_video(frame: int) -> None:
    error = refused(at(0, frame), {"conditions.0.video": video(), "conditions.1.video": video()})
    assert (error.code, error.field) == ("out_of_range", "request.conditions[1].frame")


def test_a_condition_of_another_canvas_is_refused_with_both_canvases() -> None:
    error = refused(at(0), {"conditions.0.video": video(1, 32, 56)})
    assert (error.code, error.field) == ("bad_tensor", "parts.conditioning.conditions.0.video")
    assert "896x512" in error.message
    assert "1344x768" in error.message


@pytest.mark.parametrize(("frame", "fits"), [(0, 207), (36, 147), (120, 7), (123, 2)])
def test_a_guides_sound_fits_behind_its_start(frame: int, fits: int) -> None:
    check(at(frame), {"conditions.0.audio": audio(fits)})
    error = refused(at(frame), {"conditions.0.audio": audio(fits + 1)})
    assert (error.code, error.field) == ("bad_tensor", "parts.conditioning.conditions.0.audio")
    assert f"room for {fits}" in error.message


@pytest.mark.parametrize(
    ("fields", "tensors", "code", "field"),
    [
        (at(0), {}, "bad_tensor", "conditions.0.video"),
        (at(0), {"conditions.0.video": tensor(1, 24, 1, 48)}, "bad_tensor", "conditions.0.video"),
        (at(0), {"conditions.0.video": video(channels=16)}, "wrong_model", "conditions.0.video"),
        (at(0), {"conditions.0.video": tensor(2, 24, 1, *CANVAS)}, "bad_tensor", "conditions.0.video"),
        (at(0), {"conditions.0.video": video(0)}, "bad_tensor", "conditions.0.video"),
        (at(0), {"conditions.0.audio": audio(4, channels=8)}, "wrong_model", "conditions.0.audio"),
        (at(0), {"conditions.0.audio": tensor(1, 32, 1, 4)}, "bad_tensor", "conditions.0.audio"),
        (at(0), {"conditions.0.audio": audio(0)}, "bad_tensor", "conditions.0.audio"),
        (references("image"), {"references.0.video": video(2)}, "bad_tensor", "references.0.video"),
        (references("image"), {"references.0.video": video(1, 3, 4)}, "bad_tensor", "references.0.video"),
        (references("image"), {"references.0.audio": audio(80)}, "bad_tensor", "references.0.audio"),
        (references("video_audio"), {"references.0.video": video()}, "bad_tensor", "references.0.audio"),
    ],
)
def test_tensors_that_are_no_conditions_are_refused(fields: Any, tensors: Any, code: str, field: str) -> None:
    error = refused(fields, tensors)
    assert (error.code, error.field) == (code, f"parts.conditioning.{field}")


def test_a_tensor_that_the_request_says_nothing_of_is_not_left_out_in_silence() -> None:
    error = refused(at(0), {"conditions.0.video": video(), "conditions.1.video": video()})
    assert (error.code, error.field, error.value) == ("bad_tensor", "request.conditions", "conditions.1.video")
    assert refused({}, {"references.0.audio": audio(80)}).field == "request.references"


def test_references_are_counted_here_too() -> None:
    held = {f"references.{index}.video": video() for index in range(10)}
    assert refused(references(*["image"] * 10), held).code == "media_limit"
    assert refused(references("audio"), {"references.0.audio": audio(80)}).code == "media_limit"


def test_a_text_with_pictures_may_be_longer_than_a_prompt() -> None:
    assert refused({}, {}, text=5000).code == "prompt_too_long"
    assert check(at(0), {"conditions.0.video": video()}, text=5000).facts["rows"] == ROWS - 11 + 5000 + 24 * 42
    error = refused(at(0), {"conditions.0.video": video()}, text=5000, limits=Limits(max_pad_seq_len=4992))
    assert error.code == "prompt_too_long"
    assert "--max-pad-seq-len" in str(error.remedy)
