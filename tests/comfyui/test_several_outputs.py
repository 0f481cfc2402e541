"""Several outputs of one sampler: the nodes behind it run once for each, and stop together."""

from __future__ import annotations

from typing import Any

import pytest

from tests.comfyui.conftest import make_t2va
from tests.support.comfyui import ComfyUI, Run, run_prompt

pytestmark = [pytest.mark.comfyui, pytest.mark.ranks]

OUTPUTS = 3
FRAMES = 39


def result_of(run: Run, node: str) -> dict[str, Any]:
    """Return the one ``executed`` output of ``node``."""
    (event,) = [event for event in run.of("executed") if event["node"] == node]
    output: dict[str, Any] = event["output"]
    return output


async def test_each_output_is_kept_and_decoded_to_pictures(comfyui: ComfyUI) -> None:
    prompt = make_t2va(latent__seconds=1.6, sample__steps=1, sample__num_outputs=OUTPUTS, decode__latent=["keep", 0])
    prompt["keep"] = {
        "class_type": "H3EngineSaveLatent",
        "inputs": {"latent": ["sample", 0], "filename_prefix": "several/fox"},
    }
    prompt["decode"]["class_type"] = "H3EngineDecode"
    prompt["save"] = {"class_type": "PreviewImage", "inputs": {"images": ["decode", 0]}}
    run = await run_prompt(comfyui, prompt)
    assert run.of("execution_success"), run.of("execution_error")
    kept = [
        comfyui.base / "output" / entry["subfolder"] / entry["filename"] for entry in result_of(run, "keep")["latents"]
    ]
    assert len({path.read_bytes() for path in kept}) == OUTPUTS
    pictures = [comfyui.base / "temp" / entry["filename"] for entry in result_of(run, "save")["images"]]
    assert len(pictures) == OUTPUTS * FRAMES
    assert len({pictures[FRAMES * output].read_bytes() for output in range(OUTPUTS)}) == OUTPUTS


async def test_an_interrupt_stops_the_decoding_of_all_of_them(comfyui: ComfyUI) -> None:
    pressed = []

    async def interrupt(kind: str, data: Any) -> None:
        if kind == "text" and data[0] == "decode" and "Decoding the video: part 1 of" in data[1] and not pressed:
            pressed.append(data)
            comfyui.post("/interrupt", {})

    prompt = make_t2va(latent__seconds=15.0, sample__steps=1, sample__num_outputs=OUTPUTS)
    run = await run_prompt(comfyui, prompt, on_event=interrupt)
    assert pressed
    assert run.of("execution_interrupted"), run.of("execution_error")
    shown = run.texts("decode")
    assert shown.count("Cancelled") == OUTPUTS
    assert not [text for text in shown if text.startswith("Done")]
    again = await run_prompt(comfyui, make_t2va())
    assert again.of("execution_success"), again.of("execution_error")
