"""Edits sent to a real engine of two ranks over the websocket; what does not fit is refused before a rank wakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.client import EngineClient
from engine.contract.errors import EngineError
from tests.support.engine_process import EngineProcess
from tests.support.received_masks import received

pytestmark = pytest.mark.ranks

DENOISE: dict[str, Any] = {"task": "denoise", "width": 64, "height": 32, "frames": 22, "steps": 2, "seed": 3}


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


SOURCE = {"video": draw(1, 1, 24, 7, 2, 4), "audio": draw(2, 1, 32, 2, 37)}
MASKS = {
    "video_noise_mask": (draw(3, 1, 1, 7, 2, 4) + 0.5).clamp(0, 1),
    "audio_noise_mask": (draw(4, 1, 1, 2, 37) + 0.5).clamp(0, 1),
}


def parts(folder: Path, **named: dict[str, torch.Tensor]) -> dict[str, Path]:
    """Write the parts of a request, a conditioning among them."""
    tags = torch.ones(9, dtype=torch.long)
    written = {"conditioning": {"prompt_embeds": draw(5, 1, 9, 32), "token_tags": tags}, **named}
    for name, tensors in written.items():
        save_file(tensors, folder / name)
    return {name: folder / name for name in written}


async def test_an_edit_over_the_websocket_reaches_every_rank_and_keeps_what_it_should(
    engine: EngineProcess, client: EngineClient, tmp_path: Path
) -> None:
    before = len(received(engine.masks))
    done = await client.run(DENOISE, folder=tmp_path, inputs=parts(tmp_path, latents=SOURCE, masks=MASKS))
    ranks = received(engine.masks)[before]
    assert len(ranks) == 2
    made = load_file(done.outputs["latents"][0])
    for stream in ("video", "audio"):
        cells = MASKS[f"{stream}_noise_mask"][0, 0]
        assert all(torch.equal(rank[stream], cells) for rank in ranks)
        kept = (cells == 0).expand(made[stream].shape)
        assert torch.equal(made[stream][kept].view(torch.int32), SOURCE[stream][kept].view(torch.int32))
        assert not torch.equal(made[stream][~kept], SOURCE[stream][~kept])
    assert set(done.facts["masks"]) == {
        *("video_percent", "video_frames", "video_seconds"),
        *("audio_percent", "audio_latents", "audio_seconds"),
    }


SMALLER = {"video_noise_mask": torch.ones(1, 1, 7, 2, 2)}
SHORTER = {"audio_noise_mask": torch.ones(1, 1, 2, 8)}


REFUSED: dict[str, tuple[dict[str, Any], dict[str, dict[str, torch.Tensor]], str, tuple[str, ...]]] = {
    "masks alone": ({}, {"masks": MASKS}, "missing_field parts.latents", ()),
    "a number alone": ({"video_mask": 0.5}, {}, "missing_field parts.latents", ()),
    "another canvas": (
        {},
        {"latents": SOURCE, "masks": SMALLER},
        "bad_mask parts.masks.video_noise_mask",
        ("32x32", "64x32"),
    ),
    "another length": (
        {},
        {"latents": SOURCE, "masks": SHORTER},
        "bad_mask parts.masks.audio_noise_mask",
        ("8 latents", "37"),
    ),
    "a source of another canvas": ({"height": 64}, {"latents": SOURCE}, "bad_tensor parts.latents", ("64x32", "64x64")),
    "a longer video": ({"frames": 39}, {"latents": SOURCE}, "bad_tensor parts.latents", ("22 frames", "39 frames")),
    "no number from 0 to 1": ({"audio_mask": 2.0}, {"latents": SOURCE}, "out_of_range request.audio_mask", ()),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_what_does_not_fit_is_refused_before_a_rank_wakes(
    engine: EngineProcess, client: EngineClient, tmp_path: Path, case: str
) -> None:
    fields, sent, error, named = REFUSED[case]
    started = engine.metric("jobs_started_total")
    with pytest.raises(EngineError) as caught:
        await client.run({**DENOISE, **fields}, folder=tmp_path, inputs=parts(tmp_path, **sent))
    assert f"{caught.value.code} {caught.value.field}" == error
    assert caught.value.remedy
    assert all(name in caught.value.message for name in named)
    assert engine.metric("jobs_started_total") == started


async def test_values_beyond_0_to_1_are_the_callers_fault_and_the_next_edit_runs(
    engine: EngineProcess, client: EngineClient, tmp_path: Path
) -> None:
    wrong = {**MASKS, "video_noise_mask": MASKS["video_noise_mask"] * 255}
    with pytest.raises(EngineError) as caught:
        await client.run(DENOISE, folder=tmp_path, inputs=parts(tmp_path, latents=SOURCE, masks=wrong))
    assert (caught.value.code, caught.value.status) == ("bad_mask", 400)
    events: list[Any] = []
    await client.run(
        {**DENOISE, "video_mask": 0, "audio_mask": 0},
        folder=tmp_path,
        inputs=parts(tmp_path, latents=SOURCE),
        on_event=events.append,
    )
    warnings = [event["code"] for event in events if event["type"] == "warning"]
    assert warnings.count("mask_effect") == 1
