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
from tests.support.ranks import Fleet

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
    fleet = Fleet(tiny_checkpoint, layout=tuple(LAYOUTS[layout].split()), stages=",".join(STAGES), media=True)
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


def test_cancelling_leaves_the_ranks_as_they_are(fleet: Fleet) -> None:
    job_id = fleet.start({**SMALL, "steps": 500})
    fleet.send({"op": "cancel", "job_id": job_id})
    error = fleet.finish(job_id).error
    assert error is not None
    assert error["code"] == "cancelled"
    assert fleet.run(SMALL).error is None


def test_an_error_inside_a_block_is_told_as_what_it_is_and_the_ranks_restart(fleet: Fleet, layout: str) -> None:
    with fleet.fault(rank=1, module=BLOCKS[layout], call=2, do="raise"):
        error = fleet.run(SMALL).error
    assert error is not None
    assert error["code"] == "job_failed"
    assert "planted fault" in error["message"]
    assert error["details"] == {"stage": "denoise", "rank": 1}
    fleet.wait_ready()
    assert fleet.run(SMALL).error is None


def test_out_of_memory_in_the_text_encoder_is_told_and_the_ranks_restart(fleet: Fleet) -> None:
    with fleet.fault(rank=0, module="Qwen3VLTextModel", do="oom"):
        error = fleet.run(SMALL).error
    assert error is not None
    assert error["code"] == "out_of_memory"
    assert error["details"] == {"stage": "encode_prompt", "rank": 0}
    fleet.wait_ready()
    assert fleet.run(SMALL).error is None
