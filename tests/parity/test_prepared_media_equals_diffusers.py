"""Prepared media against diffusers' own preparation steps, bit for bit: keyframes, references, clips, sounds."""

from __future__ import annotations

import random
import sys
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from diffusers.image_processor import VaeImageProcessor
from diffusers.modular_pipelines.minimax_h3.before_encoder import MiniMaxH3Ref2VASetupStep, MiniMaxH3ResizeStep
from diffusers.modular_pipelines.minimax_h3.references import (
    MiniMaxH3AudioReference,
    MiniMaxH3ImageReference,
    MiniMaxH3VideoReference,
)
from diffusers.modular_pipelines.modular_pipeline import PipelineState
from PIL import Image

from engine.media.clock import Clip, Picture, held_pictures
from tests.support.media_files import (
    TINY,
    MediaRun,
    encoded,
    gradient,
    keyframes_request,
    noise,
    references_request,
    tone,
    write_clip,
    write_sound,
)
from tests.support.side_folder import ensure_side_folder

COMPONENTS = SimpleNamespace(
    image_processor=VaeImageProcessor(vae_scale_factor=16),
    config=SimpleNamespace(
        canvas_short_edge=TINY.canvas_short_edge,
        canvas_max_pixels=TINY.canvas_max_pixels,
        reference_image_short_edge=TINY.reference_short_edge,
    ),
    canvas_multiple=32,
    vae_frames_per_chunk=17,
    vae_latents_per_chunk=5,
    fps=24,
    min_duration=0.0,
    max_duration=60.0,
    audio_sampling_rate=32_000,
)


@pytest.fixture(scope="module", autouse=True)
def _resampler() -> None:
    """Let this process import torchaudio, from the side folder."""
    folder = str(ensure_side_folder())
    sys.path.append(folder)
    __import__("torchaudio")
    sys.path.remove(folder)


def run_step(step: Any, **inputs: Any) -> PipelineState:
    """Run one of diffusers' steps."""
    state = PipelineState()
    for name, value in inputs.items():
        state.set(name, value)
    _, state = step(COMPONENTS, state)
    return state


@pytest.mark.parametrize(
    "sizes", [((75, 50), (50, 75)), ((96, 64), (96, 64)), ((131, 77), (200, 60)), ((40, 90), None)]
)
@pytest.mark.parametrize("canvas", [None, (128, 96)])
@pytest.mark.parametrize("ends", [("first", "last"), ("last", "first")])
def test_keyframes_equal_diffusers(
    sizes: tuple[tuple[int, int], tuple[int, int] | None],
    canvas: tuple[int, int] | None,
    ends: tuple[str, str],
    tmp_path: Path,
) -> None:
    pictures = [noise(size[1], size[0], seed=index) for index, size in enumerate(sizes) if size is not None]
    given = list(zip(ends, pictures, strict=False))
    size = {} if canvas is None else {"width": canvas[0], "height": canvas[1]}
    images = {"image" if end == "first" else "last_image": Image.fromarray(pixels) for end, pixels in given}
    state = run_step(MiniMaxH3ResizeStep(), **images, **size)
    keyframes = [{"media": {"part": end}, "at": end} for end, _ in given]
    ours = MediaRun(tmp_path, keyframes_request(*keyframes, **size), {end: encoded(pixels) for end, pixels in given})
    assert (ours.facts["width"], ours.facts["height"]) == (state.get("width"), state.get("height"))
    expected = [np.asarray(keyframe) for keyframe in state.get("keyframes")]
    made = [ours.part(f"keyframes.{index}")["frames"][0] for index in range(len(expected))]
    assert len(made) == len(given)
    for mine, theirs in zip(made, expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("size", [(75, 50), (96, 96), (300, 80), (33, 47), (640, 360)])
def test_a_reference_picture_equals_diffusers(size: tuple[int, int], tmp_path: Path) -> None:
    pixels = gradient(size[1], size[0])
    theirs = setup([MiniMaxH3ImageReference(image=Image.fromarray(pixels))])[0]
    ours = MediaRun(tmp_path, references_request(reference("image")), {"a": encoded(pixels)})
    np.testing.assert_array_equal(ours.part("references.0")["frames"][0], np.asarray(theirs.image))


@pytest.mark.parametrize("rate", [24, 25, 30, 60, 12, 120, Fraction(30000, 1001), Fraction(24000, 1001)])
def test_a_clip_at_a_constant_rate_equals_diffusers_reading_the_same_file(rate: Fraction | int, tmp_path: Path) -> None:
    count = round(3 * rate)
    path = write_clip(
        tmp_path / "clip.mp4",
        noise(34, 50, frames=count),
        rate=rate,
        sound=tone(3, 44_100, 2),
        sound_rate=44_100,
    )
    theirs = setup([MiniMaxH3VideoReference.from_file(path)], frames=56)[0]
    ours = MediaRun(tmp_path, references_request(reference("video"), frames=56), {"a": path}).part("references.0")
    np.testing.assert_array_equal(ours["frames"], theirs.frames)
    np.testing.assert_array_equal(ours["waveform"], theirs.audio.numpy())


@pytest.mark.parametrize("container", ["clip.mkv", "clip.mov", "clip.avi", "clip.webm"])
def test_a_clip_of_any_container_equals_diffusers_reading_the_same_file(container: str, tmp_path: Path) -> None:
    codec = "libvpx-vp9" if container.endswith("webm") else "libx264"
    options = {"deadline": "realtime"} if codec == "libvpx-vp9" else {"bf": "0"}
    frames = noise(34, 50, frames=75)
    path = write_clip(tmp_path / container, frames, rate=30, codec=codec, options=options)
    theirs = setup([MiniMaxH3VideoReference.from_file(path)])[0]
    ours = MediaRun(tmp_path, references_request(reference("video")), {"a": path}).part("references.0")
    np.testing.assert_array_equal(ours["frames"], theirs.frames)


@pytest.mark.parametrize("rotation", [90, 180, 270])
def test_a_turned_clip_equals_diffusers_reading_the_same_file(rotation: int, tmp_path: Path) -> None:
    upright = write_clip(tmp_path / "clip.mp4", [gradient(34, 50)] * 50)
    path = turned(upright, rotation)
    theirs = setup([MiniMaxH3VideoReference.from_file(path)])[0]
    ours = MediaRun(tmp_path, references_request(reference("video")), {"a": path}).part("references.0")
    np.testing.assert_array_equal(ours["frames"], theirs.frames)
    assert (ours["frames"].shape[1] > ours["frames"].shape[2]) == (rotation != 180)


@pytest.mark.parametrize("fps", [24.0, 30.0, 23.976, 15.0, 48.0, 7.5])
def test_decoded_frames_equal_diffusers(fps: float, tmp_path: Path) -> None:
    frames = noise(40, 60, frames=round(3 * fps))
    theirs = setup([MiniMaxH3VideoReference(frames=frames, fps=fps, audio=torch.tensor(tone(3, 16_000)),
                                            sample_rate=16_000)])[0]  # fmt: skip
    asked = reference("video", audio={"part": "b", "format": "audio", "sample_rate": 16_000})
    asked["media"] |= {"format": "frames", "fps": fps}
    run = MediaRun(tmp_path, references_request(asked), {"a": {"frames": frames}, "b": {"waveform": tone(3, 16_000)}})
    np.testing.assert_array_equal(run.part("references.0")["frames"], theirs.frames)
    np.testing.assert_array_equal(run.part("references.0")["waveform"], theirs.audio.numpy())


@pytest.mark.parametrize(
    ("rate", "channels"), [(44_100, 2), (44_100, 1), (48_000, 2), (8_000, 1), (32_000, 2), (22_050, 2)]
)
@pytest.mark.parametrize("frames", [56, 124])
def test_a_sound_equals_diffusers(rate: int, channels: int, frames: int, tmp_path: Path) -> None:
    path = write_sound(tmp_path / "sound.wav", tone(4, rate, channels), rate)
    picture = Image.fromarray(noise(64, 64))
    sound = MiniMaxH3AudioReference.from_file(path)
    theirs = setup([MiniMaxH3ImageReference(image=picture), sound], frames=frames)[1]
    request = references_request(reference("image", part="b"), reference("audio"), frames=frames)
    ours = MediaRun(tmp_path, request, {"a": path, "b": encoded(noise(64, 64))})
    np.testing.assert_array_equal(ours.part("references.1")["waveform"], theirs.audio.numpy())


def test_the_clock_is_diffusers_for_many_rates_and_lengths() -> None:
    random_ = random.Random(0)
    rates = [random_.uniform(1, 240) for _ in range(300)] + [24 * k / 7 for k in range(1, 40)]
    for rate in rates:
        count = random_.randint(1, 200)
        frames = np.arange(count, dtype=np.uint8).reshape(count, 1, 1, 1).repeat(3, axis=3)
        theirs = MiniMaxH3Ref2VASetupStep._normalize_video_condition(frames, rate, 10_000, 1, 1, 1, 24.0)
        pictures = [Picture(lambda frame=frame: frame) for frame in frames]  # type: ignore[misc]
        held = [
            picture.pixels()[0, 0, 0]
            for picture, times in held_pictures(Clip(iter(pictures), rate))
            for _ in [0] * times
        ]
        assert held == theirs[:, 0, 0, 0].tolist(), (rate, count)


def reference(kind: str, *, part: str = "a", **fields: Any) -> dict[str, Any]:
    """Return a reference to ``part`` at diffusers' own size."""
    return {"kind": kind, "media": {"part": part}, "size": "reference", **fields}


def setup(references: list[Any], *, frames: int = 124) -> list[Any]:
    """Return what diffusers makes of ``references``."""
    state = run_step(MiniMaxH3Ref2VASetupStep(), references=references, num_frames=frames, width=128, height=64)
    made: list[Any] = state.get("normalized_references")
    return made


def turned(path: Path, rotation: int) -> Path:
    """Return a copy of an MP4 whose display matrix turns it."""
    matrices = {
        90: (0, 0x10000, -0x10000, 0),
        180: (-0x10000, 0, 0, -0x10000),
        270: (0, -0x10000, 0x10000, 0),
    }
    data = bytearray(path.read_bytes())
    identity = b"".join(
        value.to_bytes(4, "big", signed=True) for value in (0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000)
    )
    place = data.index(identity, data.index(b"tkhd"))
    a, b, c, d = matrices[rotation]
    made = b"".join(value.to_bytes(4, "big", signed=True) for value in (a, b, 0, c, d, 0, 0, 0, 0x40000000))
    data[place : place + 36] = made
    out = path.with_name(f"turned{rotation}.mp4")
    out.write_bytes(data)
    return out
