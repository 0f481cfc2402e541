"""One rank in fp32 gives diffusers' fl2va and ref2va bit for bit, from pictures and sound that were resized already."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.contract.media import Keyframe, Media, Reference
from engine.models.bundle import Models
from engine.packing import build_layout, latent_grid, pack_audio
from engine.runner_media import JobMedia
from engine.stages.base import Prepared
from tests.support import stages
from tests.support.oracle import Conditioned, run_conditioned

pytestmark = pytest.mark.usefixtures("one_thread")

GENERATOR = torch.Generator().manual_seed(5)
BASE: dict[str, Any] = {"prompt": "As in <Picture 1>, at  night.", "width": 96, "height": 64, "steps": 2, "seed": 11}


def picture(width: int, height: int, *, count: int | None = None) -> torch.Tensor:
    """Return smooth pictures with some grain, [H, W, 3] or [count, H, W, 3] uint8."""
    shape = ((count or 1), 3, 3 + height // 32, 2 + width // 32)
    coarse = torch.rand(shape, generator=GENERATOR)
    fine = torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear")
    made = (fine * 200 + torch.rand(fine.shape, generator=GENERATOR) * 50).to(torch.uint8).permute(0, 2, 3, 1)
    return made if count else made[0]


def sound(seconds: float, *, rate: int = 32_000, channels: int = 2) -> torch.Tensor:
    return torch.rand((channels, int(seconds * rate)), generator=GENERATOR) - 0.5


def image(width: int, height: int) -> dict[str, Any]:
    return {"kind": "image", "frames": picture(width, height, count=1)}


def video(width: int, height: int, count: int, fps: float, **more: Any) -> dict[str, Any]:
    return {"kind": "video", "frames": picture(width, height, count=count), "fps": fps, **more}


REQUESTS: dict[str, dict[str, Any]] = {
    "first": {**BASE, "frames": 22, "first": picture(120, 70)},
    "last": {**BASE, "frames": 39, "last": picture(50, 90)},
    "first and last": {**BASE, "frames": 22, "first": picture(96, 64), "last": picture(64, 64)},
    "an image": {**BASE, "frames": 22, "references": [image(70, 100)]},
    "video with sound, image": {
        **BASE,
        "frames": 39,
        "references": [
            video(64, 96, 66, 24.0, audio=sound(2.75, rate=44_100, channels=1), sample_rate=44_100),
            image(130, 60),
        ],
    },
    "audio, silent video, image, audio": {
        **BASE,
        "frames": 56,
        "references": [
            {"kind": "audio", "audio": sound(2.0), "sample_rate": 32_000},
            video(80, 48, 33, 12.0),
            image(40, 40),
            {"kind": "audio", "audio": sound(2.2, channels=1), "sample_rate": 32_000},
        ],
    },
}


@pytest.fixture(scope="module")
def theirs(tiny_checkpoint: Path) -> dict[str, Conditioned]:
    return dict(zip(REQUESTS, run_conditioned(tiny_checkpoint, list(REQUESTS.values())), strict=True))


@pytest.fixture(scope="module")
def models(tiny_checkpoint: Path) -> Models:
    return stages.load(tiny_checkpoint)


def prepared_media(request: dict[str, Any], reference: Conditioned) -> JobMedia:
    """Return the media as diffusers prepared them."""
    made = [Prepared(entry.get("frames"), entry.get("waveform")) for entry in reference.prepared]
    if "references" in request:
        entries = [Reference(entry["kind"], Media("unused"), size="reference") for entry in request["references"]]
        return JobMedia(request["frames"], references=tuple(zip(entries, made, strict=True)))
    keyframes = [
        Keyframe(Media("unused"), "first" if at == "first" else "last") for at in request if at in ("first", "last")
    ]
    return JobMedia(request["frames"], keyframes=tuple(zip(keyframes, made, strict=True)))


@pytest.mark.parametrize("name", REQUESTS)
def test_every_stage_is_equal(name: str, models: Models, theirs: dict[str, Conditioned]) -> None:
    request, reference = REQUESTS[name], theirs[name]
    media = prepared_media(request, reference)
    ours = stages.run_media(models, media, **{key: request[key] for key in BASE})
    assert torch.equal(ours.embeds.token_tags, reference.token_tags)
    assert torch.equal(ours.embeds.prompt_embeds, reference.made.prompt_embeds)
    latents = ours.conditions.named()
    for stream, wanted in (("video", reference.video_conditions), ("audio", reference.audio_conditions)):
        found = [value if stream == "video" else pack_audio(value) for key, value in latents.items() if stream in key]
        assert len(found) == len(wanted)
        assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    grid = latent_grid(models.facts, width=request["width"], height=request["height"], frames=request["frames"])
    layout = build_layout(ours.embeds.token_tags, grid, ours.conditions.blocks())
    assert torch.equal(layout.position_ids, reference.position_ids)
    assert media.blocks(models.facts) == ours.conditions.blocks()
    assert torch.equal(ours.latents.video, reference.made.video_latents)
    assert torch.equal(ours.latents.audio[0].permute(1, 0, 2), reference.made.audio_latents)
    assert torch.equal(ours.frames, reference.made.frames)
    assert torch.equal(ours.audio, reference.made.audio)
