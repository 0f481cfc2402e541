"""Masks through the real ComfyUI: what a document means, what is kept of a shot, and longer shots."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from engine.contract import mask_cells
from engine.contract.mask_document import parse_document
from tests.comfyui.conftest import make_t2va
from tests.comfyui.test_media_nodes import CLIP, finished, loading, saved
from tests.support.comfyui import ComfyUI, Run, run_prompt
from tests.support.video import video_facts
from tests.support.workflows import node_of, template, to_prompt

pytestmark = [pytest.mark.comfyui, pytest.mark.ranks]

FRAMES, TOKENS, LATENTS = 56, 17, 93
OWN = 52
"""Frames of the clip, which the model makes `FRAMES`."""
BOX: dict[str, Any] = {
    "version": 1,
    "canvas": {"width": 64, "height": 64, "frames": FRAMES},
    "layers": [
        {
            "id": "box",
            "kind": "rect",
            "strength": 0.5,
            "range": [10, 30],
            "keys": [{"frame": 10, "points": [[0.0, 0.0], [0.4, 0.4]]}],
        }
    ],
    "audio": {"ranges": [{"from": 24, "to": 48, "value": 1, "channel": 0}], "linked": False},
}


def shot(**document: Any) -> dict[str, Any]:
    """Return the nodes from a clip to its latent with a mask, and to its sampled latent."""
    prompt = make_t2va() | CLIP
    for unused in ("latent", "decode", "save"):
        del prompt[unused]
    prompt |= loading(
        parts=("GetVideoComponents", {"video": ["clip", 0]}),
        media=("H3EngineEncodeMedia", {"engine": ["connect", 0], "video": ["clip", 0]}),
        mask=(
            "H3EngineLatentMask",
            {
                "latent": ["media", 0],
                "document": json.dumps(BOX | document),
                "source_images": ["parts", 0],
                "source_audio": ["parts", 1],
                "fps": ["parts", 2],
            },
        ),
    )
    prompt["sample"]["inputs"] |= {"latent": ["mask", 0], "steps": 2}
    return prompt


def storing(**values: list[Any]) -> dict[str, Any]:
    """Return the nodes that store values under their names."""
    return loading(
        **{f"store_{name}": ("H3TestStore", {"value": value, "name": name}) for name, value in values.items()}
    )


def stored(comfyui: ComfyUI, name: str) -> dict[str, torch.Tensor]:
    return load_file(comfyui.base / "output" / f"{name}.safetensors")


def left_by(run: Run, node: str, name: str) -> dict[str, Any]:
    """Return what a node left for the page."""
    event = next(event for event in run.of("executed") if event["node"] == node)
    found: dict[str, Any] = event["output"][name][0]
    return found


async def test_a_document_is_what_the_engine_regenerates_and_the_rest_stays(comfyui: ComfyUI) -> None:
    prompt = shot() | storing(source=["media", 0], masked=["mask", 0], pixels=["mask", 1], made=["sample", 0])
    prompt |= storing(preview=["mask", 2])
    await finished(comfyui, prompt)
    masked, source, made = (stored(comfyui, name) for name in ("masked", "source", "made"))
    document = parse_document(BOX)
    video = torch.from_numpy(mask_cells.video_cells(document, width=64, height=64, frames=FRAMES))
    audio = torch.from_numpy(mask_cells.audio_cells(document, frames=FRAMES))
    assert torch.equal(masked["noise_mask.0"], video[None, None])
    assert torch.equal(masked["noise_mask.1"], audio[None, None])
    assert video.max() == 0.5
    assert audio[0].max() == 1
    assert audio[1].max() == 0
    for stream, mask in ((0, video[None, None]), (1, audio[None, None])):
        before, after = source[f"samples.{stream}"], made[f"samples.{stream}"]
        kept = (mask == 0).expand_as(before)
        assert torch.equal(before[kept], after[kept])
        assert not torch.equal(before[~kept], after[~kept])
    pixels = stored(comfyui, "pixels")["value"]
    assert pixels.shape == (FRAMES, 64, 64)
    assert pixels[12, :32, :32].unique().tolist() == [0.5]
    assert not pixels[0].any()
    assert stored(comfyui, "preview")["value"].shape == (FRAMES, 64, 64, 3)


async def test_what_will_happen_is_said_before_and_after(comfyui: ComfyUI) -> None:
    # What an earlier test ran is not run again, and not told again.
    run = await finished(comfyui, shot(feather=2) | storing(made=["sample", 0]))
    said = run.texts("mask")[-1]
    assert said.startswith("Made anew: 9% of the picture's 32x32 squares, 22% of the sound")
    assert "Picture: 0.38 to 1.25 s (frames 9 to 29)" in said
    assert "Sound: 1.000 to 2.000 s (outward to whole latents of 25 ms)" in said
    assert "Made anew: 9% of the picture's 32x32 squares" in run.texts("sample")[-1]
    again = await finished(comfyui, shot(feather=1))
    assert "The last run of this size took" in again.texts("mask")[-1]
    left = left_by(again, "mask", "h3_mask")
    assert left["canvas"] == {"width": 64, "height": 64, "frames": FRAMES}
    assert left["key"]
    assert left["sampling"]["steps"] == 2


async def test_a_mask_of_nothing_warns_and_gives_the_source(comfyui: ComfyUI) -> None:
    prompt = shot(layers=[], audio={}) | storing(source=["media", 0], made=["sample", 0])
    run = await finished(comfyui, prompt)
    assert "0% of rows will change" in run.texts("mask")[-1]
    assert "0% of rows will change" in run.texts("sample")[-1]
    source, made = stored(comfyui, "source"), stored(comfyui, "made")
    assert all(torch.equal(source[f"samples.{stream}"], made[f"samples.{stream}"]) for stream in (0, 1))


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"version": 2}, "document.version"),
        ({"canvas": {"width": 64, "height": 64, "frames": 124}}, "124 frames, the latent has 56"),
        ({"canvas": {"width": 128, "height": 64, "frames": 56}}, "128x64, the latent's canvas is 64x64"),
    ],
)
async def test_a_document_of_another_shot_is_refused(comfyui: ComfyUI, document: dict[str, Any], words: str) -> None:
    run = await run_prompt(comfyui, shot(**document))
    assert words in run.error


async def test_layers_paint_with_files_and_with_a_connected_mask(comfyui: ComfyUI) -> None:
    white = np.zeros((64, 64), np.uint8)
    white[:16, :16] = 255
    Image.fromarray(white).save(comfyui.base / "input" / "corner.png")
    layers = [
        {"id": "file", "kind": "raster", "file": "corner.png", "range": [0, 5]},
        {"id": "mask", "kind": "raster", "file": "@mask", "range": [22, 39]},
    ]
    prompt = shot(layers=layers) | storing(masked=["mask", 0])
    prompt |= loading(solid=("SolidMask", {"value": 1.0, "width": 64, "height": 64}))
    prompt["mask"]["inputs"]["mask"] = ["solid", 0]
    await finished(comfyui, prompt)
    video = stored(comfyui, "masked")["noise_mask.0"][0, 0]
    assert video[0].nonzero().tolist() == [[0, 0]]
    assert video[7:12].min() == 1
    assert not video[2:6].any()
    prompt["mask"]["inputs"]["document"] = json.dumps(BOX | {"layers": [{**layers[0], "file": "../corner.png"}]})
    run = await run_prompt(comfyui, prompt)
    assert "missing" in run.error


async def test_masks_of_the_graph_are_taken(comfyui: ComfyUI) -> None:
    prompt = shot() | storing(batch=["batch", 0], made=["sample", 0])
    prompt |= loading(
        solid=("SolidMask", {"value": 1.0, "width": 64, "height": 64}),
        batch=("H3EngineMaskFromImages", {"latent": ["media", 0], "mask": ["solid", 0], "sound": 0.0}),
        core=("SetLatentNoiseMask", {"samples": ["media", 0], "mask": ["solid", 0]}),
    )
    prompt["sample"]["inputs"]["latent"] = ["core", 0]
    run = await finished(comfyui, prompt)
    assert "of the picture alone" in run.texts("sample")[-1]
    batch = stored(comfyui, "batch")
    assert batch["noise_mask.0"].shape == (1, 1, TOKENS, 4, 4)
    assert batch["noise_mask.0"].min() == 1
    assert batch["noise_mask.1"].shape == (1, 1, 2, LATENTS)
    assert batch["noise_mask.1"].max() == 0
    prompt["solid"]["inputs"]["width"] = 128
    wrong = await run_prompt(comfyui, prompt)
    assert "64x64" in wrong.error
    assert "128" in wrong.error


async def test_a_composite_leaves_what_is_outside_of_the_mask(comfyui: ComfyUI) -> None:
    prompt = shot() | storing(images=["square", 0], sound=["parts", 1], joined=["join", 0], joined_sound=["join", 1])
    clip = {"engine": ["connect", 0], "images": ["square", 0], "audio": ["parts", 1], "fps": ["parts", 2]}
    size = {"upscale_method": "bilinear", "width": 64, "height": 64, "crop": "disabled"}
    prompt |= loading(
        square=("ImageScale", {"image": ["parts", 0], **size}),
        media=("H3EngineEncodeMedia", clip),
        decode=("H3EngineDecode", {"engine": ["connect", 0], "latent": ["sample", 0]}),
        join=(
            "H3EngineComposite",
            {
                "latent": ["mask", 0],
                "source_images": ["square", 0],
                "source_audio": ["parts", 1],
                "fps": ["parts", 2],
                "result_images": ["decode", 0],
                "result_audio": ["decode", 1],
            },
        ),
    )
    run = await finished(comfyui, prompt)
    assert run.answer["node_errors"] == {}
    source, joined = stored(comfyui, "images")["value"], stored(comfyui, "joined")["value"]
    assert joined.shape == source.shape == (OWN, 64, 64, 3)
    assert torch.equal(joined[:9], source[:9])
    assert torch.equal(joined[12, 32:], source[12, 32:])
    assert not torch.equal(joined[12, :32, :32], source[12, :32, :32])
    sound, new = stored(comfyui, "sound")["waveform"][0], stored(comfyui, "joined_sound")["waveform"][0]
    assert torch.equal(new[:, :44_100], sound[:, :44_100])
    assert torch.equal(new[1, : sound.shape[1]], sound[1])
    assert not torch.equal(new[0, 45_000:80_000], sound[0, 45_000:80_000])


async def test_a_longer_shot_holds_the_source_and_joins_to_it(comfyui: ComfyUI) -> None:
    prompt = shot() | storing(source=["media", 0], longer=["extend", 0], made=["sample", 0])
    prompt |= loading(extend=("H3EngineExtend", {"latent": ["media", 0], "after": 1.0, "before": 1.0}))
    prompt["sample"]["inputs"]["latent"] = ["extend", 0]
    run = await finished(comfyui, prompt)
    source, longer, made = (stored(comfyui, name) for name in ("source", "longer", "made"))
    frames = 141
    assert run.texts("extend")[-1].startswith(f"{OWN} → {frames} frames")
    assert longer["samples.0"].shape[2] == 42
    # 52 frames are 16 latents; the sound ends after 84 sounds of 25 ms.
    assert not longer["noise_mask.1"][..., 85:169].any()
    assert longer["noise_mask.1"][..., 169:].min() == 1
    assert torch.equal(longer["samples.0"][:, :, 15:31], source["samples.0"][:, :, :16])
    assert torch.equal(longer["samples.1"][..., 85:169], source["samples.1"][..., :84])
    assert longer["noise_mask.0"][0, 0, :, 0, 0].tolist() == [1.0] * 15 + [0.0] * 16 + [1.0] * 11
    assert torch.equal(made["samples.0"][:, :, 15:31], source["samples.0"][:, :, :16])


def short_shot(latent: str, **nodes: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the nodes from 48 frames of a clip, which the model makes 56, through ``nodes`` to a composite."""
    prompt = shot(layers=[], audio={}) | loading(
        some=("ImageFromBatch", {"image": ["parts", 0], "batch_index": 0, "length": 48}),
        square=(
            "ImageScale",
            {"image": ["some", 0], "upscale_method": "bilinear", "width": 64, "height": 64, "crop": "disabled"},
        ),
        media=("H3EngineEncodeMedia", {"engine": ["connect", 0], "images": ["square", 0], "audio": ["parts", 1]}),
        decode=("H3EngineDecode", {"engine": ["connect", 0], "latent": ["sample", 0]}),
        join=(
            "H3EngineComposite",
            {
                "latent": [latent, 0],
                "source_images": ["square", 0],
                "source_audio": ["parts", 1],
                "result_images": ["decode", 0],
                "result_audio": ["decode", 1],
            },
        ),
        **nodes,
    )
    del prompt["mask"]["inputs"]["source_images"]
    prompt["sample"]["inputs"]["latent"] = [latent, 0]
    return prompt | storing(source=["media", 0], images=["square", 0], joined=["join", 0], made=["sample", 0])


async def test_a_clip_that_was_lengthened_for_the_model_comes_out_as_it_went_in(comfyui: ComfyUI) -> None:
    run = await finished(comfyui, short_shot("mask"))
    assert "held to make 56" in run.texts("media")[-1]
    images, joined = stored(comfyui, "images")["value"], stored(comfyui, "joined")["value"]
    assert torch.equal(joined, images)
    assert joined.shape[0] == 48
    # What was sampled says it too, and so does its file.
    nodes = {
        "save_it": ("H3EngineSaveLatent", {"latent": ["sample", 0], "filename_prefix": "held"}),
        "again": ("H3EngineExtend", {"latent": ["save_it", 0], "after": 1.0, "before": 0.0}),
        "show": ("H3TestShow", {"value": ["again", 0]}),
    }
    run = await finished(comfyui, short_shot("mask", **nodes))
    assert run.texts("again")[-1].startswith("48 → 73 frames (3.04 s), 26 of them new")


async def test_what_comes_after_a_lengthened_clip_begins_where_the_clip_ends(comfyui: ComfyUI) -> None:
    extend = ("H3EngineExtend", {"latent": ["media", 0], "after": 2.0, "before": 0.0})
    run = await finished(comfyui, short_shot("extend", extend=extend) | storing(longer=["extend", 0]))
    assert run.texts("extend")[-1].splitlines() == [
        "48 → 107 frames (4.46 s), 60 of them new (2.50 s)",
        "The shot's frames 0 to 46 stay; new from 47",
    ]
    source, longer, made = (stored(comfyui, name) for name in ("source", "longer", "made"))
    assert longer["noise_mask.0"][0, 0, :, 0, 0].tolist() == [0.0] * 14 + [1.0] * 18
    assert longer["noise_mask.1"][0, 0, 0].nonzero()[0].item() == 80
    assert torch.equal(made["samples.0"][:, :, :14], source["samples.0"][:, :, :14])
    assert torch.equal(made["samples.1"][..., :80], source["samples.1"][..., :80])
    images, joined = stored(comfyui, "images")["value"], stored(comfyui, "joined")["value"]
    assert joined.shape[0] == 107
    assert torch.equal(joined[:47], images[:47])
    assert not torch.equal(joined[47], images[47])


@pytest.mark.parametrize(
    ("name", "said", "frames"),
    [
        ("inpaint", "0% of rows will change", OWN),
        ("redo_sound", "0% of the picture's 32x32 squares, 100% of the sound", OWN),
        ("extend", "52 → 90 frames", 90),
    ],
)
async def test_the_templates_run(comfyui: ComfyUI, name: str, said: str, frames: int) -> None:
    short = {"H3EngineSampler__steps": 1, "H3EngineExtend__after": 1.0}
    prompt = to_prompt(template(name), comfyui.get("/object_info"), **short)
    run = await finished(comfyui, prompt)
    assert any(said in text for _, text in run.of("text"))
    assert video_facts(saved(comfyui, run, node_of(prompt, "SaveVideo"))).frames == frames
