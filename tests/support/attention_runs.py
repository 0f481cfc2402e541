"""Denoising runs in which the strategy changes on the way, for the tests of parallel attention."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import torch

from engine.checkpoint import open_checkpoint
from engine.models.bundle import Models
from engine.models.loading import load_models
from engine.parallel.mesh import Mesh
from engine.parallel.sharding import SequenceParallel, apply_sequence_parallel
from engine.parallel.strategy import BOTH, LOCAL, RING, ULYSSES, full_strategy
from engine.stages.base import PromptEmbeds, StageContext
from engine.stages.denoise import denoise

CPU = torch.device("cpu")
STEPS = 8
TEXT_ROWS = 10
PINNED = 192


def latents(models: Models, *, boundary: Any = lambda: None, pad_seq_len: int | None = None) -> list[torch.Tensor]:
    """Return the latents of a denoising run."""
    embeds = torch.randn(1, TEXT_ROWS, models.facts.text_dim, generator=torch.Generator().manual_seed(1))
    made = denoise(
        StageContext(models, CPU, lambda step, total: None, boundary),
        PromptEmbeds(embeds, torch.ones(TEXT_ROWS, dtype=torch.long)),
        width=64,
        height=64,
        frames=22,
        steps=STEPS,
        seed=3,
        pad_seq_len=pad_seq_len,
    )
    return [made.video, made.audio]


def difference(first: list[torch.Tensor], second: list[torch.Tensor]) -> float:
    """Return the largest absolute difference."""
    return max(float((a - b).abs().max()) for a, b in zip(first, second, strict=True))


def possible(mesh: Mesh) -> list[str]:
    """Return the strategies of the layout."""
    ulysses, ring = mesh.layout.ulysses_degree > 1, mesh.layout.ring_degree > 1
    return [
        name for name, there in ((LOCAL, True), (ULYSSES, ulysses), (RING, ring), (BOTH, ulysses and ring)) if there
    ]


def mixed_runs(mesh: Mesh, folder: Path) -> dict[str, Any]:
    """Compare runs of changing strategy with one rank's."""
    models = load_models(
        open_checkpoint((folder / "model").resolve(), stages=("denoise",)),
        device=CPU,
        dtype=torch.float32,
        keep=frozenset({"transformer"}),
        on_bytes=lambda component, done, total: None,
    )
    alone = latents(models)
    parallel = apply_sequence_parallel(models.transformer, mesh)
    found: dict[str, Any] = {"all ranks": difference(alone, latents(models))}
    found["pinned"] = difference(alone, latents(models, pad_seq_len=PINNED))
    found["steps"] = difference(alone, changing_by_step(parallel, models, mesh))
    full = full_strategy(mesh.layout)
    for outer, inner in itertools.permutations(possible(mesh), 2):
        with parallel.using(outer, blocks={1: inner}):
            found[f"a {inner} block in a {outer} forward"] = difference(alone, latents(models))
    if mesh.layout.rank == 0:
        with parallel.using(LOCAL, ranks=(0,)):
            found["a job on rank 0"] = difference(alone, latents(models))
    if full == BOTH and mesh.layout.ring_index == 0:
        with parallel.using(ULYSSES, ranks=mesh.layout.ranks_along("ulysses")):
            found["a job on one ulysses group"] = difference(alone, latents(models))
    found["the next job on all"] = difference(alone, latents(models))
    found["refused"] = refusal(parallel, full)
    return found


def changing_by_step(parallel: SequenceParallel, models: Models, mesh: Mesh) -> list[torch.Tensor]:
    """Return the latents of a run in which each step takes the next strategy."""
    names = itertools.cycle(possible(mesh))
    before = parallel.strategy

    def boundary() -> None:
        parallel.strategy = parallel.build(next(names))

    made = latents(models, boundary=boundary)
    parallel.strategy = before
    return made


def refusal(parallel: SequenceParallel, full: str) -> str:
    """Return why rank 0 cannot run what takes all ranks."""
    try:
        with parallel.using(full, ranks=(0,)):
            return "it could"
    except ValueError as error:
        return str(error)
