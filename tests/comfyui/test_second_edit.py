"""A second edit runs what it needs and no more: ComfyUI keeps what did not change, the engine what was made before."""

from __future__ import annotations

import re
import urllib.request
from collections import Counter
from typing import Any

import pytest

from tests.comfyui.conftest import make_t2va, output_file
from tests.comfyui.test_mask_nodes import BOX, FRAMES, shot
from tests.comfyui.test_media_nodes import finished
from tests.support.comfyui import ComfyUI, Run
from tests.support.video import video_facts

pytestmark = [pytest.mark.comfyui, pytest.mark.ranks]

ENCODED = {"connect", "encode", "clip", "parts", "media"}
EDITED = {"mask", "sample", "decode", "save"}


def edit(strength: float, **sampling: Any) -> dict[str, Any]:
    """Return the nodes from a clip to the video that its edit makes."""
    layers = [{**BOX["layers"][0], "strength": strength}]
    whole = make_t2va(encode__prompt="A second edit.")
    prompt = {**whole, **shot(layers=layers), "decode": whole["decode"], "save": whole["save"]}
    prompt["encode"] = whole["encode"]
    prompt["sample"]["inputs"] |= sampling
    return prompt


def ran(run: Run) -> set[str]:
    """Return the nodes that were executed."""
    return {event["node"] for event in run.of("executing") if event["node"]}


def stage_counts(comfyui: ComfyUI) -> Counter[str]:
    """Return how often each stage ran on the ranks of any engine."""
    counts: Counter[str] = Counter()
    for url in comfyui.engine_urls():
        with urllib.request.urlopen(url + "/metrics") as answer:
            text = answer.read().decode()
        for stage, count in re.findall(r'^h3_engine_stage_seconds_count{stage="(\w+)"} (\d+)$', text, re.MULTILINE):
            counts[stage] += int(count)
    return counts


@pytest.fixture(scope="module")
def before() -> dict[str, Any]:
    """Return what the tests hand on, in their order."""
    return {}


async def test_the_first_edit_runs_everything(comfyui: ComfyUI, before: dict[str, Any]) -> None:
    # Another test may have run the same clip, or connected the same engine.
    comfyui.post("/free", {"free_memory": True})
    run = await finished(comfyui, edit(0.5))
    assert ran(run) | {"connect"} == ENCODED | EDITED
    before["counts"] = stage_counts(comfyui)


@pytest.mark.parametrize("change", [{"strength": 1.0}, {"strength": 1.0, "seed": 8}, {"strength": 1.0, "steps": 3}])
async def test_another_mask_seed_or_number_of_steps_encodes_nothing(
    comfyui: ComfyUI, before: dict[str, Any], change: dict[str, Any]
) -> None:
    run = await finished(comfyui, edit(**change))
    assert ran(run) <= EDITED
    assert {"sample", "decode"} <= ran(run)
    counts = stage_counts(comfyui)
    changed = {stage for stage, count in counts.items() if count != before["counts"][stage]}
    assert changed == {"denoise", "decode_audio", "decode_video"}
    saved = next(event for event in run.of("executed") if event["node"] == "save")
    assert video_facts(output_file(comfyui, saved)).frames == FRAMES
    before["counts"] = counts


async def test_what_comfyui_forgot_the_engine_knows(comfyui: ComfyUI, before: dict[str, Any]) -> None:
    comfyui.post("/free", {"free_memory": True})
    run = await finished(comfyui, edit(0.25))
    assert ENCODED - {"connect"} <= ran(run)
    assert "Encoding the prompt: known already" in run.texts("encode")
    counts = stage_counts(comfyui)
    assert (counts["encode_prompt"], counts["encode_media"]) == (
        before["counts"]["encode_prompt"],
        before["counts"]["encode_media"],
    )
