"""Sounds of every sort: channels, rates, places and budgets, as the process that reads media prepares them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pytest

from engine.contract import geometry
from tests.support.media_files import (
    MediaRun,
    encoded,
    guides_request,
    noise,
    references_request,
    source_request,
    tone,
    write_clip,
    write_sound,
)
from tests.support.side_folder import ensure_side_folder

RATE = 32_000
IMAGE = {"kind": "image", "media": {"part": "image"}}


@pytest.fixture
def torchaudio() -> None:
    """Let this process import torchaudio, from the side folder."""
    folder = str(ensure_side_folder())
    sys.path.append(folder)
    __import__("torchaudio")
    sys.path.remove(folder)


def sounds(folder: Path, *data: Any, **fields: Any) -> MediaRun:
    """Prepare standalone reference sounds beside a picture."""
    references = [{"kind": "audio", "media": {"part": str(index)}} for index in range(len(data))]
    parts = {str(index): value for index, value in enumerate(data)}
    request = references_request(IMAGE, *references, **fields)
    return MediaRun(folder, request, {"image": encoded(noise(32, 32)), **parts})


def wav(folder: Path, seconds: float, rate: int = RATE, channels: int = 1, name: str = "sound") -> Path:
    return write_sound(folder / f"{name}.wav", tone(seconds, rate, channels), rate)


def pitch(waveform: npt.NDArray[np.float32], rate: int = RATE) -> float:
    """Return the strongest frequency of a waveform [N], Hz."""
    spectrum = np.abs(np.fft.rfft(waveform))
    return float(np.fft.rfftfreq(len(waveform), 1 / rate)[int(spectrum.argmax())])


def test_mono_goes_to_both_channels(tmp_path: Path) -> None:
    run = sounds(tmp_path, wav(tmp_path, 2.5))
    waveform = run.part("references.1")["waveform"]
    np.testing.assert_array_equal(waveform, np.repeat(tone(2.5, RATE), 2, axis=0))
    assert run.facts["references"][1]["audio_latents"] == 100
    assert run.facts["references"][1]["rows"] == 200


@pytest.mark.usefixtures("torchaudio")
@pytest.mark.parametrize("rate", [8_000, 22_050, 44_100, 48_000, 96_000])
def test_any_rate_becomes_the_models(rate: int, tmp_path: Path) -> None:
    waveform = sounds(tmp_path, wav(tmp_path, 3, rate, 2)).part("references.1")["waveform"]
    assert abs(waveform.shape[1] - 3 * RATE) <= 1
    assert pitch(waveform[0]) == pytest.approx(220, abs=1)
    assert pitch(waveform[1]) == pytest.approx(440, abs=1)
    assert np.abs(waveform[:, 1000:-1000]).max() == pytest.approx(0.5, abs=0.02)


def test_a_rate_with_an_endless_filter_is_read_too(tmp_path: Path) -> None:
    waveform = sounds(tmp_path, wav(tmp_path, 3, 44_099)).part("references.1")["waveform"]
    assert abs(waveform.shape[1] - 3 * RATE) <= 100
    assert pitch(waveform[0]) == pytest.approx(220, abs=1)


def test_six_channels_are_folded_down_within_full_scale(tmp_path: Path) -> None:
    loud = np.zeros((6, 3 * RATE), np.float32)
    loud[0] = loud[2] = 0.9  # front left and centre
    file = write_sound(tmp_path / "a.wav", loud, RATE)
    waveform = sounds(tmp_path, file).part("references.1")["waveform"]
    left, right = np.median(waveform[0]), np.median(waveform[1])
    assert left == pytest.approx(1.0, abs=1e-3)
    assert right == pytest.approx(0.7071 / 1.7071, abs=1e-3)
    decoded = {"waveform": loud}
    request = references_request(IMAGE, {"kind": "audio", "media": {"part": "a", "format": "audio"}})
    same = MediaRun(tmp_path, request, {"image": encoded(noise(32, 32)), "a": decoded})
    np.testing.assert_allclose(same.part("references.1")["waveform"], waveform, atol=1e-6)


@pytest.mark.parametrize(("name", "codec"), [("a.flac", "flac"), ("a.mp3", "libmp3lame"), ("a.ogg", "libopus")])
@pytest.mark.usefixtures("torchaudio")
def test_other_formats_are_read(name: str, codec: str, tmp_path: Path) -> None:
    file = write_sound(tmp_path / name, tone(3, 48_000, 2), 48_000, codec)
    waveform = sounds(tmp_path, file).part("references.1")["waveform"]
    assert pitch(waveform[0]) == pytest.approx(220, abs=1)
    assert pitch(waveform[1]) == pytest.approx(440, abs=1)


def test_a_sound_is_cut_to_the_output_and_that_is_said(tmp_path: Path) -> None:
    run = sounds(tmp_path, wav(tmp_path, 10), frames=56)
    assert run.part("references.1")["waveform"].shape == (2, int(56 / 24 * RATE))
    assert run.warnings == ["media_cut"]


@pytest.mark.parametrize(("seconds", "word"), [(1.9, "at least 2 s"), (15.1, "at most 15 s")])
def test_a_standalone_sound_outside_two_to_fifteen_seconds_is_refused(
    seconds: float, word: str, tmp_path: Path
) -> None:
    error = sounds(tmp_path, wav(tmp_path, seconds)).error
    assert (error["code"], error["field"]) == ("media_limit", "request.references[1].media")
    assert word in error["message"]


@pytest.mark.parametrize(("seconds", "word"), [(1.9, "at least 2 s"), (15.1, "at most 15 s")])
def test_a_soundtrack_outside_two_to_fifteen_seconds_is_refused(seconds: float, word: str, tmp_path: Path) -> None:
    file = clip(tmp_path, seconds)
    error = MediaRun(tmp_path, references_request({"kind": "video", "media": {"part": "a"}}), {"a": file}).error
    assert (error["code"], error["field"]) == ("media_limit", "request.references[0].media")
    assert word in error["message"]
    assert "soundtrack" in error["message"]


def test_sounds_share_one_budget(tmp_path: Path) -> None:
    error = sounds(tmp_path, wav(tmp_path, 8), wav(tmp_path, 8)).error
    assert (error["code"], error["value"]) == ("media_limit", 16.0)


def test_a_soundtrack_and_a_sound_have_budgets_of_their_own(tmp_path: Path) -> None:
    request = references_request(
        {"kind": "video", "media": {"part": "a"}}, {"kind": "audio", "media": {"part": "b"}}, frames=22
    )
    run = MediaRun(tmp_path, request, {"a": clip(tmp_path, 10), "b": wav(tmp_path, 10)})
    assert [reference["kind"] for reference in run.facts["references"]] == ["video_audio", "audio"]
    two = references_request(*[{"kind": "video", "media": {"part": "a"}}] * 2, frames=22)
    assert "soundtracks" in MediaRun(tmp_path, two, {"a": clip(tmp_path, 8)}).error["message"]


def test_a_clip_without_sound_has_none(tmp_path: Path) -> None:
    request = references_request({"kind": "video", "media": {"part": "a"}})
    run = MediaRun(tmp_path, request, {"a": write_clip(tmp_path / "a.mp4", [noise(32, 32)] * 48)})
    assert list(run.part("references.0")) == ["frames"]
    assert run.facts["references"][0]["kind"] == "video"


def test_a_clips_sound_can_be_a_reference_by_itself(tmp_path: Path) -> None:
    waveform = sounds(tmp_path, clip(tmp_path, 3)).part("references.1")["waveform"]
    assert pitch(waveform[0]) == pytest.approx(220, abs=1)


def test_a_silent_clip_is_no_sound(tmp_path: Path) -> None:
    error = sounds(tmp_path, write_clip(tmp_path / "a.mp4", [noise(32, 32)] * 48)).error
    assert (error["code"], error["field"]) == ("bad_media", "request.references[1].media")
    assert "no sound" in error["message"]


def test_a_soundtrack_that_starts_late_stays_late(tmp_path: Path) -> None:
    # The file's own sound is moved to 1 s after its first picture.
    file = shifted(clip(tmp_path, 3), 1.0, tmp_path / "late.mkv")
    waveform = MediaRun(tmp_path, source_request(), {"a": file}).part("source")["waveform"]
    heard = np.flatnonzero(np.abs(waveform[0]) > 0.1)[0] / RATE
    assert heard == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize(
    ("frame", "seconds", "latents"), [(0, 9.0, 207), (0, 1.0, 40), (-1, 1.0, 2), (22, 9.0, 170), (17, 0.01, 1)]
)
def test_a_guides_sound_is_cut_to_what_the_timeline_has_left(
    frame: int, seconds: float, latents: int, tmp_path: Path
) -> None:
    request = guides_request({"audio": {"part": "a"}, "frame": frame})
    run = MediaRun(tmp_path, request, {"a": wav(tmp_path, seconds)})
    assert run.facts["conditions"][0]["audio_latents"] == latents
    assert run.facts["conditions"][0]["frames"] == 0
    samples = run.part("guides.0")["waveform"].shape[1]
    assert samples == min(latents * 800, round(seconds * RATE))
    assert run.warnings == (["media_cut"] if seconds * RATE > samples else [])


def test_a_guides_own_sound_gives_way_to_a_given_one(tmp_path: Path) -> None:
    guide = {"media": {"part": "a"}, "audio": {"part": "b", "format": "audio", "sample_rate": RATE}}
    parts = {"a": clip(tmp_path, 2), "b": {"waveform": 0.25 * np.ones((1, RATE), np.float32)}}
    run = MediaRun(tmp_path, guides_request(guide), parts)
    assert (run.part("guides.0")["waveform"] == 0.25).all()
    del guide["audio"]
    own = MediaRun(tmp_path, guides_request(guide), parts).part("guides.0")["waveform"]
    assert pitch(own[0]) == pytest.approx(220, abs=1)


def test_a_sources_sound_lasts_as_long_as_its_pictures(tmp_path: Path) -> None:
    short = MediaRun(tmp_path, source_request(frames=124), {"a": clip(tmp_path, 3)})
    waveform = short.part("source")["waveform"]
    assert waveform.shape == (2, geometry.audio_latents(124) * 800)
    assert not waveform[:, round(3.2 * RATE) :].any()
    cut = MediaRun(tmp_path, source_request(frames=22), {"a": clip(tmp_path, 3)})
    assert cut.part("source")["waveform"].shape == (2, geometry.audio_latents(22) * 800)


def test_a_source_may_be_a_sound_alone(tmp_path: Path) -> None:
    request = {"task": "encode_media", "source": {"audio": {"part": "a"}}}
    run = MediaRun(tmp_path, request, {"a": wav(tmp_path, 2.5)})
    assert (run.facts["width"], run.facts["height"], run.facts["frames"]) == (128, 64, 73)
    assert list(run.part("source")) == ["waveform"]


def test_samples_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    sound = tone(3, RATE)
    sound[0, 5] = np.nan
    error = sounds(tmp_path, write_sound(tmp_path / "a.wav", sound, RATE)).error
    assert (error["code"], error["field"]) == ("bad_media", "request.references[1].media")


def test_without_torchaudio_the_error_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchaudio", None)
    error = sounds(tmp_path, wav(tmp_path, 3, 44_100)).error
    assert (error["code"], error["field"], error["value"]) == ("missing_package", "request.references[1].media", 44_100)
    assert "torchaudio" in error["remedy"]
    assert "error" not in sounds(tmp_path, wav(tmp_path, 3)).result


def clip(folder: Path, sound_seconds: float) -> Path:
    """Write a clip of 2 s with a soundtrack of ``sound_seconds`` at the model's rate."""
    sound = tone(sound_seconds, RATE)
    path = folder / f"clip{sound_seconds}.mkv"
    return write_clip(path, [noise(32, 32)] * 48, sound=sound, sound_rate=RATE, sound_codec="pcm_s16le")


def shifted(path: Path, seconds: float, out: Path) -> Path:
    """Copy a file with its sound ``seconds`` later."""
    with av.open(str(path)) as source, av.open(str(out), "w") as output:
        streams = {stream.index: output.add_stream_from_template(stream) for stream in source.streams}
        for packet in source.demux():
            if packet.size == 0:
                continue  # the end
            if packet.stream.type == "audio":
                packet.pts = packet.dts = packet.pts + round(seconds / packet.time_base)
            packet.stream = streams[packet.stream.index]
            output.mux(packet)
    return out
