"""Keyframes, references, guides, several outputs and two engines, through the real ComfyUI: the templates run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from tests.comfyui.conftest import make_t2va, output_file
from tests.support.comfyui import ComfyUI, Run, run_prompt
from tests.support.video import video_facts
from tests.support.workflows import node_of, template, to_prompt

pytestmark = [pytest.mark.comfyui, pytest.mark.ranks]

SHORT = {
    "H3EngineEmptyLatent__seconds": 0.9,
    "H3EngineKeyframes__seconds": 0.9,
    "H3EngineSampler__steps": 2,
    "H3EngineEmptyLatent__width": 64,
    "H3EngineKeyframes__width": 64,
}
FRAMES = 22


@pytest.fixture(scope="session")
def object_info(comfyui: ComfyUI) -> dict[str, Any]:
    info: dict[str, Any] = comfyui.get("/object_info")
    return info


async def finished(comfyui: ComfyUI, prompt: dict[str, Any]) -> Run:
    """Run ``prompt`` to its successful end."""
    run = await run_prompt(comfyui, prompt)
    assert run.status == 200, run.answer
    assert run.of("execution_success"), run.error
    return run


def saved(comfyui: ComfyUI, run: Run, node: str = "save") -> Path:
    return output_file(comfyui, next(event for event in run.of("executed") if event["node"] == node))


def shown(run: Run, node: str = "show") -> Any:
    """Return what H3TestShow showed."""
    event = next(event for event in run.of("executed") if event["node"] == node)
    return json.loads(event["output"]["shown"][0])


def pictures(path: Path) -> np.ndarray[Any, Any]:
    with av.open(str(path)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


def loading(**nodes: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """Return nodes in API format."""
    return {name: {"class_type": kind, "inputs": inputs} for name, (kind, inputs) in nodes.items()}


IMAGE = loading(image=("LoadImage", {"image": "example.png"}))
CLIP = loading(clip=("LoadVideo", {"file": "clip.mp4"}))
VOICE = loading(voice=("LoadAudio", {"audio": "voice.wav"}))


async def test_keyframes_make_a_video_on_their_canvas(comfyui: ComfyUI, object_info: dict[str, Any]) -> None:
    prompt = to_prompt(template("fl2va"), object_info, **SHORT)
    run = await finished(comfyui, prompt)
    facts = video_facts(saved(comfyui, run, node_of(prompt, "SaveVideo")))
    assert (facts.frames, facts.width, facts.height) == (FRAMES, 64, 64)
    assert run.texts(node_of(prompt, "H3EngineKeyframes"))[-1].startswith("Canvas 64x64\n0.9 s → 22 frames")


async def test_references_of_all_kinds_make_a_video_and_are_told(comfyui: ComfyUI, object_info: dict[str, Any]) -> None:
    prompt = to_prompt(template("ref2va"), object_info, **SHORT)
    prompt["show"] = {"class_type": "H3TestShow", "inputs": {"value": [node_of(prompt, "H3EngineTextEncode"), 0]}}
    run = await finished(comfyui, prompt)
    assert video_facts(saved(comfyui, run, node_of(prompt, "SaveVideo"))).frames == FRAMES
    text = run.texts(node_of(prompt, "H3EngineTextEncode"))[-1]
    assert "Picture 1: 128x96, 12 rows (" in text
    assert "Audio 1 and Video 1: 64x64, 22 frames, 0.93 s of sound, " in text
    assert "Audio 2: 0.93 s of sound, 74 rows (" in text
    assert run.texts(node_of(prompt, "H3EngineReferenceVideo"))[-1] == "Reference 2: Video 1"
    ((embeds, extra),) = shown(run)
    assert embeds[1] == extra["minimax_token_tags"][0]
    kinds = [(entry["kind"], entry.get("latent"), entry.get("audio_latent")) for entry in extra["minimax_refs"]]
    assert kinds == [
        ("image", [1, 24, 1, 6, 8], None),
        ("video_audio", [1, 24, 7, 4, 4], [1, 32, 2, 37]),
        ("audio", None, [1, 32, 2, 37]),
    ]


async def test_three_guides_on_a_timeline_make_a_video(comfyui: ComfyUI, object_info: dict[str, Any]) -> None:
    prompt = to_prompt(template("guides"), object_info, **SHORT)
    guides = [name for name, node in prompt.items() if node["class_type"] == "H3EngineGuide"]
    prompt[guides[1]]["inputs"]["position"] = 0.5
    prompt["show"] = {"class_type": "H3TestShow", "inputs": {"value": [guides[2], 0]}}
    run = await finished(comfyui, prompt)
    assert video_facts(saved(comfyui, run, node_of(prompt, "SaveVideo"))).frames == FRAMES
    said = [run.texts(guide)[-1].splitlines()[1] for guide in guides]
    assert said == [
        "1 frame from frame 0 (0.00 s)",
        "1 frame from frame 12 (0.50 s)",
        "1 frame from frame 21 (0.88 s)",
    ]
    ((_, extra),) = shown(run)
    assert [entry["resolved_frame_index"] for entry in extra["minimax_keyframes"]] == [0, 12, 21]


async def test_a_clip_with_its_sound_is_a_guide_behind_keyframes(comfyui: ComfyUI) -> None:
    end = {"position": -22, "unit": "frames"}
    guide = {"engine": ["connect", 0], "conditioning": ["encode", 0], "latent": ["latent", 0]}
    prompt = make_t2va() | IMAGE | CLIP
    prompt |= loading(
        keys=("H3EngineKeyframes", {"width": 64, "height": 64, "seconds": 0.9, "last_frame": ["image", 0]}),
        parts=("GetVideoComponents", {"video": ["clip", 0]}),
        some=("ImageFromBatch", {"image": ["parts", 0], "batch_index": 0, "length": 30}),
        guide=("H3EngineGuide", {**guide, "image": ["some", 0], "audio": ["parts", 1], **end}),
        show=("H3TestShow", {"value": ["guide", 0]}),
    )
    prompt["encode"]["inputs"]["keyframes"] = ["keys", 0]
    prompt["sample"]["inputs"] |= {"conditioning": ["guide", 0], "latent": ["keys", 1]}
    run = await finished(comfyui, prompt)
    assert "22 frames and 0.93 s of sound from frame 0 (0.00 s)" in run.texts("guide")[-1]
    ((_, extra),) = shown(run)
    last, clip = extra["minimax_keyframes"]
    assert (last["resolved_frame_index"], last["latent"]) == (21, [1, 24, 1, 4, 4])
    assert (clip["resolved_frame_index"], clip["latent"]) == (0, [1, 24, 7, 4, 4])
    assert clip["audio_latent"] == [1, 32, 2, 37]


async def test_several_outputs_are_a_list_and_the_first_is_the_same_as_alone(comfyui: ComfyUI) -> None:
    alone = pictures(saved(comfyui, await finished(comfyui, make_t2va(sample__seed=70))))
    run = await finished(comfyui, make_t2va(sample__seed=70, sample__num_outputs=2))
    (event,) = [event for event in run.of("executed") if event["node"] == "save"]
    folder = comfyui.base / "output"
    both = [pictures(folder / entry["subfolder"] / entry["filename"]) for entry in event["output"]["images"]]
    assert len(both) == 2
    assert np.array_equal(both[0], alone)
    second = pictures(saved(comfyui, await finished(comfyui, make_t2va(sample__seed=71))))
    assert np.array_equal(both[1], second)
    assert not np.array_equal(both[0], both[1])


@pytest.mark.parametrize("kind", ["file", "images"])
async def test_a_clip_is_encoded_for_editing_and_decoded_again(comfyui: ComfyUI, kind: str) -> None:
    prompt = make_t2va() | CLIP
    prompt |= loading(
        parts=("GetVideoComponents", {"video": ["clip", 0]}),
        made=("CreateVideo", {"images": ["parts", 0], "audio": ["parts", 1], "fps": ["parts", 2]}),
        media=(
            "H3EngineEncodeMedia",
            {"engine": ["connect", 0], "video": ["clip", 0] if kind == "file" else ["made", 0]},
        ),
        show=("H3TestShow", {"value": ["media", 0]}),
    )
    prompt["decode"]["inputs"]["latent"] = ["media", 0]
    for unused in ("encode", "latent", "sample"):
        del prompt[unused]
    run = await finished(comfyui, prompt)
    assert shown(run)["samples"] == [[1, 24, 17, 4, 4], [1, 32, 2, 93]]
    assert shown(run)["h3_own_length"]["frames"] == 52
    assert "64x64 (from 64x48: scaled and cropped), 56 frames (2.33 s)" in run.texts("media")[-1]
    assert video_facts(saved(comfyui, run)).frames == 56


async def test_encoders_and_a_generator_share_a_graph(comfyui: ComfyUI, object_info: dict[str, Any]) -> None:
    prompt = to_prompt(template("two_engines"), object_info, **SHORT, H3EngineConnect__ranks=1)
    run = await finished(comfyui, prompt)
    assert pictures(saved(comfyui, run, node_of(prompt, "SaveVideo"))).std() > 1
    stages = [command for command in map(comfyui.command_of, comfyui.engine_pids()) if "--stages" in command]
    assert sorted(command[command.index("--stages") + 1] for command in stages) == [
        "denoise,decode_video,decode_audio",
        "encode_prompt,encode_media",
    ]
    sampler, encoders = prompt[node_of(prompt, "H3EngineSampler")], prompt[node_of(prompt, "H3EngineTextEncode")]
    sampler["inputs"]["engine"] = encoders["inputs"]["engine"]
    wrong = await run_prompt(comfyui, prompt)
    assert "does not serve the stage 'denoise'" in wrong.error
