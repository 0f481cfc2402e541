"""A clip that is edited or continued in one request: over the websocket, over HTTP, and from the command line."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from engine.client import EngineClient, Outcome
from engine.contract.errors import RequestError
from tests.engine.test_cli import command
from tests.support.engine_process import EngineProcess
from tests.support.forms import finished, post_form
from tests.support.jobs import write
from tests.support.media_files import encoded, noise, tone, write_clip
from tests.support.video import video_facts

pytestmark = pytest.mark.ranks

FRAMES, LATENTS = 22, 37
EDIT: dict[str, Any] = {"task": "generate", "prompt": "a boat", "steps": 1}
SOURCE = {"media": {"part": "v"}}
TOUCHED = {"ranges": [{"from": 0, "to": 5, "value": 1}]}


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a clip of 22 frames of 64x32 with sound."""
    path = tmp_path_factory.mktemp("clip") / "clip.mp4"
    return write_clip(path, noise(32, 64, frames=FRAMES), sound=tone(0.92, 32_000, 2))


def nested(depth: int) -> dict[str, Any]:
    inner: dict[str, Any] = {}
    for _ in range(depth):
        inner = {"x": inner}
    return inner


async def run(client: EngineClient, edit: dict[str, Any], clip: Path, folder: Path, **parts: Path) -> Outcome:
    request = {**EDIT, "edit": {"source": SOURCE, **edit}}
    return await client.run(request, inputs={"v": clip, **parts}, folder=folder)


async def held(client: EngineClient, edit: dict[str, Any], clip: Path, folder: Path) -> tuple[Outcome, str]:
    """Return what comes of a clip that is lengthened, and what is said of that."""
    events: list[Any] = []
    request = {**EDIT, "edit": {"source": SOURCE, **edit}}
    made = await client.run(request, inputs={"v": clip}, folder=folder, on_event=events.append)
    (told,) = [event["message"] for event in events if event.get("code") == "media_held"]
    return made, told


async def source_of(client: EngineClient, clip: Path, folder: Path) -> dict[str, torch.Tensor]:
    outcome = await client.run({"task": "encode_media", "source": SOURCE}, inputs={"v": clip}, folder=folder)
    return load_file(outcome.outputs["latents"][0])


async def test_sound_is_redone_and_the_picture_stays(client: EngineClient, clip: Path, tmp_path: Path) -> None:
    made = await run(client, {"audio_spans": [{"start": 0.5, "stop": 0.71}]}, clip, tmp_path)
    source, after = await source_of(client, clip, tmp_path), load_file(made.outputs["latents"][0])
    assert torch.equal(after["video"], source["video"])
    changed = (after["audio"] != source["audio"]).any(1)[0]
    assert changed.nonzero()[:, 1].unique().tolist() == list(range(20, 29))
    assert changed[0].tolist() == changed[1].tolist()
    assert made.facts["masks"]["video_percent"] == 0
    assert made.facts["masks"]["audio_latents"] == [20, 29]
    assert (made.facts["width"], made.facts["height"], made.facts["frames"]) == (64, 32, FRAMES)
    facts = video_facts(made.outputs["video"][0])
    assert (facts.width, facts.height, facts.frames) == (64, 32, FRAMES)


async def test_a_picture_masks_what_it_covers(client: EngineClient, clip: Path, tmp_path: Path) -> None:
    white = np.zeros((64, 128, 3), np.uint8)
    white[:, 96:] = 255
    mask = write(tmp_path / "mask.png", encoded(white))
    made = await run(client, {"video_mask_media": {"part": "m"}, "audio_mask": 0.0}, clip, tmp_path, m=mask)
    source, after = await source_of(client, clip, tmp_path), load_file(made.outputs["latents"][0])
    assert torch.equal(after["audio"], source["audio"])
    assert torch.equal(after["video"][..., :3], source["video"][..., :3])
    assert (after["video"][..., 3] != source["video"][..., 3]).float().mean() > 0.9


async def test_a_document_paints_with_its_files(client: EngineClient, clip: Path, tmp_path: Path) -> None:
    white = write(tmp_path / "white.png", encoded(np.full((8, 8, 3), 255, np.uint8)))
    document = {
        "version": 1,
        "canvas": {"width": 64, "height": 32, "frames": FRAMES},
        "layers": [{"id": "a", "kind": "raster", "file": "w", "range": [5, 9]}],
        "audio": {"base": 1},
    }
    files = [{"name": "w", "media": {"part": "w"}}]
    made = await run(client, {"document": document, "files": files}, clip, tmp_path, w=white)
    assert made.facts["masks"]["video_frames"] == [5, 9]
    assert made.facts["masks"]["audio_percent"] == 100


async def test_a_shot_goes_on(client: EngineClient, clip: Path, tmp_path: Path) -> None:
    made = await run(client, {"after": 0.5, "before": 0.1}, clip, tmp_path)
    source, after = await source_of(client, clip, tmp_path), load_file(made.outputs["latents"][0])
    assert (made.facts["source_frames"], made.facts["frames"]) == (FRAMES, 90)
    assert made.facts["mask_levels"] > 0
    assert torch.equal(after["video"][:, :, 15:22], source["video"])
    assert torch.equal(after["audio"][..., 85 : 85 + LATENTS], source["audio"])
    assert video_facts(made.outputs["video"][0]).frames == 90


async def test_a_shot_goes_on_from_its_last_own_frame(client: EngineClient, tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "short.mp4", noise(32, 64, frames=20), sound=tone(1.0, 32_000, 2))
    made, told = await held(client, {"after": 0.5, "before": 0.1}, clip, tmp_path)
    source, after = await source_of(client, clip, tmp_path), load_file(made.outputs["latents"][0])
    assert (made.facts["source_frames"], made.facts["own_frames"], made.facts["frames"]) == (FRAMES, 20, 90)
    # 18 frames are six latents, and the seventh holds two that are the clip's and two that are held.
    assert torch.equal(after["video"][:, :, 15:21], source["video"][:, :, :6])
    assert not torch.equal(after["video"][:, :, 21], source["video"][:, :, 6])
    changed = (after["audio"][..., 85 : 85 + LATENTS] != source["audio"]).any(1)[0]
    assert changed.nonzero()[:, 1].unique().tolist() == list(range(33, LATENTS))
    assert made.facts["masks"]["video_frames"] == [0, 90]
    assert "frames 51 to 68 of the video are the source's" in told
    assert "begins with frame 69" in told


async def test_an_edit_of_a_lengthened_clip_says_which_frames_are_not_its_own(
    client: EngineClient, tmp_path: Path
) -> None:
    clip = write_clip(tmp_path / "short.mp4", noise(32, 64, frames=20))
    made, told = await held(client, {"audio_mask": 1.0}, clip, tmp_path)
    assert (made.facts["own_frames"], made.facts["frames"]) == (20, FRAMES)
    assert told.endswith("The video ends with these 2 frames, which are not the source's.")


async def test_keyframes_and_an_edit_go_together(client: EngineClient, clip: Path, tmp_path: Path) -> None:
    picture = write(tmp_path / "last.png", encoded(np.full((32, 64, 3), 90, np.uint8)))
    request = {**EDIT, "edit": {"source": SOURCE, "after": 0.5}, "keyframes": [{"media": {"part": "k"}, "at": "last"}]}
    made = await client.run(request, inputs={"v": clip, "k": picture}, folder=tmp_path)
    assert made.facts["conditions"][0]["frame"] == made.facts["frames"] - 1 == 38


async def test_others_are_served_while_many_keys_are_read(client: EngineClient, clip: Path, tmp_path: Path) -> None:
    keys = [{"frame": frame, "offset": [0.1, 0.2], "scale": 1.5} for frame in range(60_000)]
    keys[0]["points"] = [[0, 0], [1, 1]]
    layer = {"id": "a", "kind": "rect", "range": [0, 60_000], "keys": [*keys, {"frame": 0}]}
    document = {"version": 1, "canvas": {"width": 64, "height": 32, "frames": 60_000}, "layers": [layer]}
    request = {**EDIT, "edit": {"source": SOURCE, "document": document}}
    refused = asyncio.create_task(client.run(request, inputs={"v": clip}, folder=tmp_path))
    served = 0
    while not refused.done():
        await client.health()
        served += 1
    with pytest.raises(RequestError, match="above the key's before"):
        await refused
    # Reading takes over a second; an answer takes some milliseconds.
    assert served > 10


@pytest.mark.parametrize(
    ("fields", "edit", "error"),
    [
        ({}, {}, ("missing_field", "request.edit.video_mask")),
        ({"frames": 22}, {"video_mask": 1.0}, ("out_of_range", "request.frames")),
        ({"seconds": 2.0}, {"video_mask": 1.0}, ("out_of_range", "request.seconds")),
        ({}, {"video_mask": 1.5}, ("out_of_range", "request.edit.video_mask")),
        (
            {},
            {"audio_mask": 1.0, "audio_spans": [{"start": 0, "stop": 1}]},
            ("out_of_range", "request.edit.audio_spans"),
        ),
        ({}, {"audio_spans": [{"start": 2, "stop": 1}]}, ("out_of_range", "request.edit.audio_spans[0]")),
        ({}, {"video_mask": 1.0, "document": {"version": 1}}, ("out_of_range", "request.edit.document")),
        ({}, {"document": {"version": 7}}, ("unsupported_version", "request.edit.document.version")),
        ({}, {"after": -1.0}, ("out_of_range", "request.edit.after")),
        ({}, {"after": 1.0, "files": [{"name": "a", "media": {"part": "v"}}]}, ("out_of_range", "request.edit.files")),
        (
            {},
            {"document": {"version": 1, "canvas": {"width": 64, "height": 32, "frames": 39}, "video": TOUCHED}},
            ("bad_mask", "request.edit.document.canvas.frames"),
        ),
        ({}, {"after": 60.0}, ("out_of_range", "request.edit.after")),
        ({}, {"before": 1e9}, ("out_of_range", "request.edit.before")),
        ({}, {"after": 19.5}, ("out_of_range", "request.frames")),
        ({}, {"video_mask": 1.0, "frames": 10**9}, ("out_of_range", "request.edit.frames")),
        ({}, {"video_mask": 1.0, "frames": 4}, ("out_of_range", "request.edit.frames")),
        (
            {},
            {"document": {"version": 1}, "files": [{"name": str(i), "media": {"part": "v"}} for i in range(1025)]},
            ("out_of_range", "request.edit.files"),
        ),
        ({}, {"document": {"version": 1, "x": nested(900)}}, ("out_of_range", "request.edit.document.x")),
        ({}, {"document": {"version": 1, "x": "x" * 2**22}}, ("body_too_large", "request")),
    ],
)
async def test_an_edit_that_is_wrong_is_refused(
    client: EngineClient,
    clip: Path,
    tmp_path: Path,
    *,
    fields: dict[str, Any],
    edit: dict[str, Any],
    error: tuple[str, str],
) -> None:
    request = {**EDIT, **fields, "edit": {"source": SOURCE, **edit}}
    with pytest.raises(RequestError) as caught:
        await client.run(request, inputs={"v": clip}, folder=tmp_path)
    assert (caught.value.code, caught.value.field) == error
    assert caught.value.remedy


async def test_a_request_that_cannot_be_sent_ends(client: EngineClient, clip: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await asyncio.wait_for(run(client, {"video_mask": 1.0}, tmp_path / "nowhere.mp4", tmp_path), 20)


def test_a_form_takes_a_source(engine: EngineProcess, clip: Path) -> None:
    request = {name: value for name, value in EDIT.items() if name != "task"}
    status, job = post_form(engine, {**request, "edit": {"source": SOURCE, "audio_mask": 1.0}}, v=clip.read_bytes())
    assert status == 202, job
    done = finished(engine, job["job_id"])
    assert (done["state"], done["error"]) == ("done", None)
    assert done["facts"]["masks"]["audio_percent"] == 100


def test_the_command_line_edits_a_clip(engine: EngineProcess, clip: Path, tmp_path: Path) -> None:
    mask = tmp_path / "mask.png"
    Image.fromarray(np.full((32, 64), 255, np.uint8)).save(mask)
    output = tmp_path / "out.mp4"
    words = [
        "--source-video",
        str(clip),
        "--video-mask",
        str(mask),
        "--audio-mask",
        "0.1-0.2,0.5-.6",
        "--extend",
        "0.5",
    ]
    done = command("generate", "--url", engine.url, "--prompt", "a boat", "--steps", "1", *words, "-o", str(output))
    assert done.returncode == 0, done.stderr
    assert video_facts(output).frames == 39
    document = tmp_path / "edit.json"
    layer = {"id": "a", "kind": "raster", "file": "mask.png", "range": [0, 5]}
    hidden = {"id": "b", "kind": "raster", "file": "nowhere.png", "enabled": False}
    canvas = {"width": 64, "height": 32, "frames": FRAMES}
    document.write_text(json.dumps({"version": 1, "canvas": canvas, "layers": [layer, hidden]}))
    words = ["--source-video", str(clip), "--mask-document", str(document)]
    done = command("generate", "--url", engine.url, "--prompt", "a boat", "--steps", "1", *words, "-o", str(output))
    assert done.returncode == 0, done.stderr
    document.write_text(json.dumps({"version": 1, "canvas": canvas, "layers": [{**layer, "strength": 2}]}))
    for bad, named in (
        (words, "--mask-document.layers[0].strength"),
        (["--video-mask", "1"], "--source-video"),
        (["--source-video", str(clip), "--audio-mask", "1:2"], "--audio-mask"),
        (["--source-video", str(clip), "--video-mask", "nowhere.png"], "--video-mask"),
        (["--source-video", str(clip), "--mask-document", str(mask)], "--mask-document"),
        (["--source-video", str(clip), "--seconds", "3", "--extend", "2"], "request.seconds"),
    ):
        done = command("generate", "--url", engine.url, "--prompt", "a boat", *bad, "-o", str(output))
        assert done.returncode == 2, done.stderr
        assert named in done.stderr
