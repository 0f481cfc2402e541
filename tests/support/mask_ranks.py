"""What the ranks of the tests of edits do: an edit in every layout, compared with one rank's."""

from __future__ import annotations

import dataclasses
import inspect
import json
from pathlib import Path
from typing import Any

import torch

from engine.conditioning import Conditions, EncodedCondition
from engine.masking import Edit
from engine.models.bundle import Models
from engine.offload.modulation import KIND, Modulation
from engine.parallel.collectives import collect_json
from engine.parallel.compile import compile_blocks
from engine.parallel.mesh import Mesh
from engine.stages.base import Latents, PromptEmbeds
from engine.stages.denoise import denoise

from .stages import context
from .weight_ranks import divided, lay_out, load, open_all_groups

LAYOUTS: dict[int, dict[str, dict[str, Any]]] = {
    2: {
        "ulysses": {"degrees": (2,)},
        "ring": {"degrees": (1, 2)},
        "tensor": {"degrees": (1, 1, 2)},
        "sharded": {"degrees": (2,), "shard": True},
        "compiled": {"degrees": (2,), "compiled": True},
    },
    4: {
        "ulysses and ring": {"degrees": (2, 2)},
        "ring and tensor, sharded": {"degrees": (1, 2, 2), "shard": True},
    },
}
PADS = (None, 192)
TEXT_ROWS = 9
SIZES: dict[str, Any] = {"width": 64, "height": 32, "frames": 22, "steps": 3, "seed": 3}
Found = dict[str, Any]


def _draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def edit() -> Edit:
    """Return an edit whose masks have many levels, zeros and ones among them."""
    video = (_draw(3, 7, 2, 4) + 0.5).clamp(0, 1)
    return Edit(_draw(1, 1, 24, 7, 2, 4), _draw(2, 1, 32, 2, 37), video, (_draw(4, 2, 37) + 0.5).clamp(0, 1))


def make(
    models: Models, what: Edit | None, *, pad_seq_len: int | None = None, modulation: Modulation | None = None
) -> Latents:
    """Return what denoising makes of an edit beside a guide with sound."""
    embeds = PromptEmbeds(_draw(5, 1, TEXT_ROWS, models.facts.text_dim), torch.ones(TEXT_ROWS, dtype=torch.long))
    guide = Conditions((EncodedCondition(17, _draw(6, 1, 24, 1, 2, 4), _draw(7, 1, 32, 2, 5)),))
    ctx = dataclasses.replace(context(models), modulation=modulation or Modulation())
    return denoise(ctx, embeds, **SIZES, pad_seq_len=pad_seq_len, conditions=guide, edit=what)


def values(latents: Latents) -> tuple[torch.Tensor, torch.Tensor]:
    """Return both streams."""
    return latents.video, latents.audio


def different_bits(first: Latents, second: Latents) -> int:
    """Return how many values differ in a bit."""
    pairs = zip(values(first), values(second), strict=True)
    return sum(int((a.contiguous().view(torch.int32) != b.contiguous().view(torch.int32)).sum()) for a, b in pairs)


def kept_but_changed(made: Latents, what: Edit) -> int:
    """Return how many kept values are not the source's, to the bit."""
    source = Latents(what.video, what.audio)
    masks = (what.video_mask, what.audio_mask)
    restored = [
        torch.where((mask == 0).expand(clean.shape), result, clean)
        for result, clean, mask in zip(values(made), values(source), masks, strict=True)
    ]
    return different_bits(Latents(*restored), source)


class Times:
    """Keeps the times of the rows that this rank's transformer runs, of the last forward."""

    def __init__(self, transformer: Any) -> None:
        self.rows: list[float] = []
        self._signature = inspect.signature(transformer.forward)
        # After the hook that divides the rows: what arrives here is this rank's own.
        self._handle = transformer.register_forward_pre_hook(self._note, with_kwargs=True)

    def _note(self, _: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        inputs = self._signature.bind(*given, **named).arguments
        self.rows = inputs["timestep"][inputs["timestep_indices"]].tolist()

    def remove(self) -> None:
        """Take the hook off."""
        self._handle.remove()


def with_and_without_tables(mesh: Mesh, models: Models, what: Edit) -> Found:
    """Return by how many bits tables change the result, what they hold and moved, and the blocks computed here."""
    computed: list[int] = []
    modulation, transformer = Modulation(), models.transformer
    handles = [
        block.adaln_proj.register_forward_pre_hook(lambda *_, number=number: computed.append(number))
        for number, block in enumerate(transformer.transformer_blocks)
    ]
    mesh.account.reset()
    tables = make(models, what, modulation=modulation)
    entry = mesh.account.entries[KIND]
    for handle in handles:
        handle.remove()
    return {
        "changed by tables": different_bits(tables, make(models, what, modulation=Modulation(0))),
        "tables": {"held": modulation.held, "moved": [entry.sent, entry.received], "computed": computed},
    }


def whole_times(models: Models) -> list[float]:
    """Return the times of all rows of the last forward, from one rank."""
    times = Times(models.transformer)
    make(models, edit())
    times.remove()
    return times.rows


def compare(
    mesh: Mesh, folder: Path, one: Models, *, degrees: tuple[int, ...], shard: bool = False, compiled: bool = False
) -> Found:
    """Return how an edit in one layout differs from one rank's, and the times of this rank's rows."""
    lay_out(mesh, *degrees)
    models, _, _ = divided(mesh, folder, shard=shard)
    if compiled:
        compile_blocks(models.transformer, backend="eager")
    what, times = edit(), Times(models.transformer)
    alone, made = make(one, what), [make(models, what, pad_seq_len=pad) for pad in PADS]
    times.remove()
    plain = make(models, None)
    ones = make(models, Edit(what.video, what.audio, torch.ones(7, 2, 4), torch.ones(2, 37)))
    pairs = [(ours, whole) for found in made for ours, whole in zip(*map(values, (found, alone)), strict=True)]
    return {
        **with_and_without_tables(mesh, models, what),
        "off": max(float((ours - whole).abs().max()) for ours, whole in pairs),
        "kept but changed": sum(kept_but_changed(found, what) for found in (alone, *made)),
        "ones but not plain": different_bits(ones, plain),
        "from plain": float((made[0].video - plain.video).abs().max()),
        "times": times.rows,
        "pinned": PADS[1],
        "sharded": shard,
        "sequence": mesh.layout.sequence_degree,
    }


def run(mesh: Mesh, folder: Path) -> None:
    """Be one of two or four ranks; rank 0 writes what all of them found."""
    open_all_groups(mesh)
    one, _ = load(folder / "model", "transformer")
    layouts = LAYOUTS[mesh.layout.world_size]
    found = {name: compare(mesh, folder / "model", one, **layout) for name, layout in layouts.items()}
    everywhere = collect_json({**found, "whole": whole_times(one)}, mesh)
    if mesh.layout.rank == 0:
        (folder / "found.json").write_text(json.dumps(everywhere))
