"""The table of media limits, rule by rule, and the sizes of references and guides against the golden tables."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest

from engine.contract import geometry, media_limits
from engine.contract.check_media import resolve_guides
from engine.contract.errors import RequestError
from engine.contract.media import Guide, ReferenceKind

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


# (video frames, frame asked, clip frames, seconds of sound) → (start, frames used, audio latents); None: refused.
GUIDES: list[tuple[tuple[int, int, int, float], tuple[int, int, int] | None]] = [
    ((22, 0, 4, 0), (0, 1, 0)),
    ((22, 0, 21, 0), (0, 5, 0)),
    ((22, 0, 22, 9.0), (0, 22, 37)),
    ((22, 1, 22, 0), None),
    ((22, 1, 0, 1.0), (1, 0, 35)),
    ((22, 21, 1, 0.5), (21, 1, 2)),
    ((22, 22, 1, 0), None),
    ((124, -1, 0, 1.0), (123, 0, 2)),
    ((124, -5, 22, 0), None),
    ((124, -22, 22, 0), (102, 22, 0)),
    ((124, -22, 39, 0), None),
    ((124, -124, 22, 9.0), (0, 22, 207)),
    ((124, -125, 1, 0), None),
    ((124, 124, 0, 1.0), None),
]


@pytest.mark.parametrize(("asked", "made"), GUIDES)
def test_a_guide_is_placed_cut_and_refused_as_the_golden_table_says(
    asked: tuple[int, int, int, float], made: tuple[int, int, int] | None
) -> None:
    if made is None:
        assert refused(lambda: placed(*asked)).code in ("media_limit", "out_of_range")
    else:
        assert placed(*asked) == made


def test_a_guide_that_does_not_fit_says_what_would() -> None:
    error = refused(lambda: media_limits.guide_length(39, start=100, frames=124, path="request.guides[1]"))
    assert error.field == "request.guides[1].media"
    assert "Cut it to 22 frames, or start it at frame 85" in str(error.remedy)


@pytest.mark.parametrize(
    ("width", "height", "match", "most", "reference"),
    [
        (640, 480, (640, 480), (640, 480), (2720, 2048)),
        (1920, 1080, (1344, 768), (1920, 1088), (3648, 2048)),
        (3000, 2000, (1248, 832), (3008, 1984), (3072, 2048)),
        (4000, 3000, (1184, 864), (2720, 2048), (2720, 2048)),
        (500, 333, (512, 320), (512, 320), (3072, 2048)),
        (33, 47, (32, 32), (32, 32), (2048, 2912)),
        (4096, 4096, (1024, 1024), (2048, 2048), (2048, 2048)),
        (2048, 1024, (1440, 704), (2048, 1024), (4096, 2048)),
    ],
)
def test_sizes_of_reference_images_are_the_golden_ones(
    width: int, height: int, match: tuple[int, int], most: tuple[int, int], reference: tuple[int, int]
) -> None:
    assert geometry.reference_image_size(width, height, size="match", **EDGES) == match
    assert geometry.reference_image_size(width, height, size="max", **EDGES) == most
    assert geometry.reference_image_size(width, height, size="reference", **EDGES) == reference


def test_a_reference_image_keeps_its_size_unless_its_side_is_over_the_engines() -> None:
    assert geometry.reference_image_size(4000, 3000, size="native", **EDGES) == (4000, 3008)
    assert geometry.reference_image_size(9000, 3000, size="native", max_side=8192, **EDGES) == (8192, 2720)


@pytest.mark.parametrize(
    ("width", "height", "made"),
    [
        (64, 64, (64, 64)),
        (640, 360, (640, 352)),
        (1920, 1080, (1344, 768)),
        (1344, 768, (1344, 768)),
        (720, 1280, (704, 1280)),
        (48, 200, (64, 192)),
    ],
)
def test_sizes_of_reference_videos_are_the_golden_ones(width: int, height: int, made: tuple[int, int]) -> None:
    assert geometry.reference_video_size(width, height, size="native", **CANVAS) == made


def test_a_reference_video_is_enlarged_only_when_asked() -> None:
    assert geometry.reference_video_size(640, 360, size="reference", **CANVAS) == (1344, 768)
