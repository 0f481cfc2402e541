"""The sound that the mask editor plays: served by clip, bounded, and in step with the pictures."""

from __future__ import annotations

import importlib
import io
import json
import urllib.error
import urllib.parse
import wave
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image

from tests.comfyui.conftest import make_t2va
from tests.comfyui.test_media_nodes import loading
from tests.support.browser import comfyui_page
from tests.support.comfyui import ComfyUI, run_prompt
from tests.support.mask_editor import EditorPage
from tests.support.media_files import tone, write_clip
from tests.support.workflows import template

pytestmark = pytest.mark.comfyui

RATE, FRAMES = 48_000, 39
CLIP = "heard.mp4"


@pytest.fixture(scope="module")
def clip(comfyui: ComfyUI) -> str:
    """Return the name of a clip whose sound begins after a second, on the right alone."""
    sound = np.zeros((2, RATE * FRAMES // 24), np.float32)
    sound[1, RATE:] = tone(FRAMES / 24 - 1, RATE)[0]
    frames = np.stack([np.full((64, 128, 3), 20 + 5 * i, np.uint8) for i in range(FRAMES)])
    write_clip(comfyui.base / "input" / CLIP, frames, sound=sound, sound_rate=RATE)
    return CLIP


def heard(comfyui: ComfyUI, **query: Any) -> tuple[npt.NDArray[np.int16], int]:
    """Return the samples [N, C] that the page is given, and their rate."""
    answer = comfyui.get_bytes(f"/h3_engine/sound?{urllib.parse.urlencode(query)}")
    with wave.open(io.BytesIO(answer)) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16)
        return samples.reshape(-1, file.getnchannels()), file.getframerate()


async def test_a_clips_sound_is_served_from_its_file_and_from_a_nodes_last_run(comfyui: ComfyUI, clip: str) -> None:
    prompt = {"latent": make_t2va()["latent"]} | loading(
        clip=("LoadVideo", {"file": clip}),
        parts=("GetVideoComponents", {"video": ["clip", 0]}),
        mask=(
            "H3EngineLatentMask",
            {"latent": ["latent", 0], "document": "", "source_images": ["parts", 0], "source_audio": ["parts", 1]},
        ),
    )
    run = await run_prompt(comfyui, prompt)
    (left,) = next(event for event in run.of("executed") if event["node"] == "mask")["output"]["h3_mask"]
    for query in ({"file": clip}, {"key": left["key"]}):
        samples, rate = heard(comfyui, **query)
        assert rate == RATE
        assert len(samples) == pytest.approx(RATE * FRAMES / 24, abs=4096), "a coder's block more or less"
        loud = np.abs(samples.astype(int)).max(axis=0)
        assert loud[0] < 700, query
        assert 14_000 < loud[1] < 20_000, query
        assert np.abs(samples[: RATE * 9 // 10].astype(int)).max() < 700, query


@pytest.mark.parametrize(
    "query",
    [
        {"file": "../comfyui.log"},
        {"file": "/etc/hostname"},
        {"file": "x\0.mp4"},
        {"key": "nothing"},
        {"file": "mute.png"},
    ],
)
def test_no_sound_is_served_of_what_is_no_clip_of_comfyuis(comfyui: ComfyUI, query: dict[str, str]) -> None:
    Image.new("RGB", (64, 64)).save(comfyui.base / "input" / "mute.png")
    with pytest.raises(urllib.error.HTTPError) as caught:
        heard(comfyui, **query)
    assert caught.value.code == 404


def test_a_sound_is_cut_to_three_minutes_and_two_channels(h3pack: object) -> None:
    sounds = importlib.import_module("h3pack.comfy_h3.sounds")
    with wave.open(io.BytesIO(sounds.wav_of(torch.full((6, 96_000 * 300), 2.0), 96_000))) as file:
        assert (file.getnchannels(), file.getnframes()) == (2, RATE * 180)
        assert set(file.readframes(100)) == {0x7F, 0xFF}, "what is too loud is cut"


@pytest.mark.browser
@pytest.mark.parametrize("vue_nodes", [False, True], ids=["classic", "vue"])
def test_play_plays_the_sound_in_step_with_the_pictures(comfyui: ComfyUI, clip: str, vue_nodes: bool) -> None:
    graph = json.loads(json.dumps(template("inpaint")))
    next(node for node in graph["nodes"] if node["type"] == "LoadVideo")["widgets_values"][0] = clip
    in_step = "player.voice && Math.abs(player.at - editor.frame / 24) < 0.25"
    with comfyui_page(comfyui, vue_nodes=vue_nodes) as page:
        editor = EditorPage(page)
        editor.load(graph)
        editor.zoom_graph(0.7)
        page.wait_for_function(_of("editor.clip > 0"))
        editor.focus()
        editor.press("Space")
        page.wait_for_function(_of(f"{in_step} && player.at > 0.3 && player.at < 1.4"), timeout=10_000)
        editor.get("editor.goTo(30)")
        page.wait_for_function(_of(f"{in_step} && player.at > 1.2"), timeout=10_000)
        page.wait_for_function(_of(f"{in_step} && player.at < 0.7"), timeout=10_000)  # round again
        sound = page.locator(".h3-mask").get_by_label("♪")
        sound.select_option("off")
        page.wait_for_function(_of("editor.state.playing && !player.voice"), timeout=10_000)
        sound.select_option("source")
        page.wait_for_function(_of(in_step), timeout=10_000)
        editor.press("Space")
        assert editor.get("!editor.state.playing && !editor.player.voice")
        loud = "Math.max(...editor.player.sound.getChannelData(1).subarray(%s).map(Math.abs))"
        assert editor.get(loud % "0, 0.9 * 48000") < 0.02
        assert editor.get(loud % "1.1 * 48000, 1.4 * 48000") > 0.4


def _of(expression: str) -> str:
    return f"""() => {{ const node = app.graph._nodes.find((node) => node.type === 'H3EngineLatentMask');
        const editor = window.h3Engine.maskEditor(node), {{ player }} = editor; return {expression}; }}"""
