"""The table of media limits, rule by rule, and the sizes of references and guides against the golden tables."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.contract import geometry, media_limits
from engine.contract.check_media import resolve_guides
from engine.contract.errors import RequestError
from engine.contract.media import Guide, ReferenceKind

RULES: dict[str, Any] = json.loads((Path(__file__).resolve().parents[1] / "golden" / "index.json").read_text())["rules"]
EDGES: dict[str, Any] = {"area": 1344 * 768, "short_edge": 2048, "multiple": 32}
CANVAS: dict[str, Any] = {"short_edge": 768, "max_pixels": 768 * 1344, "multiple": 32}


def refused(call: Callable[[], object]) -> RequestError:
    with pytest.raises(RequestError) as caught:
        call()
    assert caught.value.field
    assert caught.value.remedy
    return caught.value


@pytest.mark.parametrize(
    ("kinds", "word"),
    [
        (["image"] * 10, "9 image"),
        (["image", *["video"] * 4], "3 video"),
        (["image", *["audio"] * 4], "3 audio"),
        ([*["image"] * 7, *["video"] * 3, *["audio"] * 3], "12 references"),
        (["audio"], "alone"),
    ],
)
def test_too_many_references_and_sounds_alone_are_refused(kinds: list[ReferenceKind], word: str) -> None:
    error = refused(lambda: media_limits.check_reference_counts(kinds))
    assert (error.code, error.field) == ("media_limit", "request.references")
    assert word in error.message


@pytest.mark.parametrize("kinds", [[], ["image"] * 9, [*["image"] * 6, *["video"] * 3, *["audio"] * 3]])
def test_as_many_references_as_the_table_says_pass(kinds: list[ReferenceKind]) -> None:
    media_limits.check_reference_counts(kinds)


@pytest.mark.parametrize(("seconds", "word"), [(0.0, "2 s"), (1.9, "2 s"), (15.1, "15 s"), (16.0, "15 s")])
@pytest.mark.parametrize("what", ["video", "soundtrack", "sound"])
def test_a_duration_outside_two_to_fifteen_seconds_is_refused(seconds: float, word: str, what: str) -> None:
    error = refused(lambda: media_limits.check_duration(seconds, field="f", what=what))
    assert (error.code, error.value) == ("media_limit", seconds)
    assert f"{word};" in error.message
    assert what in error.message


@pytest.mark.parametrize("seconds", [2.0, 47 / 24, 15.0, 361 / 24])
def test_a_duration_within_a_frame_of_the_limits_passes(seconds: float) -> None:
    media_limits.check_duration(seconds, field="f", what="video")


def test_soundtracks_and_standalone_sounds_have_separate_budgets() -> None:
    media_limits.check_budgets(soundtracks=[10.0, 5.0], sounds=[10.0])
    for sums in ({"soundtracks": [8.0, 8.0], "sounds": []}, {"soundtracks": [], "sounds": [8.0, 8.0]}):
        error = refused(lambda sums=sums: media_limits.check_budgets(**sums))  # type: ignore[misc]
        assert (error.code, error.value) == ("media_limit", 16.0)
        assert "15 s" in error.message


@pytest.mark.parametrize(("found", "words"), [(0, "0 were found"), (1, "1 was found"), (4, "4 were found")])
def test_a_clip_that_is_too_short_says_how_many_frames_were_found(found: int, words: str) -> None:
    assert words in refused(lambda: media_limits.check_frames(found, field="f")).message
    media_limits.check_frames(5, field="f")


@pytest.mark.parametrize(("width", "height", "fits"), [(400, 100, True), (100, 400, True), (401, 100, False)])
def test_a_reference_is_between_one_to_four_and_four_to_one(width: int, height: int, fits: bool) -> None:
    if fits:
        media_limits.check_aspect(width, height, field="f")
    else:
        assert refused(lambda: media_limits.check_aspect(width, height, field="f")).code == "bad_aspect"


def test_a_picture_of_too_many_pixels_is_refused() -> None:
    media_limits.check_pixels(16384, 8192, field="f")
    assert refused(lambda: media_limits.check_pixels(16384, 8193, field="f")).code == "media_limit"


def test_every_number_of_the_table_is_above_zero() -> None:
    assert all(value > 0 for value in dataclasses.asdict(media_limits.MEDIA_LIMITS).values())


@pytest.mark.parametrize(("frames", "kept"), [(0, 0), (1, 1), (4, 1), (5, 5), (21, 5), (22, 22), (38, 22), (39, 39)])
def test_a_clip_floors_to_the_lattice_or_its_first_frame(frames: int, kept: int) -> None:
    assert geometry.floor_frames(frames) == kept


def placed(frames: int, frame: int, clip: int, seconds: float) -> tuple[int, int, int]:
    """Return (start, frames used, audio latents) of a guide."""
    (guide,) = resolve_guides((Guide(frame=frame),), frames)
    start = guide.frame
    assert start is not None
    length = media_limits.guide_length(clip, start=start, frames=frames, path="request.guides[0]") if clip else 0
    most = media_limits.guide_audio_latents(start=start, frames=frames)
    samples = math.ceil(seconds * geometry.SAMPLE_RATE)
    return start, length, min(most, geometry.latents_of_samples(samples))


def test_guides_are_placed_cut_and_refused_as_the_golden_table_says() -> None:
    for frames, frame, clip, seconds, start, length, _, latents, error in RULES["add_guide"]["rows"]:
        if error is None:
            assert placed(frames, frame, clip, seconds) == (start, length, latents), (frames, frame, clip, seconds)
        else:
            found = refused(lambda asked=(frames, frame, clip, seconds): placed(*asked))  # type: ignore[misc]
            assert found.code in ("media_limit", "out_of_range"), error


def test_a_guide_that_does_not_fit_says_what_would() -> None:
    error = refused(lambda: media_limits.guide_length(39, start=100, frames=124, path="request.guides[1]"))
    assert error.field == "request.guides[1].media"
    assert "Cut it to 22 frames, or start it at frame 85" in str(error.remedy)


def test_of_a_guide_that_was_not_read_to_its_end_the_least_length_is_told() -> None:
    error = refused(lambda: media_limits.guide_length(41, start=100, frames=124, path="request.guides[1]", whole=False))
    assert "39 frames or more" in error.message
    assert (error.value, error.remedy) == ("41 or more", "Cut it to 22 frames.")


def test_sizes_of_reference_images_are_the_golden_ones() -> None:
    for width, height, size, *made in RULES["reference_image_size"]["rows"]:
        assert geometry.reference_image_size(width, height, size=size, **EDGES) == tuple(made[:2])
        assert geometry.reference_image_size(width, height, size="reference", **EDGES) == tuple(made[2:])


def test_a_reference_image_keeps_its_size_unless_its_side_is_over_the_engines() -> None:
    assert geometry.reference_image_size(4000, 3000, size="native", **EDGES) == (4000, 3008)
    assert geometry.reference_image_size(9000, 3000, size="native", max_side=8192, **EDGES) == (8192, 2720)


def test_sizes_and_lengths_of_reference_videos_are_the_golden_ones() -> None:
    for width, height, frames, length, error, *made, kept, _ in RULES["reference_video_size"]["rows"]:
        if error is not None:
            assert refused(lambda frames=frames: media_limits.check_frames(frames, field="f")).code == "media_limit"  # type: ignore[misc]
            continue
        assert geometry.reference_video_size(width, height, size="native", **CANVAS) == tuple(made)
        assert geometry.floor_frames(min(frames, length)) == kept


def test_default_canvases_and_lengths_are_the_golden_ones() -> None:
    for width, height, *made in RULES["adapt_canvas"]:
        assert geometry.default_canvas(width, height, **CANVAS) == tuple(made)
    for frames, latents, audio in RULES["audio_latents_per_lattice_frame_count"]:
        assert (geometry.latent_frames(frames), geometry.audio_latents(frames)) == (latents, audio)
        assert geometry.floor_frames(frames) == frames


def test_a_reference_video_is_enlarged_only_when_asked() -> None:
    assert geometry.reference_video_size(640, 360, size="reference", **CANVAS) == (1344, 768)
