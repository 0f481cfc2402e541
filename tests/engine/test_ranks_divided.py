"""Jobs on ranks that hold parts of weights: results, and errors in the middle of torch's own collectives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.contract.requests import STAGES, Generate, parse_request
from engine.runner_media import JobMedia
from tests.support import stages
from tests.support.ranks import Fleet, Message

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(300)]

SMALL: dict[str, Any] = {
    "task": "generate",
    "prompt": "a red kite",
    "width": 64,
    "height": 64,
    "frames": 22,
    "steps": 2,
}
LAYOUTS = {
    "tensor parallel": "--ulysses-degree 1 --tp-degree 2 --text-encoder-tp-degree 2",
    "sharded": "--ulysses-degree 2 --shard-weights",
}
BLOCKS = {"tensor parallel": "MiniMaxH3TransformerBlock", "sharded": "MiniMaxH3Attention"}


@pytest.fixture(scope="module", params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def fleet(tiny_checkpoint: Path, layout: str) -> Iterator[Fleet]:
    # None may fail: the restarts of these tests are all wanted, and do not count.
    options = (*LAYOUTS[layout].split(), "--max-restarts", "0")
    fleet = Fleet(tiny_checkpoint, layout=options, stages=",".join(STAGES), media=True)
    try:
        yield fleet
    finally:
        fleet.close()


def test_ranks_tell_what_they_hold_and_serve_jobs(fleet: Fleet) -> None:
    info = fleet.wait_ready()
    assert len(info["weight_bytes"]) == 2
    ended = fleet.run(SMALL)
    assert ended.error is None
    assert ended.facts["frames"] == 22
    assert fleet.run({"task": "encode_prompt", "prompt": "a red kite"}).facts == {"tokens": 10}


def test_references_are_read_and_denoised_by_parts(fleet: Fleet, tiny_checkpoint: Path) -> None:
    """The picture goes through the divided text encoder, the rows through the divided second partition."""
    inputs = {"references.0": fleet.folder / "reference.safetensors"}
    generator = torch.Generator().manual_seed(1)
    picture = torch.randint(0, 256, (1, 96, 64, 3), generator=generator, dtype=torch.uint8)
    save_file({"frames": picture}, inputs["references.0"])
    body = {**SMALL, "seed": 4, "references": [{"kind": "image", "media": {"part": "unused"}}]}
    ended = fleet.run(body, inputs)
    assert ended.error is None
    request = parse_request(body)
    assert isinstance(request, Generate)
    sizes = {name: body[name] for name in ("prompt", "width", "height", "steps", "seed")}
    alone = stages.run_media(stages.load(tiny_checkpoint), JobMedia.load(request, inputs), **sizes)
    made = load_file(ended.outputs("latents")[0])
    assert (made["video"] - alone.latents.video).abs().max() <= 1e-4
    assert (made["audio"] - alone.latents.audio).abs().max() <= 1e-4


def assert_serves_the_next_job(fleet: Fleet, *, restarting: bool) -> None:
    """Fail unless the next job runs, on new ranks or (`Fleet.finish` sees to that) on the same."""
    if restarting:
        fleet.wait_ready()
    assert fleet.run(SMALL).error is None


def denoise_nonsense(fleet: Fleet, **values: float) -> Message:
    """Run a job on conditioning with these values in its tensors; return its ``end``."""
    conditioning = {"prompt_embeds": torch.zeros(1, 4, 64), "token_tags": torch.ones(4, dtype=torch.long)}
    for name, value in values.items():
        conditioning[name].view(-1)[1] = value
    path = fleet.folder / "conditioning.safetensors"
    save_file(conditioning, path)
    request = {key: SMALL[key] for key in ("width", "height", "frames", "steps")}
    return fleet.run({"task": "denoise", **request}, {"conditioning": path}).messages[-1]


def test_cancelling_leaves_the_ranks_as_they_are_and_no_trace_for_the_next_job(fleet: Fleet) -> None:
    def cancel_at_second_step(message: Message) -> None:
        if message["op"] == "event" and message["event"].get("step") == 2:
            fleet.send({"op": "cancel", "job_id": message["job_id"]})

    ended = fleet.finish(fleet.start({**SMALL, "steps": 500}), on_message=cancel_at_second_step)
    assert ended.error is not None
    assert ended.error["code"] == "cancelled"
    # A job that fails before any collective: whatever is unfinished then would be the cancelled one's.
    end = denoise_nonsense(fleet, token_tags=2)
    assert (end["error"]["code"], end["restarting"]) == ("bad_tensor", False)
    assert_serves_the_next_job(fleet, restarting=False)


@pytest.mark.parametrize("values", [{"token_tags": 2}, {"prompt_embeds": float("nan")}], ids=str)
def test_conditioning_that_no_model_reads_leaves_the_ranks_as_they_are(fleet: Fleet, values: dict[str, float]) -> None:
    end = denoise_nonsense(fleet, **values)
    assert end["error"]["code"] == "bad_tensor"
    assert end["restarting"] is False
    assert_serves_the_next_job(fleet, restarting=False)


def test_rows_that_do_not_fit_a_pinned_length_are_refused_and_leave_the_ranks_as_they_are(fleet: Fleet) -> None:
    """How many rows a picture takes in the text, the ranks alone can tell: they all refuse, after sharing it."""
    path = fleet.folder / "large.safetensors"
    save_file({"frames": torch.zeros((1, 96, 64, 3), dtype=torch.uint8)}, path)
    references = [{"kind": "image", "media": {"part": "unused"}}]
    ended = fleet.run({**SMALL, "pad_seq_len": 128, "references": references}, {"references.0": path})
    assert ended.error is not None
    assert (ended.error["code"], ended.error["field"]) == ("out_of_range", "request.pad_seq_len")
    assert ended.messages[-1]["restarting"] is False
    assert_serves_the_next_job(fleet, restarting=False)


@pytest.mark.parametrize("rank", [0, 1])
def test_an_error_while_the_ranks_decode_together_leaves_them_as_they_are(fleet: Fleet, rank: int) -> None:
    with fleet.fault(rank=rank, module="MiniMaxH3VideoViTDecoder3d", do="oom"):
        # Two tiles, one a rank.
        ended = fleet.run({**SMALL, "width": 288})
    assert ended.error is not None
    assert (ended.error["code"], ended.error["details"]["rank"]) == ("out_of_memory", rank)
    assert ended.messages[-1]["restarting"] is False
    assert load_file(ended.outputs("latents")[0])["video"].isfinite().all()
    assert_serves_the_next_job(fleet, restarting=False)


@pytest.mark.parametrize("rank", [0, 1])
def test_an_error_while_the_ranks_encode_together_leaves_them_as_they_are(fleet: Fleet, rank: int) -> None:
    path = fleet.folder / "clip.safetensors"
    # Two clips of one tile, one a rank.
    save_file({"frames": torch.zeros((22, 64, 64, 3), dtype=torch.uint8)}, path)
    body = {**SMALL, "guides": [{"frame": 0, "media": {"part": "unused"}}]}
    with fleet.fault(rank=rank, module="MiniMaxH3VideoEncoder3d", do="raise"):
        ended = fleet.run(body, {"guides.0": path})
    assert ended.error is not None
    assert ended.error["details"] == {"stage": "encode_media", "rank": rank}
    assert ended.messages[-1]["restarting"] is False
    assert fleet.run(body, {"guides.0": path}).error is None


def test_an_error_inside_a_block_is_told_as_what_it_is_and_the_ranks_restart(fleet: Fleet, layout: str) -> None:
    with fleet.fault(rank=1, module=BLOCKS[layout], call=2, do="raise"):
        ended = fleet.run(SMALL)
    assert ended.error is not None
    assert ended.error["code"] == "job_failed"
    assert "planted fault" in ended.error["message"]
    assert ended.error["details"] == {"stage": "denoise", "rank": 1}
    assert ended.messages[-1]["restarting"] is True
    assert_serves_the_next_job(fleet, restarting=True)


def test_the_ranks_restart_after_an_error_in_the_text_encoder_only_when_they_share_it(
    fleet: Fleet, layout: str
) -> None:
    with fleet.fault(rank=0, module="Qwen3VLTextModel", do="oom"):
        ended = fleet.run(SMALL)
    assert ended.error is not None
    assert ended.error["code"] == "out_of_memory"
    assert ended.error["details"] == {"stage": "encode_prompt", "rank": 0}
    shared = layout == "tensor parallel"
    assert ended.messages[-1]["restarting"] is shared
    assert_serves_the_next_job(fleet, restarting=shared)
