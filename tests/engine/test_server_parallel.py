"""Every layout of ranks through the whole road: options of ``serve``, a request on the websocket, latents back."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import av
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.client import EngineClient, Outcome
from tests.support.engine_process import ROOT, EngineProcess

pytestmark = [pytest.mark.ranks, pytest.mark.slow, pytest.mark.timeout(300)]

NO_COMPILER = "/nowhere/g++"
REQUEST: dict[str, Any] = {
    "task": "generate",
    "prompt": "a fox runs through the snow",
    "frames": 22,
    "width": 96,
    "height": 64,
    "steps": 3,
    "seed": 5,
    "container": "tensors",
}
PICTURE = {"part": "picture", "format": "frames"}
REFERENCED = {"references": [{"kind": "image", "media": PICTURE}], "pad_seq_len": 256}
ROWS = 27 + 2 * 37 + 7 * 2 * 3
PINNED = 192
LAYOUTS: dict[str, tuple[int, str]] = {
    "a ring, uneven, the text encoder in two": (2, "--ring-degree 2 --rank-weights 2,1 --text-encoder-tp-degree 2"),
    "ulysses, uneven, sharded": (2, "--rank-weights 1,3 --shard-weights"),
    "a ring and tensor parallel": (4, "--ring-degree 2 --tp-degree 2 --text-encoder-tp-degree 4"),
}


def latents_of(engine: EngineProcess, folder: Path, **changes: Any) -> tuple[dict[str, torch.Tensor], Any]:
    """Return the latents (video [1, C, T, h, w] and audio [1, Ca, 2, A]) of a job, and what it was told to come to."""
    events: list[Any] = []
    inputs = {"picture": folder / "picture"} if "references" in changes else {}
    for path in inputs.values():
        noise = torch.randint(0, 256, (1, 64, 96, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
        save_file({"frames": noise}, path)

    async def run() -> Outcome:
        async with EngineClient(engine.url) as client:
            return await client.run({**REQUEST, **changes}, folder=folder, inputs=inputs, on_event=events.append)

    outcome = asyncio.run(run())
    facts = next(event["facts"] for event in events if event["type"] == "started")
    return load_file(outcome.outputs["latents"][0]), facts


def furthest(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Return the largest difference over both streams."""
    return max(float((one[name] - other[name]).abs().max()) for name in ("video", "audio"))


@pytest.fixture(scope="module")
def alone(
    tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return the latents of one rank, without and with a reference; a pinned length does not change them."""
    folder = tmp_path_factory.mktemp("alone")
    with EngineProcess(tiny_checkpoint, folder, ranks=1, options=("--dtype", "fp32"), media=True) as engine:
        plain, facts = latents_of(engine, folder)
        pinned, pinned_facts = latents_of(engine, folder, pad_seq_len=PINNED)
        referenced, _ = latents_of(engine, folder, **REFERENCED)
    assert (facts["rows"], facts.get("pad_seq_len")) == (ROWS, None)
    assert (pinned_facts["rows"], pinned_facts["pad_seq_len"]) == (ROWS, PINNED)
    assert furthest(plain, pinned) < 1e-5
    assert float(plain["video"].abs().max()) > 0.5
    assert furthest(plain, referenced) > 0.1
    return plain, referenced


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_gives_what_one_rank_gives_pinned_or_not(
    tiny_checkpoint: Path,
    tmp_path: Path,
    alone: tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]],
    name: str,
) -> None:
    ranks, words = LAYOUTS[name]
    options = ("--dtype", "fp32", *words.split())
    with EngineProcess(tiny_checkpoint, tmp_path, ranks=ranks, options=options, media=True) as engine:
        plain, _ = latents_of(engine, tmp_path)
        pinned, _ = latents_of(engine, tmp_path, pad_seq_len=PINNED)
        other, _ = latents_of(engine, tmp_path, seed=6)
        referenced, _ = latents_of(engine, tmp_path, **REFERENCED)
        layout = engine.get("/v1/info")["layout"]
    assert furthest(alone[0], plain) < 1e-4
    assert furthest(alone[0], pinned) < 1e-4
    assert furthest(alone[0], other) > 0.1, "another seed makes another video"
    assert furthest(alone[1], referenced) < 1e-4, "the partition for references is divided alike"
    assert layout["ulysses_degree"] * layout["ring_degree"] * layout["tp_degree"] == ranks
    assert layout["shard_weights"] is ("--shard-weights" in words)


def test_generate_takes_the_pinned_length_from_the_command_line(engine: EngineProcess, tmp_path: Path) -> None:
    words = ["--frames", "5", "--width", "32", "--height", "32", "--steps", "1"]
    target = tmp_path / "boat.mp4"
    command = [sys.executable, "-m", "engine", "generate", "--url", engine.url, "--prompt", "a boat", *words]
    refused = subprocess.run(
        [*command, "--pad-seq-len", "65", "-o", str(target)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert refused.returncode == 2
    assert "request.pad_seq_len" in refused.stderr
    assert "Use 64" in refused.stderr
    done = subprocess.run([*command, "--pad-seq-len", "64", "-o", str(target)], cwd=ROOT, check=False)
    assert done.returncode == 0
    with av.open(str(target)) as container:
        assert container.streams.video[0].frames == 5
    assert engine.get("/v1/jobs")["jobs"][-1]["facts"]["pad_seq_len"] == 64


def test_without_a_compiler_compile_ends_the_start_and_not_each_job(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", NO_COMPILER)
    engine = EngineProcess(tiny_checkpoint, tmp_path, ranks=1, options=("--compile",))
    engine.launch()
    try:
        engine.wait_for("dead", 90)
        reason = engine.get("/v1/health")["reason"]
    finally:
        engine.stop()
    assert "torch.compile does not work here" in reason
    assert NO_COMPILER in reason
    assert "Install a C++ compiler (g++), or leave --compile out." in reason
