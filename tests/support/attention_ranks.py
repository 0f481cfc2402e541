"""What the ranks of the attention tests do: forwards and a denoising run, on one rank and on all, compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from engine.checkpoint import open_checkpoint
from engine.models.bundle import Models
from engine.models.loading import load_models
from engine.packing import build_layout, latent_grid
from engine.parallel import attention
from engine.parallel.collectives import collect_json
from engine.parallel.mesh import Mesh
from engine.parallel.sharding import apply_sequence_parallel
from engine.stages.base import PromptEmbeds, StageContext
from engine.stages.denoise import denoise

CPU = torch.device("cpu")
STEPS = 8
TEXT_ROWS = (10, 11, 12)
"""Three lengths in a row, so that every remainder by 2 and by 3 ranks comes up."""


def forward_inputs(models: Models, text_rows: int) -> dict[str, Any]:
    """Return arguments of one forward, other ones for each ``text_rows``."""
    generator = torch.Generator().manual_seed(text_rows)
    grid = latent_grid(models.facts, width=64, height=32, frames=22)
    layout = build_layout(torch.ones(text_rows, dtype=torch.long), grid)
    times, indices = layout.row_times(0.3, 0.6)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    return {
        "hidden_states": random(1, layout.video_indices.numel(), grid.channels * grid.patch**2),
        "audio_hidden_states": random(1, layout.audio_indices.numel(), grid.audio_channels),
        "encoder_hidden_states": random(1, text_rows, models.facts.text_dim),
        "timestep": times,
        "timestep_indices": indices,
        "return_dict": False,
        **layout.forward_inputs(CPU),
    }


@torch.no_grad()
def forwards(models: Models) -> list[torch.Tensor]:
    """Return both outputs of a forward of each length."""
    return [x for rows in TEXT_ROWS for x in models.transformer(**forward_inputs(models, rows))]


def latents(models: Models) -> list[torch.Tensor]:
    """Return the latents of a denoising run."""
    embeds = torch.randn(1, TEXT_ROWS[0], models.facts.text_dim, generator=torch.Generator().manual_seed(1))
    ctx = StageContext(models, CPU, lambda step, total: None, lambda: None)
    tags = torch.ones(TEXT_ROWS[0], dtype=torch.long)
    made = denoise(ctx, PromptEmbeds(embeds, tags), width=64, height=64, frames=22, steps=STEPS, seed=3)
    return [made.video, made.audio]


def difference(first: list[torch.Tensor], second: list[torch.Tensor]) -> float:
    """Return the largest absolute difference."""
    return max(float((a - b).abs().max()) for a, b in zip(first, second, strict=True))


def compare(mesh: Mesh, folder: Path) -> None:
    """Write the differences between one rank and all ranks to ``differences.json``."""
    models = load_models(
        open_checkpoint((folder / "model").resolve(), stages=("denoise",)),
        device=CPU,
        dtype=torch.float32,
        keep=frozenset({"transformer"}),
        on_bytes=lambda component, done, total: None,
    )
    one, one_latents = forwards(models), latents(models)
    parallel = apply_sequence_parallel(models.transformer, mesh)
    found = {"forward": difference(one, forwards(models)), "latents": difference(one_latents, latents(models))}
    whole = attention.all_to_all
    attention.all_to_all = lambda x, mesh: x
    found["without communication"] = difference(one, forwards(models))
    attention.all_to_all = whole
    parallel.remove()
    found["removed"] = difference(one, forwards(models))
    everywhere = collect_json(found, mesh)
    if mesh.layout.rank == 0:
        (folder / "differences.json").write_text(json.dumps(everywhere))
