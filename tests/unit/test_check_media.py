"""What is checked of keyframes, references, guides and a source before anything is read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from engine.contract.checks import Plan, check_request, check_tokens, finish_media
from engine.contract.errors import RequestError
from engine.contract.framing import TensorInfo
from engine.contract.limits import Limits, ModelFacts
from engine.contract.messages import Warned
from engine.contract.requests import STAGES, EncodeMedia, Generate, file_parts, parse_request

FACTS, LIMITS = ModelFacts(), Limits()
GENERATE = {"task": "generate", "prompt": "a red fox", "frames": 124}
ENCODE = {"task": "encode_prompt", "prompt": "a red fox", "frames": 124}
GUIDES = {"task": "encode_media", "width": 1344, "height": 768, "frames": 124}
FRAMES = {"frames": TensorInfo("frames", "U8", (5, 8, 8, 3), 0, 0)}
SOUND = {"waveform": TensorInfo("waveform", "F32", (2, 800), 0, 0)}


def file(part: str = "a", **fields: Any) -> dict[str, Any]:
    """Return a `Media` that is a file."""
    return {"part": part, **fields}


def keyframe(part: str = "a", at: str = "first", **fields: Any) -> dict[str, Any]:
    return {"media": file(part, **fields), "at": at}


def reference(kind: str = "image", part: str = "a", **fields: Any) -> dict[str, Any]:
    return {"kind": kind, "media": file(part), **fields}


def guide(**fields: Any) -> dict[str, Any]:
    return {"media": file(), **fields}


def check(data: dict[str, Any], headers: dict[str, Any] | Iterable[str] = ("a",)) -> Plan:
    """Parse and check a request; ``headers`` may be the names of parts that are files."""
    made = headers if isinstance(headers, dict) else {name: {} for name in headers}
    return check_request(parse_request(data), facts=FACTS, limits=LIMITS, headers=made, stages=STAGES)


def refused(data: dict[str, Any], headers: dict[str, Any] | Iterable[str] = ("a",)) -> tuple[str, str | None]:
    """Return code and field of the error that a request gets, which is complete."""
    with pytest.raises(RequestError) as caught:
        check(data, headers)
    assert caught.value.message
    assert caught.value.remedy
    return caught.value.code, caught.value.field


# --- what passes --------------------------------------------------------------------------------------------------


def test_a_keyframe_leaves_the_canvas_open_until_it_is_read() -> None:
    plan = check({**GENERATE, "keyframes": [keyframe()]})
    assert isinstance(plan.request, Generate)
    assert (plan.request.width, plan.has_media, "width" in plan.facts) == (None, True, False)
    assert plan.stages == ("encode_prompt", "encode_media", "denoise", "decode_audio", "decode_video")


def test_references_and_guides_do_not_decide_the_canvas() -> None:
    for fields in ({"references": [reference()]}, {"guides": [guide()]}):
        plan = check({**GENERATE, **fields})
        assert (plan.facts["width"], plan.facts["height"]) == (1344, 768)
    assert check({**ENCODE, "references": [reference()]}).facts["width"] == 1344


def test_a_first_and_a_last_keyframe_may_be_the_same_part() -> None:
    assert check({**GENERATE, "keyframes": [keyframe(at="last"), keyframe(at="first")]}).has_media


def test_guides_go_with_keyframes_and_with_references() -> None:
    assert check({**GENERATE, "keyframes": [keyframe()], "guides": [guide()]}).has_media
    assert check({**GENERATE, "references": [reference()], "guides": [guide()]}).has_media


@pytest.mark.parametrize(
    ("start", "frame"),
    [
        ({}, 0),
        ({"frame": 36}, 36),
        ({"frame": -22}, 102),
        ({"frame": -124}, 0),
        ({"seconds": 0.0}, 0),
        ({"seconds": 1.5}, 36),
        ({"seconds": 5.1}, 122),
    ],
)
def test_a_guides_start_becomes_a_frame_of_the_snapped_timeline(start: dict[str, Any], frame: int) -> None:
    plan = check({**GENERATE, "frames": 120, "guides": [guide(**start)]})
    assert isinstance(plan.request, Generate)
    assert [(made.frame, made.seconds) for made in plan.request.guides] == [(frame, None)]
    again = check({**GUIDES, "frames": 120, "guides": [guide(**start)]})
    assert isinstance(again.request, EncodeMedia)
    assert again.request.guides[0].frame == frame
    assert [warning.code for warning in again.warnings] == ["frames_snapped"]


def test_decoded_media_pass_with_their_rates() -> None:
    pictures = {"part": "v", "format": "frames", "fps": 29.97}
    sound = {"part": "s", "format": "audio", "sample_rate": 44_100}
    request = {**GENERATE, "references": [{"kind": "video", "media": pictures, "audio": sound}]}
    assert check(request, {"v": FRAMES, "s": SOUND}).has_media


def test_a_source_needs_no_size() -> None:
    plan = check({"task": "encode_media", "source": {"media": file()}})
    assert (plan.facts, plan.has_media, plan.stages) == ({}, True, ("encode_media",))
    assert check({"task": "encode_media", "source": {"audio": file()}, "frames": 22}).facts["frames"] == 22


def test_only_files_are_no_safetensors() -> None:
    pictures = {"part": "v", "format": "frames"}
    request = parse_request({**GENERATE, "keyframes": [keyframe("a")], "guides": [{"media": pictures}]})
    assert file_parts(request) == {"a"}


def test_a_prompt_without_media_needs_no_length() -> None:
    assert not check({"task": "encode_prompt", "prompt": "a fox"}, ()).has_media


# --- what does not ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"keyframes": [keyframe(), keyframe()]}, ("media_limit", "request.keyframes[0].at")),
        ({"keyframes": [keyframe(at="middle")]}, ("out_of_range", "request.keyframes[0].at")),
        ({"keyframes": [{"at": "first"}]}, ("missing_field", "request.keyframes[0].media")),
        ({"keyframes": [keyframe()], "references": [reference()]}, ("bad_media", "request.references")),
        ({"references": [reference()] * 10}, ("media_limit", "request.references")),
        ({"references": [reference("video")] * 4}, ("media_limit", "request.references")),
        ({"references": [reference(), *[reference("audio")] * 4]}, ("media_limit", "request.references")),
        ({"references": [reference("audio")]}, ("media_limit", "request.references")),
        ({"references": [reference("model")]}, ("out_of_range", "request.references[0].kind")),
        ({"references": [reference(size="huge")]}, ("out_of_range", "request.references[0].size")),
        ({"references": [reference(audio=file())]}, ("bad_media", "request.references[0].audio")),
        ({"references": [reference("video", audio=file())]}, ("bad_media", "request.references[0].audio")),
        ({"guides": [guide()] * 65}, ("media_limit", "request.guides")),
        ({"guides": [{"frame": 3}]}, ("missing_field", "request.guides[0].media")),
        ({"guides": [guide(frame=0, seconds=0.0)]}, ("out_of_range", "request.guides[0].frame")),
        ({"guides": [guide(frame=124)]}, ("out_of_range", "request.guides[0].frame")),
        ({"guides": [guide(frame=-125)]}, ("out_of_range", "request.guides[0].frame")),
        ({"guides": [guide(seconds=-0.1)]}, ("out_of_range", "request.guides[0].seconds")),
        ({"guides": [guide(seconds=5.2)]}, ("out_of_range", "request.guides[0].seconds")),
        ({"guides": [guide(seconds=1e300)]}, ("out_of_range", "request.guides[0].seconds")),
        ({"guides": [guide(seconds=float("nan"))]}, ("out_of_range", "request.guides[0].seconds")),
        ({"guides": [guide(frame=1.5)]}, ("wrong_type", "request.guides[0].frame")),
        ({"guides": {"media": file()}}, ("wrong_type", "request.guides")),
        ({"keyframes": [keyframe(fps=24.0)]}, ("bad_media", "request.keyframes[0].media.fps")),
        ({"keyframes": [keyframe(format="jpeg")]}, ("out_of_range", "request.keyframes[0].media.format")),
        ({"keyframes": [keyframe(width=3)]}, ("unknown_field", "request.keyframes[0].media.width")),
        ({"keyframes": [keyframe("b")]}, ("missing_field", "request.keyframes[0].media.part")),
        ({}, ("unknown_field", "parts.a")),
    ],
    ids=str,
)
def test_media_that_cannot_be_are_refused_before_they_are_read(fields: Any, error: tuple[str, str]) -> None:
    assert refused({**GENERATE, **fields}) == error


@pytest.mark.parametrize(
    ("media", "headers", "error"),
    [
        ({"format": "frames"}, {}, ("bad_tensor", "parts.a.frames")),
        ({"format": "frames"}, SOUND, ("bad_tensor", "parts.a.frames")),
        (
            {"format": "frames"},
            {"frames": TensorInfo("frames", "U8", (0, 8, 8, 3), 0, 0)},
            ("bad_tensor", "parts.a.frames"),
        ),
        (
            {"format": "frames"},
            {"frames": TensorInfo("frames", "U8", (5, 8, 8, 4), 0, 0)},
            ("bad_tensor", "parts.a.frames"),
        ),
        (
            {"format": "frames"},
            {"frames": TensorInfo("frames", "F32", (5, 8, 8, 3), 0, 0)},
            ("bad_tensor", "parts.a.frames"),
        ),
        ({"format": "frames", "fps": 0.0}, FRAMES, ("out_of_range", "request.guides[0].media.fps")),
        ({"format": "frames", "fps": 1e9}, FRAMES, ("out_of_range", "request.guides[0].media.fps")),
        ({"format": "audio"}, SOUND, ("bad_media", "request.guides[0].media.format")),
    ],
)
def test_decoded_media_are_checked_by_their_headers(media: Any, headers: Any, error: tuple[str, str]) -> None:
    assert refused({**GENERATE, "guides": [{"media": file(**media)}]}, {"a": headers}) == error


def test_decoded_sound_is_checked_by_its_header() -> None:
    def sound(headers: Any, **fields: Any) -> tuple[str, str | None]:
        return refused({**GENERATE, "guides": [{"audio": file(format="audio", **fields)}]}, {"a": headers})

    empty = {"waveform": TensorInfo("waveform", "F32", (2, 0), 0, 0)}
    assert sound(empty) == ("bad_tensor", "parts.a.waveform")
    assert sound(SOUND, sample_rate=0) == ("out_of_range", "request.guides[0].audio.sample_rate")
    assert sound(SOUND, sample_rate=10**7) == ("out_of_range", "request.guides[0].audio.sample_rate")


def test_a_part_has_one_format() -> None:
    request = {**GENERATE, "keyframes": [keyframe()], "guides": [{"media": file(format="frames")}]}
    assert refused(request, {"a": FRAMES}) == ("bad_media", "request.guides[0].media.format")


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        ({**ENCODE, "frames": None, "keyframes": [keyframe()]}, ("missing_field", "request.frames")),
        ({**ENCODE, "frames": 4, "keyframes": [keyframe()]}, ("out_of_range", "request.frames")),
        ({**ENCODE, "width": 848, "height": 480, "keyframes": [keyframe()]}, ("bad_canvas", "request.width")),
        ({**ENCODE, "width": 864, "keyframes": [keyframe()]}, ("missing_field", "request.height")),
        ({**GUIDES, "width": None, "height": None, "guides": [guide()]}, ("missing_field", "request.width")),
        ({**GUIDES, "frames": None, "guides": [guide()]}, ("missing_field", "request.frames")),
        ({**GUIDES, "guides": [guide()], "source": {"media": file()}}, ("out_of_range", "request.source")),
        ({"task": "encode_media", "source": {}}, ("missing_field", "request.source.media")),
        (
            {"task": "encode_media", "source": {"audio": file(format="frames")}},
            ("bad_media", "request.source.audio.format"),
        ),
    ],
)
def test_what_encoding_needs_is_asked_for(request_: dict[str, Any], error: tuple[str, str]) -> None:
    assert refused(request_) == error


def test_encode_media_without_media_is_refused() -> None:
    assert refused({"task": "encode_media"}, ()) == ("missing_field", "request.source")


@pytest.mark.parametrize("count", [0, -1, 11, 2**40])
def test_the_number_of_outputs_is_bounded(count: int) -> None:
    assert refused({**GENERATE, "num_outputs": count}, ()) == ("out_of_range", "request.num_outputs")


def test_the_last_outputs_seed_is_in_range_too() -> None:
    assert check({**GENERATE, "seed": 2**64 - 10, "num_outputs": 10}, ()).facts["num_outputs"] == 10
    assert refused({**GENERATE, "seed": 2**64 - 9, "num_outputs": 10}, ()) == ("out_of_range", "request.seed")


# --- once they were read ------------------------------------------------------------------------------------------


def finish(plan: Plan, *, width: int, height: int) -> Plan:
    assert isinstance(plan.request, Generate)
    request = parse_request({**GENERATE, "keyframes": [keyframe()], "width": width, "height": height})
    found = {"width": width, "height": height, "conditions": [{"frame": 0}]}
    warnings = (Warned("media_cut", "cut"),)
    return finish_media(plan, request, found=found, warnings=warnings, facts=FACTS, limits=LIMITS)


def test_what_was_read_completes_the_plan() -> None:
    plan = check({**GENERATE, "frames": 120, "keyframes": [keyframe()]})
    made = finish(plan, width=1376, height=768)
    assert (made.facts["width"], made.facts["frames"], made.facts["conditions"]) == (1376, 124, [{"frame": 0}])
    assert [warning.code for warning in made.warnings] == ["frames_snapped", "untrained_canvas", "media_cut"]
    assert isinstance(made.request, Generate)
    assert (made.request.width, made.request.height) == (1376, 768)


def test_a_canvas_that_follows_from_a_picture_is_checked_like_any_other() -> None:
    plan = check({**GENERATE, "keyframes": [keyframe()]})
    for width, height, code in ((64, 512, "bad_aspect"), (8224, 4096, "bad_canvas")):
        with pytest.raises(RequestError) as caught:
            finish(plan, width=width, height=height)
        assert caught.value.code == code


def test_a_pinned_length_that_cannot_hold_what_is_known_is_refused_when_the_canvas_is() -> None:
    request = {**GENERATE, "pad_seq_len": 37_696, "keyframes": [keyframe()]}
    plan = check_tokens(check(request), 9, facts=FACTS, limits=LIMITS)
    assert "rows" not in plan.facts
    made = parse_request({**request, "width": 1344, "height": 768})
    with pytest.raises(RequestError) as caught:
        finish_media(plan, made, found={}, warnings=(), facts=FACTS, limits=LIMITS)
    assert (caught.value.code, caught.value.field) == ("out_of_range", "request.pad_seq_len")
