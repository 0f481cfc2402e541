"""Edits as jobs on two real ranks: what each of them received, what comes out, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.contract.mask_cells import rows_of_cells
from tests.support.ranks import Ended, Fleet
from tests.support.received_masks import received

pytestmark = pytest.mark.ranks

SIZES: dict[str, Any] = {"width": 64, "height": 32, "frames": 22}
DENOISE: dict[str, Any] = {"task": "denoise", **SIZES, "steps": 2, "seed": 3}
STREAMS = ("video", "audio")


@pytest.fixture(scope="module")
def conditioning(fleet: Fleet) -> Path:
    ended = fleet.run({"task": "encode_prompt", "prompt": "a red kite"})
    return ended.outputs("conditioning")[0]


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


SOURCE = {"video": draw(1, 1, 24, 7, 2, 4), "audio": draw(2, 1, 32, 2, 37)}
MASKS = {
    "video_noise_mask": (draw(3, 1, 1, 7, 2, 4) + 0.5).clamp(0, 1),
    "audio_noise_mask": (draw(4, 1, 1, 2, 37) + 0.5).clamp(0, 1),
}


def edit(
    fleet: Fleet,
    conditioning: Path,
    folder: Path,
    masks: dict[str, torch.Tensor] | None = None,
    source: dict[str, torch.Tensor] = SOURCE,
    **fields: Any,
) -> Ended:
    """Run an edit."""
    inputs = {"conditioning": conditioning, "latents": folder / "source"}
    save_file(source, inputs["latents"])
    if masks is not None:
        inputs["masks"] = folder / "masks"
        save_file(masks, inputs["masks"])
    return fleet.run({**DENOISE, **fields}, inputs)


def bits(latent: torch.Tensor) -> torch.Tensor:
    return latent.view(torch.int32)


def test_each_rank_receives_the_masks_and_what_is_kept_comes_out_bit_for_bit(
    fleet: Fleet, conditioning: Path, tmp_path: Path
) -> None:
    before = len(received(fleet.masks))
    ended = edit(fleet, conditioning, tmp_path, MASKS)
    assert ended.error is None
    ranks = received(fleet.masks)[before]
    assert len(ranks) == 2
    for rank in ranks:
        for stream in STREAMS:
            cells = MASKS[f"{stream}_noise_mask"][0, 0]
            assert torch.equal(rank[stream], cells)
            rows = torch.from_numpy(rows_of_cells(cells.numpy())).flatten()
            assert torch.equal(rank[f"{stream}_rows"], rows)
    made = load_file(ended.outputs("latents")[0])
    for stream in STREAMS:
        kept = (MASKS[f"{stream}_noise_mask"][0] == 0).expand(made[stream].shape)
        assert 0 < int(kept.sum()) < kept.numel()
        assert torch.equal(bits(made[stream])[kept], bits(SOURCE[stream])[kept])
        assert not torch.equal(made[stream][~kept], SOURCE[stream][~kept])
    facts = ended.facts["masks"]
    video_rows = torch.nn.functional.max_pool2d(MASKS["video_noise_mask"][0, 0][:, None], 2) > 0
    assert facts["video_percent"] == pytest.approx(100 * float(video_rows.float().mean()))
    assert facts["audio_percent"] == pytest.approx(100 * float((MASKS["audio_noise_mask"] > 0).float().mean()))
    assert ended.events("warning") == []


def test_numbers_are_masks_of_a_whole_stream(fleet: Fleet, conditioning: Path, tmp_path: Path) -> None:
    ended = edit(fleet, conditioning, tmp_path, video_mask=0.0, audio_mask=0.5)
    made = load_file(ended.outputs("latents")[0])
    assert torch.equal(bits(made["video"]), bits(SOURCE["video"]))
    assert not torch.equal(made["audio"], SOURCE["audio"])
    for rank in received(fleet.masks)[-1]:
        assert rank["video_rows"].unique().tolist() == [0.0]
        assert rank["audio_rows"].unique().tolist() == [0.5]
    assert (ended.facts["masks"]["video_percent"], ended.facts["masks"]["audio_percent"]) == (0.0, 100.0)


def test_one_mask_leaves_the_other_stream_to_be_made_anew(fleet: Fleet, conditioning: Path, tmp_path: Path) -> None:
    plain = load_file(fleet.run(DENOISE, {"conditioning": conditioning}).outputs("latents")[0])
    ended = edit(fleet, conditioning, tmp_path, {})
    made = load_file(ended.outputs("latents")[0])
    assert all(torch.equal(bits(made[stream]), bits(plain[stream])) for stream in STREAMS)
    assert [event["code"] for event in ended.events("warning")] == ["mask_effect"]
    assert "100%" in ended.events("warning")[0]["message"]
    name = "video_noise_mask"
    ended = edit(fleet, conditioning, tmp_path, {name: MASKS[name]})
    assert all("audio_rows" not in rank for rank in received(fleet.masks)[-1])
    assert ended.error is None


def test_masks_of_zeros_warn_that_nothing_changes(fleet: Fleet, conditioning: Path, tmp_path: Path) -> None:
    ended = edit(fleet, conditioning, tmp_path, {name: torch.zeros_like(mask) for name, mask in MASKS.items()})
    made = load_file(ended.outputs("latents")[0])
    assert all(torch.equal(bits(made[stream]), bits(SOURCE[stream])) for stream in STREAMS)
    assert [event["code"] for event in ended.events("warning")] == ["mask_effect"]
    assert "0%" in ended.events("warning")[0]["message"]


def test_several_outputs_keep_the_same_and_make_their_own(fleet: Fleet, conditioning: Path, tmp_path: Path) -> None:
    ended = edit(fleet, conditioning, tmp_path, MASKS, num_outputs=2)
    first, second = (load_file(path) for path in ended.outputs("latents"))
    alone = load_file(edit(fleet, conditioning, tmp_path, MASKS, seed=4).outputs("latents")[0])
    for stream in STREAMS:
        kept = (MASKS[f"{stream}_noise_mask"][0] == 0).expand(first[stream].shape)
        assert torch.equal(bits(first[stream])[kept], bits(second[stream])[kept])
        assert not torch.equal(first[stream], second[stream])
        assert torch.equal(bits(second[stream]), bits(alone[stream]))


def test_a_source_in_half_precision_is_kept_as_it_is(fleet: Fleet, conditioning: Path, tmp_path: Path) -> None:
    half = {name: latent.half() for name, latent in SOURCE.items()}
    ended = edit(fleet, conditioning, tmp_path, source=half, video_mask=0.0, audio_mask=0.0)
    made = load_file(ended.outputs("latents")[0])
    assert all(torch.equal(made[stream], half[stream].float()) for stream in STREAMS)


@pytest.mark.parametrize("value", [1.5, float("nan")])
def test_a_value_that_is_no_mask_is_told_and_the_next_job_runs(
    fleet: Fleet, conditioning: Path, tmp_path: Path, value: float
) -> None:
    broken = {**MASKS, "audio_noise_mask": MASKS["audio_noise_mask"].clone()}
    broken["audio_noise_mask"][0, 0, 1, 5] = value
    ended = edit(fleet, conditioning, tmp_path, broken)
    assert ended.error is not None
    assert (ended.error["code"], ended.error["kind"]) == ("bad_mask", "RequestError")
    assert ended.error["field"] == "parts.masks.audio_noise_mask"
    assert edit(fleet, conditioning, tmp_path, MASKS).error is None


def test_a_rank_that_fails_in_an_edit_does_not_hold_up_the_next(
    fleet: Fleet, conditioning: Path, tmp_path: Path
) -> None:
    with fleet.fault(rank=1, module="MiniMaxH3Transformer3DModel", do="raise"):
        ended = edit(fleet, conditioning, tmp_path, MASKS)
    assert ended.error is not None
    assert ended.error["message"] == "[rank 1] ValueError: planted fault (stage denoise)"
    assert edit(fleet, conditioning, tmp_path, MASKS).error is None
