"""What the page asks ComfyUI's server for to paint on: small pictures of files, and nothing outside of its folders."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.comfyui.conftest import make_t2va
from tests.comfyui.test_media_nodes import loading
from tests.support.comfyui import ComfyUI, run_prompt
from tests.support.media_files import write_clip

pytestmark = pytest.mark.comfyui


def ask(comfyui: ComfyUI, route: str, **query: Any) -> bytes:
    return comfyui.get_bytes(f"/h3_engine/{route}?{urllib.parse.urlencode(query)}")


def refusal(comfyui: ComfyUI, route: str, **query: Any) -> int:
    """Return the status of an answer that is an error."""
    with pytest.raises(urllib.error.HTTPError) as caught:
        ask(comfyui, route, **query)
    return caught.value.code


def picture(data: bytes) -> np.ndarray[Any, Any]:
    return np.asarray(Image.open(BytesIO(data)).convert("L"))


@pytest.fixture(scope="module")
def ramp(comfyui: ComfyUI) -> str:
    """Return the name of a clip at 12 pictures a second, 40 of them, each a little brighter."""
    frames = np.stack([np.full((48, 64, 3), 20 + 5 * i, np.uint8) for i in range(40)])
    write_clip(comfyui.base / "input" / "ramp.mp4", frames, rate=12)
    return "ramp.mp4"


def test_frames_of_a_file_are_numbered_at_24_a_second(comfyui: ComfyUI, ramp: str) -> None:
    facts = json.loads(ask(comfyui, "source", file=ramp))
    assert (facts["width"], facts["height"], facts["frames"]) == (64, 48, 80)
    for number in (57, 3, 0, 79, 500):
        shown = picture(ask(comfyui, "frame", file=ramp, n=number)).mean()
        assert shown == pytest.approx(20 + 5 * (min(number, 79) // 2), abs=3), number


def test_a_large_clip_comes_small_and_with_the_peaks_of_its_sound(comfyui: ComfyUI) -> None:
    facts = json.loads(ask(comfyui, "source", file="clip.mp4"))
    assert len(facts["peaks"]) == 2
    assert len(facts["peaks"][0]) == pytest.approx(2.1 * 40, abs=3)
    assert 0 < max(facts["peaks"][0]) <= 1
    Image.new("RGB", (2000, 1000)).save(comfyui.base / "input" / "large.png")
    assert Image.open(BytesIO(ask(comfyui, "frame", file="large.png", n=0))).size == (640, 320)


def test_a_turned_clip_is_shown_upright(comfyui: ComfyUI) -> None:
    frames = np.zeros((5, 48, 64, 3), np.uint8)
    frames[:, :8] = 255
    write_clip(comfyui.base / "input" / "turned.mp4", frames, rotation=90)
    facts = json.loads(ask(comfyui, "source", file="turned.mp4"))
    assert (facts["width"], facts["height"], facts["frames"]) == (48, 64, 5)
    shown = picture(ask(comfyui, "frame", file="turned.mp4", n=0))
    assert shown.shape == (64, 48)
    stripe = [shown[:, :6].mean(), shown[:, -6:].mean()]
    assert max(stripe) > 200
    assert min(stripe) < 50


def test_a_raster_takes_the_largest_pixel_under_each_square(comfyui: ComfyUI) -> None:
    mask = np.zeros((60, 100), np.uint8)
    mask[31, 57] = 200
    Image.fromarray(mask).save(comfyui.base / "input" / "dot.png")
    data = np.frombuffer(ask(comfyui, "raster", file="dot.png", width=16, height=8, frames=5), np.uint8).reshape(8, 16)
    expected = np.zeros((8, 16), np.uint8)
    expected[31 * 8 // 60, 57 * 16 // 100] = 200
    assert np.array_equal(data, expected)


@pytest.mark.parametrize(
    "name", ["../comfyui.log", "/etc/hostname", "..%2f..", "x\0.png", "../input/../comfyui.log [output]", "", "."]
)
def test_no_path_leads_out_of_comfyuis_folders(comfyui: ComfyUI, name: str) -> None:
    for route in ("source", "frame", "raster"):
        assert refusal(comfyui, route, file=name, n=0, width=8, height=8, frames=1) == 404


def test_malformed_questions_and_forgotten_clips_are_refused(comfyui: ComfyUI, ramp: str) -> None:
    assert refusal(comfyui, "frame", file=ramp) == 400
    assert refusal(comfyui, "frame", file=ramp, n="-1") == 400
    assert refusal(comfyui, "raster", file=ramp, width=99999, height=8, frames=1) == 400
    assert refusal(comfyui, "source", key="nothing") == 404
    assert refusal(comfyui, "cells", key="nothing") == 404
    (comfyui.base / "input" / "text.mp4").write_text("this is no clip")
    assert refusal(comfyui, "source", file="text.mp4") == 404
    assert refusal(comfyui, "frame", file="text.mp4", n=0) == 404


async def test_the_pictures_of_a_nodes_last_run_are_served_by_its_key(comfyui: ComfyUI) -> None:
    prompt = {"latent": make_t2va()["latent"]} | loading(
        image=("LoadImage", {"image": "example.png"}),
        mask=("H3EngineLatentMask", {"latent": ["latent", 0], "document": "", "source_images": ["image", 0]}),
    )
    run = await run_prompt(comfyui, prompt)
    (left,) = next(event for event in run.of("executed") if event["node"] == "mask")["output"]["h3_mask"]
    assert left["canvas"] == {"width": 64, "height": 64, "frames": 22}
    facts = json.loads(ask(comfyui, "source", key=left["key"]))
    assert (facts["width"], facts["height"], facts["peaks"]) == (128, 96, None)
    shown = picture(ask(comfyui, "frame", key=left["key"], n=7)).astype(int)
    original = np.asarray(Image.open(Path(comfyui.base) / "input" / "example.png").convert("L")).astype(int)
    assert np.abs(shown - original).mean() < 3
