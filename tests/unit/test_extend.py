"""Extending a shot: the phase of the kept latents, and picture and sound that stay in step however often it is done."""

from __future__ import annotations

import random
from typing import Any

import pytest

from engine.contract import extend, geometry
from engine.contract.errors import RequestError
from engine.contract.extend import Extension, OwnLength, plan_extension

HALF_LATENT = 0.5 / geometry.AUDIO_LATENTS_PER_SECOND


def pattern(latents: range) -> list[int]:
    """Return the pixel frames that each video latent covers, from its own chunk."""
    return [geometry.FRAMES_PER_LATENT[latent % geometry.LATENTS_PER_CHUNK] for latent in latents]


def seconds_apart(frames: int, audio: int) -> float:
    """Return by how much the lengths of a shot's picture and sound differ."""
    return abs(frames / geometry.FPS - audio / geometry.AUDIO_LATENTS_PER_SECOND)


def test_a_stride_is_whole_in_both_streams() -> None:
    assert extend.STRIDE_FRAMES == geometry.frames_of_latents(extend.STRIDE_LATENTS) == 51
    assert extend.STRIDE_AUDIO * geometry.FPS == extend.STRIDE_FRAMES * geometry.AUDIO_LATENTS_PER_SECOND


def test_a_whole_source_stays_where_it_is_when_something_comes_after() -> None:
    found = plan_extension(124, after=2.0)
    assert found == Extension(175, OwnLength(175, 292), range(37), range(37), range(207), range(207))
    assert found.kept_frames == range(124)
    assert found.video_mask == (0.0,) * 37 + (1.0,) * 15
    assert found.audio_mask == (0.0,) * 207 + (1.0,) * (292 - 207)


def test_what_comes_before_is_whole_strides() -> None:
    found = plan_extension(124, before=2.5)
    assert (found.frames, found.kept_latents, found.kept_audio) == (226, range(30, 67), range(170, 377))
    assert (found.taken_latents, found.taken_audio) == (range(37), range(207))
    assert found.kept_frames == range(102, 226)
    assert found.video_mask == (1.0,) * 30 + (0.0,) * 37


def test_both_ends_at_once() -> None:
    found = plan_extension(124, before=2.0, after=1.0)
    assert (found.frames, found.kept_frames) == (209, range(51, 175))


def test_the_last_22_frames_of_a_longer_latent_keep_their_phase() -> None:
    found = plan_extension(124, after=4.0, overlap=22)
    assert pattern(found.taken_latents) == [1, 4, 4, 4, 4, 1, 4]
    assert found.taken_latents == range(30, 37)
    assert found.taken_audio == range(170, 207)
    assert (found.kept_latents, found.kept_audio, found.kept_frames) == (range(7), range(37), range(22))


def test_the_first_22_frames_keep_theirs() -> None:
    found = plan_extension(124, before=4.0, overlap=22)
    assert (found.frames, found.taken_latents, found.kept_latents) == (124, range(7), range(30, 37))
    assert pattern(found.kept_latents) == pattern(found.taken_latents) == [1, 4, 4, 4, 4, 1, 4]


@pytest.mark.parametrize("frames", [5, 22, 39, 56, 107, 124, 141, 158, 243, 345, 362, 1450])
@pytest.mark.parametrize("overlap", [None, 5, 22, 50, 100, 2000])
@pytest.mark.parametrize("ends", [{"before": 0.5}, {"after": 0.5}, {"after": 5.0}, {"before": 5.0}])
def test_latents_move_by_whole_chunks_and_never_out_of_step(
    frames: int, overlap: int | None, ends: dict[str, float]
) -> None:
    found = plan_extension(frames, overlap=overlap, **ends)
    assert geometry.snap_frames(found.frames) == found.frames
    assert len(found.taken_latents) == len(found.kept_latents) > 0
    assert len(found.taken_audio) == len(found.kept_audio) > 0
    assert pattern(found.taken_latents) == pattern(found.kept_latents)
    for latents, audio in ((found.taken_latents, found.taken_audio), (found.kept_latents, found.kept_audio)):
        start = geometry.frames_of_latents(latents.start)
        assert start * geometry.AUDIO_LATENTS_PER_SECOND == audio.start * geometry.FPS
    assert found.taken_latents.stop <= geometry.latent_frames(frames)
    assert found.taken_audio.stop <= geometry.audio_latents(frames)
    assert found.kept_latents.stop <= geometry.latent_frames(found.frames)
    assert found.kept_audio.stop <= geometry.audio_latents(found.frames)
    added = found.frames - len(found.kept_frames)
    assert added >= 24 * sum(ends.values()) - 1e-9
    kept = len(found.kept_frames)
    assert kept >= min(frames, overlap or frames)


def test_what_comes_after_a_lengthened_clip_begins_where_the_clip_ends() -> None:
    # 48 frames, held to 56: latent 14 holds frames 47 to 50, of which the clip has one.
    found = plan_extension(56, own=OwnLength(48, 80), after=2.0)
    assert found.frames == 107
    assert (found.kept_latents, found.kept_frames, found.kept_audio) == (range(14), range(47), range(80))
    assert found.video_mask == (0.0,) * 14 + (1.0,) * 18
    assert found.audio_mask[79:81] == (0.0, 1.0)
    assert found.own == OwnLength.whole(107)


def test_the_seconds_are_added_to_the_clip_and_not_to_what_was_held() -> None:
    assert plan_extension(56, own=OwnLength(40, 66), after=1.0).frames == 73
    assert plan_extension(56, after=1.0).frames == 90


def test_what_was_held_stays_at_the_end_when_something_comes_before_alone() -> None:
    found = plan_extension(56, own=OwnLength(48, 80), before=2.0)
    assert (found.frames, found.kept_frames, found.own) == (107, range(51, 107), OwnLength(99, 165))


def test_context_is_counted_from_where_the_clip_ends() -> None:
    found = plan_extension(124, own=OwnLength(108, 180), after=4.0, overlap=22)
    assert (found.taken_latents, found.kept_frames) == (range(15, 32), range(56))
    assert found.taken_audio == range(85, 180)


@pytest.mark.parametrize("frames", [5, 22, 56, 124, 362])
@pytest.mark.parametrize("overlap", [None, 5, 22, 50, 100])
@pytest.mark.parametrize("ends", [{"before": 0.5}, {"after": 0.04}, {"after": 5.0}, {"before": 1.0, "after": 1.0}])
def test_no_latent_that_holds_what_was_added_counts_as_the_shot(
    frames: int, overlap: int | None, ends: dict[str, float]
) -> None:
    for held in range(min(17, frames)):
        own = OwnLength(frames - held, (frames - held) * 40 // 24)
        assert own.fits(frames)
        if len(ends) == 2 and overlap is not None:
            continue
        found = plan_extension(frames, own=own, overlap=overlap, **ends)
        assert pattern(found.taken_latents) == pattern(found.kept_latents)
        assert found.kept_latents.stop <= geometry.latent_frames(found.frames)
        assert geometry.snap_frames(found.frames) == found.frames
        if "after" in ends:
            assert 1 <= geometry.frames_of_latents(found.taken_latents.stop) <= own.frames
            assert found.taken_audio.stop <= own.audio_latents
            left = own.frames - geometry.frames_of_latents(found.taken_latents.start)
            shift = found.kept_frames.start
            assert 0 <= found.frames - max(5, shift + left + round(ends["after"] * 24)) < 17
            # Joined, nothing of the clip is out of the new latent's reach.
            assert found.frames > shift + left


def join(source: list[Any], new: list[Any], taken: range) -> list[Any]:
    """Return the whole shot of a source, what was made, and what of the source went into it."""
    return source[: taken.start] + new + source[taken.stop :]


@pytest.mark.parametrize("end", ["after", "before"])
@pytest.mark.parametrize("overlap", [None, 22, 56])
def test_35_chained_extensions_of_4_to_6_seconds_do_not_drift(end: str, overlap: int | None) -> None:
    # Each latent holds the moment that it was made for, in seconds from the start of the very first clip.
    dice = random.Random(35)
    frames = 124
    video = [geometry.frames_of_latents(latent) / geometry.FPS for latent in range(37)]
    audio = [latent / geometry.AUDIO_LATENTS_PER_SECOND for latent in range(207)]
    for _ in range(35):
        seconds = {end: dice.uniform(4, 6)}
        plan = plan_extension(geometry.frames_of_latents(len(video)), overlap=overlap, **seconds)
        begin = video[plan.taken_latents.start] - plan.kept_frames.start / geometry.FPS
        new_video = [begin + geometry.frames_of_latents(i) / geometry.FPS for i in range(len(plan.video_mask))]
        new_audio = [begin + i / geometry.AUDIO_LATENTS_PER_SECOND for i in range(len(plan.audio_mask))]
        for made, mask, source, taken in (
            (new_video, plan.video_mask, video, plan.taken_latents),
            (new_audio, plan.audio_mask, audio, plan.taken_audio),
        ):
            kept = [value for value, part in zip(made, mask, strict=True) if not part]
            assert kept == pytest.approx(source[taken.start : taken.stop], abs=1e-6)
        video = join(video, new_video, plan.taken_latents)
        audio = join(audio, new_audio, plan.taken_audio)
        frames = geometry.frames_of_latents(len(video))
        assert seconds_apart(frames, len(audio)) <= HALF_LATENT + 1e-9
    assert frames > 35 * 4 * 24
    # Every latent is where its moment is: picture and sound alike, to far less than a frame.
    first = video[0]
    for place, moment in enumerate(video):
        assert moment - first == pytest.approx(geometry.frames_of_latents(place) / geometry.FPS, abs=1e-5)
    for place, moment in enumerate(audio):
        assert moment - first == pytest.approx(place / geometry.AUDIO_LATENTS_PER_SECOND, abs=1e-5)


@pytest.mark.parametrize("overlap", [5, 22, 40])
def test_35_clips_joined_outside_of_a_latent_do_not_drift_either(overlap: int) -> None:
    # Each clip is extended from the one before alone, as decoded files are: the whole shot is never seen.
    dice = random.Random(overlap)
    clip, frames, audio = 124, 124, 207
    for _ in range(35):
        plan = plan_extension(clip, after=dice.uniform(4, 6), overlap=overlap)
        frames += plan.frames - len(plan.kept_frames)
        audio += geometry.audio_latents(plan.frames) - len(plan.kept_audio)
        clip = plan.frames
    assert seconds_apart(frames, audio) <= HALF_LATENT + 1e-9


@pytest.mark.parametrize(
    ("frames", "wanted", "field"),
    [
        (124, {}, "request.after"),
        (124, {"after": -1.0}, "request.after"),
        (124, {"after": float("nan")}, "request.after"),
        (124, {"before": float("inf")}, "request.before"),
        (124, {"after": 1.0, "overlap": 4}, "request.overlap"),
        (124, {"after": 1.0, "before": 1.0, "overlap": 22}, "request.overlap"),
        (4, {"after": 1.0}, "request.source"),
        (100, {"after": 1.0}, "request.source"),
    ],
)
def test_what_cannot_be_extended_is_said(frames: int, wanted: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError) as caught:
        plan_extension(frames, path="request.", **wanted)
    assert (caught.value.code, caught.value.field) == ("out_of_range", field)
    assert caught.value.remedy
