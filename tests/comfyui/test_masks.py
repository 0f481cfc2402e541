"""Masks of a graph, and source and result joined through them, without ComfyUI."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.media_files import noise, write_clip
from tests.support.memory import peak_growth

FRAMES = 22
TOKENS, LATENTS = 7, 37


@pytest.fixture(scope="module")
def masks(h3pack: ModuleType) -> Any:
    return importlib.import_module("h3pack.comfy_h3.masks")


@pytest.fixture(scope="module")
def composite(h3pack: ModuleType) -> Any:
    return importlib.import_module("h3pack.comfy_h3.composite")


@pytest.fixture(scope="module")
def kept(h3pack: ModuleType) -> Any:
    return importlib.import_module("h3pack.comfy_h3.kept")


def streams(masks: Any, *, tokens: slice, corner: int = 2, latents: slice = slice(0)) -> Any:
    """Return masks of a shot of 64x64 and 22 frames: a corner of ``corner`` cells in some tokens, some sound."""
    video, audio = np.zeros((TOKENS, 4, 4), np.float32), np.zeros((2, LATENTS), np.float32)
    video[tokens, :corner, :corner] = 1
    audio[0, latents] = 1
    return masks.StreamMasks(video, audio)


@pytest.mark.parametrize(("fps", "count", "frames"), [(24.0, 22, 22), (30.0, 30, 24), (12.0, 5, 10), (24.0, 1, 1)])
def test_a_clip_comes_to_the_models_clock(kept: Any, fps: float, count: int, frames: int) -> None:
    order = kept.clock_order(count, fps=fps)
    assert len(order) == frames
    assert order[0] == 0
    assert order[-1] == count - 1
    assert order == sorted(order)
    assert kept.clock_order(count, fps=fps, frames=frames + 2)[-2:] == [count - 1] * 2


def test_a_kept_clip_is_not_kept_alive(kept: Any) -> None:
    images = torch.rand(3, 8, 8, 3)
    key = kept.keep(images, {"waveform": torch.ones(1, 2, 800), "sample_rate": 32_000}, fps=24.0)
    assert kept.keep(images, {"waveform": torch.ones(1, 2, 800), "sample_rate": 32_000}, fps=24.0) == key
    clip = kept.kept(key)
    assert (clip.frames, clip.width, clip.height, clip.peaks) == (3, 8, 8, [[1.0], [1.0]])
    assert torch.equal(clip.frame(9), images[2])
    del images
    assert clip.frame(0) is None


def test_pixels_are_what_is_made_anew(masks: Any) -> None:
    pixels = masks.to_pixels(streams(masks, tokens=slice(1, 2), corner=1).video, FRAMES)
    assert pixels.shape == (FRAMES, 64, 64)
    assert pixels.nonzero()[:, 0].unique().tolist() == [1, 2, 3, 4]
    assert pixels[1].nonzero().amax().item() == 15


@pytest.mark.parametrize("feather", [0, 8, 31])
def test_a_composite_keeps_the_sources_bits_outside_and_the_results_inside(
    masks: Any, composite: Any, feather: int
) -> None:
    source, result = torch.rand(FRAMES, 64, 64, 3), torch.rand(FRAMES, 64, 64, 3)
    edit, shot = streams(masks, tokens=slice(2, 4)), masks.Shot(64, 64, FRAMES)
    made = composite.composite_images(source, result, edit, shot, feather=feather, offset=0, fps=24.0)
    outside = masks.to_pixels(edit.video, FRAMES) == 0
    assert torch.equal(made[outside], source[outside])
    # The canvas' corner is no edge: there the result is whole.
    assert torch.equal(made[6, 0, 0], result[6, 0, 0])
    between = made[6, 16, 31]
    assert (between == result[6, 16, 31]).all() == (feather == 0)


def test_masks_and_kept_pictures_take_little_memory(masks: Any, composite: Any) -> None:
    source, shot = torch.rand(FRAMES, 64, 64, 3), masks.Shot(64, 64, FRAMES)
    nothing = streams(masks, tokens=slice(0))
    assert composite.composite_images(source, source + 1, nothing, shot, feather=8, offset=0, fps=24.0) is source
    assert composite.composite_images(source, source + 1, nothing, shot, feather=8, offset=-3, fps=24.0).shape[0] == 25
    video = np.zeros((TOKENS, 64, 64), np.float32)
    video[2, :8] = 0.5
    pixels, growth = peak_growth(lambda: masks.to_pixels(video, FRAMES))
    assert pixels.sum() == 4 * 0.5 * 128 * 1024
    # 88 MB, of which 2 MB in 4 of 22 frames are not 0; where pages have 2 MB, these frames take up to all of their 16.
    assert growth < pixels.numel() * 4 / 4


def test_a_clip_that_was_lengthened_comes_out_as_long_as_it_went_in(masks: Any, composite: Any) -> None:
    source, result, shot = torch.rand(20, 64, 64, 3), torch.rand(FRAMES, 64, 64, 3), masks.Shot(64, 64, FRAMES)
    words = {"feather": 0, "offset": 0, "fps": 24.0}
    nothing, end = streams(masks, tokens=slice(0)), streams(masks, tokens=slice(6, 7))
    assert composite.composite_images(source, result, nothing, shot, length=20, **words) is source
    made = composite.composite_images(source, result, end, shot, length=20, **words)
    assert made.shape[0] == 20
    assert torch.equal(made[:18], source[:18])
    assert torch.equal(made[18:, :32, :32], result[18:20, :32, :32])
    # A source that is counted one shorter is not followed by a frame that nobody asked for, but by what was made anew.
    assert composite.composite_images(source[:19], result, nothing, shot, length=20, **words).shape[0] == 19
    assert torch.equal(composite.composite_images(source[:19], result, end, shot, length=20, **words)[19], result[19])
    assert composite.composite_images(source, result, nothing, shot, **words).shape[0] == FRAMES


@pytest.mark.parametrize(
    ("latents", "seconds", "ends"),
    [(slice(0), 0.7, 0.7), (slice(0), 0.9, 0.9), (slice(0, LATENTS), 0.7, 20 / 24), (slice(28, 30), 0.7, 0.75)],
)
def test_the_sound_of_a_clip_that_was_lengthened_ends_with_the_clip(
    masks: Any, composite: Any, latents: slice, seconds: float, ends: float
) -> None:
    source = {"waveform": torch.rand(1, 2, round(seconds * 32_000)), "sample_rate": 32_000}
    result = {"waveform": torch.rand(1, 2, LATENTS * 800), "sample_rate": 32_000}
    edit = streams(masks, tokens=slice(0), latents=latents)
    made = composite.composite_audio(source, result, edit, feather_ms=0.0, offset=0, length=20)["waveform"][0]
    assert made.shape[1] == round(ends * 32_000)
    assert torch.equal(made[1, : round(seconds * 32_000)], source["waveform"][0, 1])


def test_a_longer_source_goes_on_around_the_result(masks: Any, composite: Any) -> None:
    source, result = torch.rand(FRAMES, 64, 64, 3), torch.rand(FRAMES, 64, 64, 3)
    edit, shot = streams(masks, tokens=slice(TOKENS), corner=4), masks.Shot(64, 64, FRAMES)
    made = composite.composite_images(source, result, edit, shot, feather=0, offset=-10, fps=24.0)
    assert torch.equal(made[:10], source[:10])
    assert torch.equal(made[10:], result)
    later = composite.composite_images(source, result, edit, shot, feather=0, offset=FRAMES, fps=24.0)
    assert torch.equal(later, torch.cat([result, source]))
    with pytest.raises(Exception, match="gap"):
        composite.composite_images(source, result, edit, shot, feather=0, offset=30, fps=24.0)


def test_a_result_of_another_shot_is_refused(masks: Any, composite: Any) -> None:
    edit, shot = streams(masks, tokens=slice(1)), masks.Shot(64, 64, FRAMES)
    with pytest.raises(Exception, match="64x64 with 22") as caught:
        composite.composite_images(
            torch.rand(5, 64, 64, 3), torch.rand(5, 64, 32, 3), edit, shot, feather=0, offset=0, fps=24.0
        )
    assert caught.value.field == "result_images"


@pytest.mark.parametrize("rate", [32_000, 44_100])
@pytest.mark.parametrize("channels", [1, 2])
def test_sound_outside_of_the_mask_is_the_sources(masks: Any, composite: Any, rate: int, channels: int) -> None:
    count = rate * FRAMES // 24
    source = {"waveform": torch.rand(1, channels, count), "sample_rate": rate}
    result = {"waveform": torch.full((1, 2, LATENTS * 800), 0.5), "sample_rate": 32_000}
    edit = streams(masks, tokens=slice(0), latents=slice(10, 20))
    made = composite.composite_audio(source, result, edit, feather_ms=5.0, offset=0)
    waveform, own = made["waveform"][0], source["waveform"][0].expand(2, -1)
    assert made["sample_rate"] == rate
    start, stop = rate * 10 // 40, rate * 20 // 40
    assert torch.equal(waveform[0, :start], own[0, :start])
    assert torch.equal(waveform[0, stop + 1 : count], own[0, stop + 1 :])
    assert torch.equal(waveform[1, :count], own[1])
    assert torch.allclose(waveform[0, start + rate // 40 : stop - rate // 40], torch.tensor(0.5), atol=0.02)


def test_rasters_are_pictures_and_clips(masks: Any, tmp_path: Path) -> None:
    grey = np.zeros((8, 8), np.uint8)
    grey[0, :3] = (3, 128, 250)
    Image.fromarray(grey).save(tmp_path / "a.png")
    assert masks.raster_of_file(tmp_path / "a.png", frames=9, field="document")[0, 0, :3].tolist() == [0, 128, 255]
    clip = write_clip(tmp_path / "a.mp4", noise(32, 32, frames=5))
    assert masks.raster_of_file(clip, frames=3, field="document").shape == (3, 32, 32)
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(Exception, match="no picture") as caught:
        masks.raster_of_file(tmp_path / "a.txt", frames=3, field="document")
    assert caught.value.code == "bad_mask"


def test_a_preview_tints_what_is_made_anew(masks: Any) -> None:
    images = torch.full((FRAMES, 64, 64, 3), 0.5)
    made = masks.preview(streams(masks, tokens=slice(0, 1)).video, masks.Shot(64, 64, FRAMES), images, fps=24.0)
    assert made.shape == (FRAMES, 64, 64, 3)
    assert torch.allclose(made[1], images[1])
    assert made[0, 0, 0, 0] > 0.6
    assert torch.allclose(made[0, 40, 40], images[0, 0, 0])
