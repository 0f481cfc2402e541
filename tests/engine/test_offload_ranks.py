"""Jobs on two ranks whose text encoder and transformers stream from host memory, against one process without."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from engine.contract.requests import STAGES
from engine.rank_options import OffloadOptions
from engine.stacks import FAMILIES
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
    "seed": 3,
}
BOUND = 1e-4
"""Sums over ranks in another order, and weights at other places in memory: between runs without offload it is alike."""
LAYOUTS: dict[str, tuple[str, OffloadOptions]] = {
    "rows": ("--ulysses-degree 2", OffloadOptions(offload=tuple(FAMILIES))),
    # Not all of it fits at once: the text encoder leaves before the transformer comes in, and comes back.
    "layers": (
        "--ulysses-degree 1 --tp-degree 2 --text-encoder-tp-degree 2",
        OffloadOptions(offload=("dit", "text_encoder"), resident_blocks=1, gpu_memory=0.0008),
    ),
}


@pytest.fixture(scope="module")
def alone(tiny_checkpoint: Path) -> stages.Result:
    models = stages.load(tiny_checkpoint)
    return stages.run_t2va(models, **{name: value for name, value in SMALL.items() if name != "task"})


@pytest.fixture(scope="module", params=LAYOUTS)
def divided(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def fleet(divided: str, tiny_checkpoint: Path) -> Iterator[Fleet]:
    layout, options = LAYOUTS[divided]
    told = ("--offload-options", json.dumps(options.to_dict()))
    fleet = Fleet(tiny_checkpoint, layout=(*layout.split(), *told), stages=",".join(STAGES))
    try:
        yield fleet
    finally:
        fleet.close()


def assert_made(fleet: Fleet, alone: stages.Result) -> None:
    """Fail unless the ranks make what one process without offload makes."""
    ended = fleet.run(SMALL)
    assert ended.error is None
    made = load_file(ended.outputs("latents")[0])
    assert (made["video"] - alone.latents.video).abs().max() <= BOUND
    assert (made["audio"] - alone.latents.audio).abs().max() <= BOUND


def test_ranks_that_stream_make_what_one_without_makes_and_do_so_again(fleet: Fleet, alone: stages.Result) -> None:
    info = fleet.wait_ready()
    told = ("weight_bytes", "device_weight_bytes", "host_copy_bytes")
    for held, device, host in zip(*(info[name] for name in told), strict=True):
        assert 0 < device < host <= held
    assert "on a CPU --offload saves nothing" in fleet.log
    for _ in range(2):
        assert_made(fleet, alone)


# Ranks that share layers restart after it, as they do without offload.
@pytest.mark.parametrize("divided", [name for name in LAYOUTS if name != "layers"], indirect=True, scope="module")
def test_after_a_failure_in_the_middle_the_next_job_makes_it_too(fleet: Fleet, alone: stages.Result) -> None:
    with fleet.fault(rank=1, module="MiniMaxH3TransformerBlock", do="raise"):
        ended = fleet.run(SMALL)
    assert ended.error is not None
    assert ended.error["details"]["stage"] == "denoise"
    assert ended.messages[-1]["restarting"] is False
    assert_made(fleet, alone)
