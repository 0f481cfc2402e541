"""What the ranks of the traffic tests do: forwards of divided models, their books written down."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from engine.parallel.guard import guard_collectives
from engine.parallel.mesh import Mesh
from engine.parallel.traffic import TorchTraffic
from engine.parallel.weights import plan_divisions
from engine.stages.base import PromptEmbeds, StageContext
from engine.stages.denoise import denoise
from tests.support.live_bytes import LiveBytes
from tests.support.weight_ranks import PROMPT, Found, divided, latents, lay_out, load, report

PEAK_SIZE = {"width": 192, "height": 128, "frames": 39, "text_rows": 40, "steps": 2}
"""The request whose peaks are measured."""


def books_of(mesh: Mesh, forward: Callable[[], Any]) -> Found:
    """Return what was counted in a forward, by kind; fails when it counts anything of torch's unasked."""
    mesh.account.reset()
    forward()
    unasked = set(mesh.account.entries)
    mesh.account.reset()
    with TorchTraffic(mesh.account):
        forward()
    assert not unasked & {"tensor_sum", "tensor_gather", "weights"}
    return {kind: dataclasses.asdict(entry) for kind, entry in mesh.account.entries.items()}


def denoising(mesh: Mesh, folder: Path, *degrees: int, shard: bool = False) -> Found:
    """Return the books of one forward of the transformer."""
    lay_out(mesh, *degrees)
    models, _, _ = divided(mesh, folder, shard=shard)
    return books_of(mesh, lambda: latents(models))


def encoding(mesh: Mesh, folder: Path) -> Found:
    """Return the books of one forward of the text encoder in two parts."""
    lay_out(mesh, 2)
    divisions = plan_divisions(mesh, served=frozenset({"text_encoder"}), text_encoder_degree=2, shard_weights=False)
    models, _ = load(folder, "text_encoder", divisions)
    guard_collectives(models.text_encoder, mesh)
    with torch.no_grad():
        books = books_of(mesh, lambda: models.text_encoder(input_ids=PROMPT, use_cache=False))
    return {**books, "layers": len(models.text_encoder.language_model.layers)}


def peaks(mesh: Mesh, folder: Path) -> dict[str, int]:
    """Return the most bytes that are alive beside the weights while a video is denoised, by layout."""
    found = {}
    for name, degrees in {"ulysses": (2,), "ring": (1, 2), "tensor": (1, 1, 2)}.items():
        lay_out(mesh, *degrees)
        models, _, _ = divided(mesh, folder, shard=False)
        embeds = torch.randn(1, PEAK_SIZE["text_rows"], models.facts.text_dim)
        conditioning = PromptEmbeds(embeds, torch.ones(PEAK_SIZE["text_rows"], dtype=torch.long))
        ctx = StageContext(models, torch.device("cpu"), lambda step, total: None, lambda: None)
        sizes = {key: value for key, value in PEAK_SIZE.items() if key != "text_rows"}
        with LiveBytes() as live:
            denoise(ctx, conditioning, **sizes, seed=1)
        found[name] = live.peak + embeds.nbytes
    return found


def two(mesh: Mesh, folder: Path) -> None:
    """Be one of two ranks."""
    model = folder / "model"
    cases: dict[str, Callable[[], Any]] = {
        "tensor": lambda: denoising(mesh, model, 1, 1, 2),
        "sharded": lambda: denoising(mesh, model, 2, shard=True),
        "ulysses": lambda: denoising(mesh, model, 2),
        "text encoder": lambda: encoding(mesh, model),
        "peaks": lambda: peaks(mesh, model),
    }
    report(mesh, folder, cases)


def three(mesh: Mesh, folder: Path) -> None:
    """Be one of three ranks, by which no matrix has even shares."""
    report(mesh, folder, {"sharded": lambda: denoising(mesh, folder / "model", 3, shard=True)})
