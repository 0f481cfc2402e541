"""H3 Engine Memory in the real ComfyUI: its template, the plan that it shows, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.comfyui.conftest import make_t2va, output_file
from tests.support.comfyui import ComfyUI, run_prompt
from tests.support.engine_process import ROOT
from tests.support.video import video_facts
from tests.support.workflows import node_of, template, to_prompt

pytestmark = [pytest.mark.comfyui, pytest.mark.ranks]


def planned(model: Path, **inputs: Any) -> dict[str, Any]:
    """Return a prompt that plans an engine for ``model`` and shows what goes on from the node; nothing starts it."""
    connect = make_t2va(connect__model_path=str(model), connect__device="cpu", connect__ranks=2)["connect"]
    memory = {"engine": ["connect", 0], "offload": "all", "resident_blocks": -1, "gpu_memory": 1.0, **inputs}
    return {
        "connect": connect,
        "memory": {"class_type": "H3EngineMemory", "inputs": memory},
        "show": {"class_type": "PreviewAny", "inputs": {"source": ["memory", 0]}},
    }


def fullest(model: Path) -> float:
    """Return the GB that the fullest of two ranks takes of its device for 15 s, nothing offloaded."""
    words = (
        "--model",
        str(model),
        "--device",
        "cpu",
        "--gpus",
        "2",
        "--ring-degree",
        "1",
        "--gpu-memory",
        "1",
        "--json",
    )
    plan = subprocess.run([sys.executable, "-m", "engine", "plan", *words], cwd=ROOT, capture_output=True, check=True)
    ranks = json.loads(plan.stdout)["ranks"]
    return float(max(stage["total_bytes"] for rank in ranks for stage in rank["stages"])) / 1e9


async def test_the_template_of_little_memory_makes_a_video_on_an_engine_that_offloads(comfyui: ComfyUI) -> None:
    small = {"H3EngineEmptyLatent__seconds": 0.9, "H3EngineSampler__steps": 2, "H3EngineConnect__device": "cpu"}
    prompt = to_prompt(template("low_memory"), comfyui.get("/object_info"), **small)
    run = await run_prompt(comfyui, prompt)
    assert run.of("execution_success"), run.of("execution_error")
    saved = next(event for event in run.of("executed") if event["node"] == node_of(prompt, "SaveVideo"))
    assert video_facts(output_file(comfyui, saved)).frames == 22
    assert run.texts(node_of(prompt, "H3EngineMemory"))[-1] == "No plan: the demo is tiny"
    command = " ".join(comfyui.stop_engine_with("--offload"))
    assert "--offload dit,text_encoder --resident-blocks auto" in command


async def test_the_plan_of_a_real_folder_is_shown_before_anything_starts(
    comfyui: ComfyUI, tiny_checkpoint: Path
) -> None:
    engines = comfyui.engine_pids()
    run = await run_prompt(comfyui, planned(tiny_checkpoint))
    assert run.of("execution_success"), run.of("execution_error")
    assert run.texts("memory")[-1].startswith("Planned for 15 s: ")
    assert "of 1.0 GB a rank at most" in run.texts("memory")[-1]
    tight = fullest(tiny_checkpoint) - 0.001
    run = await run_prompt(comfyui, planned(tiny_checkpoint, offload="nothing", resident_blocks=0, gpu_memory=tight))
    assert run.of("execution_success"), run.of("execution_error")
    assert "would not fit" in run.texts("memory")[-1]
    assert "15.1 s fit with ranks 2, offload text encoder, resident_blocks -1" in run.texts("memory")[-1]
    run = await run_prompt(comfyui, planned(tiny_checkpoint, gpu_memory=0.0))
    assert run.texts("memory")[-1].startswith("No plan: There is no accelerator on this machine")
    assert comfyui.engine_pids() == engines


async def test_a_number_out_of_range_that_comes_through_a_link_is_refused(
    comfyui: ComfyUI, tiny_checkpoint: Path
) -> None:
    prompt = planned(tiny_checkpoint, resident_blocks=["number", 0])
    prompt["number"] = {"class_type": "PrimitiveInt", "inputs": {"value": 2000}}
    run = await run_prompt(comfyui, prompt)
    (error,) = run.of("execution_error")
    assert error["node_id"] == "memory"
    assert "resident_blocks = 2000" in run.error
    assert "-1 to 1000" in run.error
