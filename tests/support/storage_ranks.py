"""What the ranks of the tests of reduced storage do: divided models against whole ones kept in the same type."""

from __future__ import annotations

from pathlib import Path

import torch

from engine.parallel.mesh import Mesh
from engine.parallel.weights import plan_divisions
from tests.support.side_folder import find_torchao
from tests.support.weight_ranks import PROMPT, SERVED, difference, divided, latents, lay_out, load, report


def transformer_off(mesh: Mesh, folder: Path, storage: str, *degrees: int) -> float:
    """Return how far a layout's latents are from one rank's, both kept in ``storage``."""
    lay_out(mesh, *degrees)
    one, _ = load(folder, "transformer", storage=storage)
    models, _, _ = divided(mesh, folder, shard=False, storage=storage)
    return difference(latents(one), latents(models))


def text_encoder_off(mesh: Mesh, folder: Path, storage: str) -> float:
    """Return how far the text encoder on two ranks is from one rank's, relative to the largest value."""
    lay_out(mesh, 2)
    divisions = plan_divisions(mesh, served=SERVED, text_encoder_degree=2, shard_weights=False)
    one, _ = load(folder, "text_encoder", storage=storage)
    models, _ = load(folder, "text_encoder", divisions, storage=storage)
    with torch.no_grad():
        wanted, found = (
            encoder(input_ids=PROMPT, attention_mask=torch.ones_like(PROMPT), use_cache=False).last_hidden_state
            for encoder in (one.text_encoder, models.text_encoder)
        )
    return float((wanted - found).abs().max() / wanted.abs().max())


def two(mesh: Mesh, folder: Path) -> None:
    """Be one of two ranks."""
    find_torchao()
    model = folder / "model"
    report(
        mesh,
        folder,
        {
            "fp8, ulysses": lambda: transformer_off(mesh, model, "fp8", 2),
            "fp8, tensor": lambda: transformer_off(mesh, model, "fp8", 1, 1, 2),
            "fp8, text encoder": lambda: text_encoder_off(mesh, model, "fp8"),
            "int8, ulysses": lambda: transformer_off(mesh, model, "int8", 2),
        },
    )
