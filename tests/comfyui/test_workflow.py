"""The whole road through the real ComfyUI: prompt, progress, MP4, cache, interrupt."""

from __future__ import annotations

import json
import time
import urllib.request
from typing import Any

import pytest

from tests.comfyui.conftest import make_t2va, output_file
from tests.support.comfyui import ComfyUI, Run, run_prompt
from tests.support.video import video_facts

pytestmark = [pytest.mark.comfyui, pytest.mark.ranks]

FRAMES = 22
LONG_STEPS = 1000


def fresh() -> dict[str, Any]:
    """Return a prompt of which no other test left anything in ComfyUI's cache (2 ranks are the demo's default)."""
    return make_t2va(connect__ranks=2, encode__prompt="A whole road.", latent__seconds=0.91)


@pytest.fixture(scope="module")
def seen() -> dict[str, Run]:
    """Return runs that several tests look at, by name."""
    return {}


async def test_the_workflow_runs_to_a_saved_video(comfyui: ComfyUI, seen: dict[str, Run]) -> None:
    run = await run_prompt(comfyui, fresh())
    assert run.status == 200, run.answer
    assert run.of("execution_success"), run.of("execution_error")
    seen["first"] = run
    saved = next(event for event in run.of("executed") if event["node"] == "save")
    facts = video_facts(output_file(comfyui, saved))
    assert (facts.frames, facts.width, facts.height) == (FRAMES, 64, 64)
    assert facts.rate == 24
    assert facts.codecs == ("h264", "aac")
    assert (facts.sample_rate, facts.channels) == (32_000, 2)
    # AAC pads to whole packets of 1024 samples, at both ends.
    assert facts.sound_seconds == pytest.approx(FRAMES / 24, abs=0.1)


def test_progress_went_up_to_the_end_and_never_back(seen: dict[str, Run]) -> None:
    values = seen["first"].progress("sample")
    assert len(values) >= 3
    assert values == sorted(values)
    assert values[-1] == 1.0


def test_the_node_told_what_was_going_on(seen: dict[str, Run]) -> None:
    run = seen["first"]
    assert any("noise" in text for text in run.texts("connect"))
    assert any("22 frames" in text for text in run.texts("latent"))
    assert any("step 1 of 3" in text for text in run.texts("sample"))
    assert run.texts("sample")[-1].startswith("Done in")
    assert run.texts("encode")[-1].startswith("Done in")


async def test_the_same_prompt_again_is_cached(comfyui: ComfyUI, seen: dict[str, Run]) -> None:
    run = await run_prompt(comfyui, fresh())
    cached = run.of("execution_cached")[0]["nodes"]
    assert {"connect", "encode", "latent", "sample", "decode"} <= set(cached)
    assert run.seconds < seen["first"].seconds


async def test_ranks_in_a_ring_with_a_pinned_length_make_a_video(comfyui: ComfyUI) -> None:
    layout = {"connect__ranks": 2, "connect__ulysses_degree": 1, "connect__ring_degree": 2}
    run = await run_prompt(comfyui, make_t2va(**layout, connect__rank_weights="2,1", sample__pad_seq_len=512))
    assert run.of("execution_success"), run.of("execution_error")
    assert run.texts("sample")[-1].startswith("Done in")
    assert "--rank-weights" in comfyui.stop_engine_with("--ring-degree")


async def test_another_seed_uses_the_engine_that_is_there(comfyui: ComfyUI) -> None:
    await run_prompt(comfyui, make_t2va(sample__seed=7))
    (before,) = comfyui.engine_pids()
    run = await run_prompt(comfyui, make_t2va(sample__seed=8))
    assert run.of("execution_success"), run.of("execution_error")
    assert comfyui.engine_pids() == [before]


async def test_decode_gives_images_and_sound(comfyui: ComfyUI) -> None:
    prompt = make_t2va()
    prompt["decode"] = {
        "class_type": "H3EngineDecode",
        "inputs": {"engine": ["connect", 0], "latent": ["sample", 0], "frame_precision": "float32"},
    }
    prompt["video"] = {
        "class_type": "CreateVideo",
        "inputs": {"images": ["decode", 0], "audio": ["decode", 1], "fps": 24},
    }
    prompt["save"]["inputs"]["video"] = ["video", 0]
    run = await run_prompt(comfyui, prompt)
    assert run.of("execution_success"), run.of("execution_error")
    saved = next(event for event in run.of("executed") if event["node"] == "save")
    facts = video_facts(output_file(comfyui, saved))
    assert (facts.frames, facts.width, facts.height, facts.rate) == (FRAMES, 64, 64, 24)
    assert facts.channels == 2


async def test_interrupt_stops_within_a_step_and_the_next_prompt_runs(comfyui: ComfyUI) -> None:
    stopped_at: list[float] = []

    async def interrupt(kind: str, data: Any) -> None:
        if kind == "text" and data[0] == "sample" and "step 3 of" in data[1] and not stopped_at:
            stopped_at.append(time.monotonic())
            comfyui.post("/interrupt", {})

    run = await run_prompt(comfyui, make_t2va(sample__steps=LONG_STEPS), on_event=interrupt)
    assert run.of("execution_interrupted"), run.of("execution_error")
    assert time.monotonic() - stopped_at[0] < 3
    last = max(int(text.split("step ")[1].split(" ")[0]) for text in run.texts("sample") if "step " in text)
    assert last < LONG_STEPS // 2
    assert run.texts("sample")[-1] == "Cancelled"
    with urllib.request.urlopen(comfyui.engine_url() + "/v1/jobs", timeout=5) as answer:
        newest = json.loads(answer.read())["jobs"][-1]
    assert newest["state"] in ("cancelled", "running"), newest
    again = await run_prompt(comfyui, make_t2va(sample__seed=9))
    assert again.of("execution_success"), again.of("execution_error")
    # Had the long job run on, this one would have waited for it.
    assert again.seconds < run.seconds + 3
    with urllib.request.urlopen(comfyui.engine_url() + f"/v1/jobs/{newest['job_id']}", timeout=5) as answer:
        assert json.loads(answer.read())["state"] == "cancelled"


async def test_a_sampled_latent_is_saved_before_it_is_decoded_and_decodes_again_alone(comfyui: ComfyUI) -> None:
    prompt = make_t2va(decode__latent=["keep", 0])
    prompt["keep"] = {
        "class_type": "H3EngineSaveLatent",
        "inputs": {"latent": ["sample", 0], "filename_prefix": "kept/fox"},
    }
    run = await run_prompt(comfyui, prompt)
    assert run.of("execution_success"), run.of("execution_error")
    finished = [event["node"] for event in run.of("executed")]
    assert finished.index("keep") < finished.index("save")
    saved = next(event for event in run.of("executed") if event["node"] == "keep")["output"]["latents"][0]
    name = f"{saved['subfolder']}/{saved['filename']} [output]"
    assert name in comfyui.get("/object_info")["H3EngineLoadLatent"]["input"]["required"]["file"][1]["options"]
    again = make_t2va(decode__latent=["load", 0])
    del again["encode"], again["latent"], again["sample"]
    again["load"] = {"class_type": "H3EngineLoadLatent", "inputs": {"file": name}}
    run = await run_prompt(comfyui, again)
    assert run.of("execution_success"), run.of("execution_error")
    facts = video_facts(output_file(comfyui, next(event for event in run.of("executed") if event["node"] == "save")))
    assert (facts.frames, facts.width) == (FRAMES, 64)


@pytest.mark.parametrize(
    "name", ["../secret.safetensors", "/etc/passwd", "nothing.safetensors", "../../secret.safetensors [output]"]
)
async def test_a_latent_outside_of_the_folders_is_not_loaded(comfyui: ComfyUI, name: str) -> None:
    for folder in (comfyui.base, comfyui.base.parent):
        (folder / "secret.safetensors").write_bytes(b"secret")
    prompt = make_t2va(decode__latent=["load", 0])
    prompt["load"] = {"class_type": "H3EngineLoadLatent", "inputs": {"file": name}}
    run = await run_prompt(comfyui, prompt)
    assert run.status == 400
    assert "There is no latent" in json.dumps(run.answer)


async def test_a_latent_is_not_saved_outside_of_the_output_folder(comfyui: ComfyUI) -> None:
    prompt = make_t2va(decode__latent=["keep", 0])
    prompt["keep"] = {
        "class_type": "H3EngineSaveLatent",
        "inputs": {"latent": ["latent", 0], "filename_prefix": "../../outside"},
    }
    run = await run_prompt(comfyui, prompt)
    assert "filename_prefix" in run.error
    assert not list(comfyui.base.parent.glob("outside*"))


def _shown_pictures(run: Run, node: str) -> int:
    """Return how many preview pictures ComfyUI sent for ``node``."""
    with_metadata = 4
    return sum(f'"{node}"'.encode() in data and b"JFIF" in data for data in run.of(f"binary_{with_metadata}"))


@pytest.mark.parametrize("kind", ["H3EngineDecodeToVideo", "H3EngineDecode"])
async def test_pictures_are_shown_on_the_node_while_it_decodes(comfyui: ComfyUI, kind: str) -> None:
    prompt = make_t2va(latent__seconds=3.9, sample__steps=1)
    prompt["decode"]["class_type"] = kind
    if kind == "H3EngineDecode":
        prompt["save"] = {"class_type": "PreviewImage", "inputs": {"images": ["decode", 0]}}
    run = await run_prompt(comfyui, prompt)
    assert run.of("execution_success"), run.of("execution_error")
    assert _shown_pictures(run, "decode") >= 2
