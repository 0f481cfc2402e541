"""Time and space: the numbers that people got wrong with H3 elsewhere, with the right answers."""

from __future__ import annotations

import math
import re

import pytest

from engine.contract import geometry
from engine.contract.errors import RequestError


@pytest.mark.parametrize(
    ("asked", "made"),
    [
        (5, 5),
        (22, 22),
        (23, 39),
        (120, 124),
        (124, 124),
        (243, 243),
        (345, 345),
        (346, 362),
        (360, 362),
        (362, 362),
    ],
)
def test_frames_snap_up_to_the_lattice(asked: int, made: int) -> None:
    assert geometry.snap_frames(asked) == made


@pytest.mark.parametrize("asked", [-17, 0, 1, 4])
def test_fewer_than_five_frames_are_refused(asked: int) -> None:
    with pytest.raises(RequestError) as caught:
        geometry.snap_frames(asked, path="request.")
    assert (caught.value.code, caught.value.field, caught.value.value) == ("out_of_range", "request.frames", asked)
    assert "5 frames" in str(caught.value.remedy)


def test_snapping_is_the_smallest_lattice_point_not_below() -> None:
    for asked in range(5, 2000):
        made = geometry.snap_frames(asked)
        assert made % 17 == 5
        assert asked <= made < asked + 17


def test_fifteen_seconds_are_362_frames() -> None:
    assert geometry.snap_frames(geometry.frames_of_seconds(15.0)) == 362


@pytest.mark.parametrize("seconds", [0, -1, -0.0, math.nan, math.inf, -math.inf, 1e308])
def test_a_duration_that_is_not_a_positive_number_is_refused(seconds: float) -> None:
    with pytest.raises(RequestError) as caught:
        geometry.frames_of_seconds(seconds)
    assert (caught.value.code, caught.value.field) == ("out_of_range", "seconds")
    assert ("so long" in caught.value.message) == (seconds > 0)


def test_a_duration_of_too_few_frames_is_refused_in_seconds() -> None:
    with pytest.raises(RequestError, match=r"0\.21 s") as caught:
        geometry.frames_of_seconds(0.1, path="request.")
    assert (caught.value.field, caught.value.value) == ("request.seconds", 0.1)
    assert geometry.frames_of_seconds(0.21) == geometry.MIN_FRAMES


@pytest.mark.parametrize(("frames", "latents"), [(5, 2), (22, 7), (39, 12), (124, 37), (243, 72), (362, 107)])
def test_latent_frames_are_5n_plus_2_and_invert(frames: int, latents: int) -> None:
    assert geometry.latent_frames(frames) == latents
    assert geometry.frames_of_latents(latents) == frames


@pytest.mark.parametrize(("latents", "frames"), [(1, 1), (2, 5), (3, 9), (4, 13), (5, 17), (6, 18), (7, 22)])
def test_latent_frames_cover_1_4_4_4_4_pixel_frames_in_turn(latents: int, frames: int) -> None:
    assert geometry.frames_of_latents(latents) == frames


@pytest.mark.parametrize(("frames", "audio"), [(5, 8), (22, 37), (124, 207), (243, 405), (362, 603)])
def test_audio_latents_are_forty_a_second(frames: int, audio: int) -> None:
    assert geometry.audio_latents(frames) == audio


def test_audio_latents_equal_the_exact_fraction_for_every_length() -> None:
    for frames in range(5, 3000):
        exact = (frames * 40 * 2 + 24) // (24 * 2)  # round(F * 40 / 24) in integers; a tie cannot happen
        assert geometry.audio_latents(frames) == exact


@pytest.mark.parametrize(
    ("width", "height"), [(864, 480), (1344, 768), (1376, 768), (32, 32), (128, 32), (32, 128), (2048, 512)]
)
def test_canvases_on_the_grid_pass(width: int, height: int) -> None:
    geometry.check_canvas(width, height)
    assert width % 32 == height % 32 == 0


def test_a_side_off_the_grid_names_32_and_the_nearest_sizes() -> None:
    with pytest.raises(RequestError) as caught:
        geometry.check_canvas(848, 480, path="request.")
    error = caught.value
    assert (error.code, error.field, error.value) == ("bad_canvas", "request.width", 848)
    assert "32" in error.message
    assert error.remedy == "Use 832 or 864."


@pytest.mark.parametrize("side", [0, -32, 1, 31])
def test_a_side_below_the_smallest_is_refused_with_the_smallest(side: int) -> None:
    with pytest.raises(RequestError) as caught:
        geometry.check_canvas(64, side)
    assert (caught.value.code, caught.value.field, caught.value.remedy) == ("bad_canvas", "height", "Use 32.")


@pytest.mark.parametrize(("width", "height"), [(3232, 800), (800, 3232), (160, 32), (32, 160)])
def test_aspects_beyond_four_to_one_are_refused_with_the_widths_that_fit(width: int, height: int) -> None:
    with pytest.raises(RequestError) as caught:
        geometry.check_canvas(width, height)
    assert caught.value.code == "bad_aspect"
    _, low, high = (int(number) for number in re.findall(r"\d+", str(caught.value.remedy)))
    assert low == -(-height // 128) * 32
    assert high == height * 4 // 32 * 32
    geometry.check_canvas(low, height)
    geometry.check_canvas(high, height)


def test_the_default_canvas_is_1344_by_768() -> None:
    assert geometry.default_canvas(short_edge=768, max_pixels=768 * 1344, multiple=32) == (1344, 768)


@pytest.mark.parametrize(
    ("aspect", "size"), [((9, 16), (768, 1344)), ((1, 1), (768, 768)), ((4, 3), (1024, 768)), ((21, 9), (1536, 672))]
)
def test_default_canvases_of_other_shapes(aspect: tuple[int, int], size: tuple[int, int]) -> None:
    assert geometry.default_canvas(*aspect, short_edge=768, max_pixels=768 * 1344, multiple=32) == size
