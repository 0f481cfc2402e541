"""Clips: rates, durations, geometry, guides and sources, as the process that reads media prepares them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from engine.contract import geometry
from engine.contract.limits import Limits
from tests.support.media_files import (
    MediaRun,
    encoded,
    guides_request,
    noise,
    references_request,
    source_request,
    tone,
    write_clip,
)

STEP = 5
"""Levels between one picture and the next, more than a coder changes."""


def levels(count: int, *, width: int = 64, height: int = 64) -> list[npt.NDArray[np.uint8]]:
    """Return ``count`` flat pictures whose level tells their number, up to 51."""
    return [np.full((height, width, 3), index % 52 * STEP, np.uint8) for index in range(count)]


def numbers(frames: npt.NDArray[np.uint8]) -> list[int]:
    """Return the number of the picture that each of the frames [F, H, W, 3] shows."""
    return [round(float(frame[8:-8, 8:-8].mean()) / STEP) for frame in frames]


def video(folder: Path, data: Any, **fields: Any) -> MediaRun:
    """Prepare a reference video of the part ``a``."""
    return MediaRun(folder, references_request({"kind": "video", "media": {"part": "a"}}, **fields), {"a": data})


def guide(folder: Path, data: Any, frames: int = 124, **fields: Any) -> MediaRun:
    return MediaRun(folder, guides_request({"media": {"part": "a"}, **fields}, frames=frames), {"a": data})


def test_three_seconds_at_sixty_a_second_are_72_frames(tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "a.mp4", levels(180), rate=60)
    run = video(tmp_path, clip)
    assert run.part("references.0")["frames"].shape[0] == 72
    assert run.facts["references"][0]["frames"] == 56
    assert run.warnings == ["media_cut"]


def test_a_hundred_and_twenty_a_second_keep_their_timing(tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "a.mp4", [picture for picture in levels(50) for _ in range(5)], rate=120)
    made = numbers(video(tmp_path, clip).part("references.0")["frames"])
    assert made == list(range(50))


def test_a_varying_rate_keeps_its_timing(tmp_path: Path) -> None:
    # 1 s at 24 fps, half a second that stands still, 1 s at 12 fps.
    times = [k / 24 for k in range(24)] + [1.5 + k / 12 for k in range(12)]
    clip = write_clip(tmp_path / "a.mkv", levels(36), times=times)
    made = numbers(video(tmp_path, clip).part("references.0")["frames"])
    expected = [*range(23), *[23] * 13, *[24 + k // 2 for k in range(24)]]
    assert made[:58] == expected[:58]
    assert 58 <= len(made) <= 62  # the last picture's duration is the container's guess


def test_a_long_pause_in_a_file_fills_no_disk(tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "a.mkv", levels(60), times=[*(k / 24 for k in range(59)), 36_000])
    error = video(tmp_path, clip).error
    assert (error["code"], error["field"]) == ("media_limit", "request.references[0].media")


@pytest.mark.parametrize(
    ("codec", "pix_fmt"),
    [
        ("libx264", "yuv420p10le"),
        ("libx264", "yuv444p"),
        ("libx264", "yuv422p10le"),
        ("ffv1", "gray"),
        ("ffv1", "bgra"),
    ],
)
def test_ten_bits_other_sampling_grey_and_alpha_are_read(codec: str, pix_fmt: str, tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "a.mkv", levels(50), codec=codec, pix_fmt=pix_fmt)
    assert numbers(video(tmp_path, clip).part("references.0")["frames"]) == list(range(50))


def test_an_odd_size_is_read(tmp_path: Path) -> None:
    clip = write_clip(
        tmp_path / "a.mkv", [noise(51, 77)] * 50, codec="ffv1", pix_fmt="bgr0", options={}
    )  # lossless, and no even sides needed
    run = video(tmp_path, clip)
    assert run.part("references.0")["frames"].shape == (50, 64, 64, 3)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_an_animation_is_a_clip_with_its_own_times(kind: str, tmp_path: Path) -> None:
    images = [Image.fromarray(picture) for picture in levels(5)]
    stream = io.BytesIO()
    times = [500, 250, 500, 500, 1000]
    images[0].save(stream, kind, save_all=True, append_images=images[1:], duration=times, loop=0, lossless=True)
    made = numbers(video(tmp_path, stream.getvalue()).part("references.0")["frames"])
    assert made == [number for number, count in enumerate((12, 6, 12, 12, 24)) for _ in range(count)]


@pytest.mark.parametrize("shape", [(1, 60_000), (60_000, 1)])
def test_a_picture_too_narrow_to_cover_the_canvas_is_refused(shape: tuple[int, int], tmp_path: Path) -> None:
    error = guide(tmp_path, encoded(noise(*shape))).error
    assert (error["code"], error["field"]) == ("media_limit", "request.guides[0].media")


def test_a_narrow_clip_is_no_reference(tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "a.mp4", levels(48, width=16, height=160))
    assert video(tmp_path, clip).error["code"] == "bad_aspect"


@pytest.mark.parametrize(("count", "rate", "found"), [(4, 24, 4), (8, 48, 4), (1, 24, 1)])
def test_too_few_frames_are_counted_after_resampling(count: int, rate: int, found: int, tmp_path: Path) -> None:
    error = video(tmp_path, write_clip(tmp_path / "a.mp4", levels(count), rate=rate)).error
    assert (error["code"], error["value"]) == ("media_limit", found)
    assert f"{found} w" in error["message"]


def test_a_picture_as_a_video_is_one_frame(tmp_path: Path) -> None:
    assert "1 was found" in video(tmp_path, encoded(noise(64, 64))).error["message"]


@pytest.mark.parametrize(("count", "word"), [(45, "at least 2 s"), (363, "at most 15 s")])
def test_a_clip_outside_two_to_fifteen_seconds_is_refused(count: int, word: str, tmp_path: Path) -> None:
    error = video(tmp_path, write_clip(tmp_path / "a.mp4", levels(count, width=32, height=32))).error
    assert (error["code"], error["field"]) == ("media_limit", "request.references[0].media")
    assert word in error["message"]


def test_fifteen_seconds_pass_and_are_cut_to_the_output(tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "a.mp4", levels(360, width=32, height=32))
    run = video(tmp_path, clip)
    assert numbers(run.part("references.0")["frames"])[-1] == 123 % 52
    assert run.facts["references"][0]["frames"] == 124


def test_of_five_minutes_no_more_is_decoded_than_tells_that_they_are_too_long(tmp_path: Path) -> None:
    picture = np.zeros((16, 16, 3), np.uint8)
    clip = write_clip(
        tmp_path / "a.mp4",
        (picture for _ in range(7200)),
        options={"preset": "ultrafast"},
        container={"movflags": "+faststart"},
    )
    # Its end is missing, which nobody notices who stops in time.
    clip.write_bytes(clip.read_bytes()[:-1000])
    error = video(tmp_path, clip).error
    assert error["code"] == "media_limit"
    assert error["value"] == 300.0
    started = guide(tmp_path, clip, frame=100)
    assert started.error["field"] == "request.guides[0].media"
    limited = MediaRun(tmp_path, source_request(frames=22), {"a": clip})
    assert limited.facts["frames"] == 22
    refused = MediaRun(tmp_path, source_request(), {"a": clip}, limits=Limits(max_seconds=20.0))
    assert (refused.error["code"], refused.error["field"]) == ("media_limit", "request.source.media")


@pytest.mark.parametrize(
    ("size", "own", "made"),
    [("native", (40, 100), (32, 96)), ("reference", (40, 30), (96, 64)), ("native", (200, 100), (128, 64))],
)
def test_a_reference_clip_has_the_canvas_of_its_own_shape(
    size: str, own: tuple[int, int], made: tuple[int, int], tmp_path: Path
) -> None:
    clip = write_clip(tmp_path / "a.mp4", levels(48, width=own[0], height=own[1]))
    request = references_request({"kind": "video", "media": {"part": "a"}, "size": size})
    run = MediaRun(tmp_path, request, {"a": clip})
    found = run.facts["references"][0]
    assert (found["width"], found["height"]) == made
    assert found["rows"] == 12 * made[0] // 32 * (made[1] // 32)


@pytest.mark.parametrize(("count", "used"), [(1, 1), (4, 1), (5, 5), (21, 5), (22, 22)])
def test_a_guides_clip_is_floored_and_that_is_said(count: int, used: int, tmp_path: Path) -> None:
    run = guide(tmp_path, write_clip(tmp_path / "a.mp4", levels(count)), frame=-22)
    assert run.facts["conditions"] == [{"frame": 102, "frames": used, "audio_latents": 0}]
    frames = run.part("guides.0")["frames"]
    assert frames.shape == (used, 64, 128, 3)
    assert numbers(frames) == list(range(used))
    assert run.warnings == ([] if used == count else ["media_cut"])


def test_a_guide_that_reaches_beyond_the_end_is_refused(tmp_path: Path) -> None:
    error = guide(tmp_path, write_clip(tmp_path / "a.mp4", levels(22)), frame=-5).error
    assert (error["code"], error["field"]) == ("media_limit", "request.guides[0].media")
    assert "22 frames at frame 119" in error["message"]
    error = guide(tmp_path, write_clip(tmp_path / "a.mp4", levels(60)), frame=-5).error
    assert "22 frames or more at frame 119" in error["message"]
    assert error["value"].endswith(" or more")
    assert error["remedy"] == "Cut it to 5 frames."


def test_a_guides_picture_covers_the_canvas(tmp_path: Path) -> None:
    picture = noise(64, 200)
    run = guide(tmp_path, encoded(picture), seconds=1.5)
    assert run.facts["conditions"][0]["frame"] == 36
    np.testing.assert_array_equal(run.part("guides.0")["frames"][0], picture[:, 36:164])


def test_several_guides_beside_references_have_parts_of_their_own(tmp_path: Path) -> None:
    request = {
        "task": "generate", "prompt": "x", "frames": 22, "width": 64, "height": 64,
        "references": [{"kind": "image", "media": {"part": "a"}}],
        "guides": [{"media": {"part": "a"}}, {"media": {"part": "b"}, "frame": 3}],
    }  # fmt: skip
    run = MediaRun(tmp_path, request, {"a": encoded(noise(64, 64)), "b": encoded(noise(64, 64, seed=1))})
    assert [condition["frame"] for condition in run.facts["conditions"]] == [0, 3]
    np.testing.assert_array_equal(run.part("guides.1")["frames"][0], noise(64, 64, seed=1))
    np.testing.assert_array_equal(run.part("references.0")["frames"][0], noise(64, 64))
    # 4 reference rows, 8 guide rows, 2 x 37 sound, 7 x 4 pictures.
    assert run.facts["references"][0]["share"] == pytest.approx(4 / (4 + 8 + 74 + 28))


@pytest.mark.parametrize(("count", "frames"), [(1, 5), (5, 5), (6, 22), (22, 22), (30, 39)])
def test_a_source_is_lengthened_to_the_lattice_by_its_last_picture(count: int, frames: int, tmp_path: Path) -> None:
    run = MediaRun(tmp_path, source_request(), {"a": write_clip(tmp_path / "a.mp4", levels(count))})
    assert run.facts["frames"] == run.result["request"]["frames"] == frames
    assert numbers(run.part("source")["frames"]) == [*range(count), *[count - 1] * (frames - count)]
    assert run.warnings == ([] if count == frames else ["media_held"])
    assert (run.facts["own_frames"], run.facts["frames"]) == (count, frames)


@pytest.mark.parametrize(
    ("count", "seconds", "latents"),
    [(30, 1.25, 50), (30, 2.0, 50), (30, 1.0, 40), (30, 1.01, 40), (30, None, 50), (22, 1.0, 37), (22, 0.5, 20)],
)
def test_how_much_of_a_source_is_its_own_is_told(
    count: int, seconds: float | None, latents: int, tmp_path: Path
) -> None:
    sound = None if seconds is None else tone(seconds, 32_000)
    clip = write_clip(tmp_path / "a.mkv", levels(count), sound=sound, sound_codec="pcm_s16le")
    run = MediaRun(tmp_path, source_request(), {"a": clip})
    assert (run.facts["own_frames"], run.facts["own_audio_latents"]) == (count, latents)


def test_a_source_that_is_held_for_as_long_as_was_asked_for_is_all_its_own(tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "a.mp4", levels(30))
    run = MediaRun(tmp_path, source_request(frames=56), {"a": clip})
    assert (run.facts["own_frames"], run.facts["own_audio_latents"]) == (56, 93)
    assert run.warnings == ["media_held"]


def test_a_source_keeps_its_size_or_covers_the_canvas_it_is_given(tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "a.mp4", levels(5, width=130, height=82))
    own = MediaRun(tmp_path, source_request(), {"a": clip})
    assert (own.facts["width"], own.facts["height"]) == (128, 96)
    given = MediaRun(tmp_path, source_request(width=64, height=64, frames=22), {"a": clip})
    assert given.part("source")["frames"].shape == (22, 64, 64, 3)


def test_a_longer_source_is_cut_to_the_frames_that_were_asked_for(tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "a.mp4", levels(50), sound=tone(50 / 24, 32_000), sound_rate=32_000)
    run = MediaRun(tmp_path, source_request(frames=20), {"a": clip})
    assert numbers(run.part("source")["frames"]) == list(range(22))
    assert run.part("source")["waveform"].shape == (2, geometry.audio_latents(22) * 800)
    assert run.warnings == ["media_cut"]


def test_a_source_of_an_impossible_shape_is_refused(tmp_path: Path) -> None:
    run = MediaRun(tmp_path, source_request(), {"a": encoded(noise(32, 200))})
    assert run.error["code"] == "bad_aspect"
