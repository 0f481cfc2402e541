"""What the ranks of the tests of shared host copies do."""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from engine.models import loading
from engine.models.bundle import Models
from engine.models.home import plain_parts
from engine.offload.host import HostCopies, read_elsewhere, share_host_copies
from engine.offload.owner import ModelOwner, place_models
from engine.parallel.collectives import collect_json
from engine.parallel.guard import guard_collectives
from engine.parallel.mesh import Mesh
from engine.parallel.sharding import apply_sequence_parallel
from engine.parallel.weights import plan_divisions
from engine.placement import Needs
from engine.rank_options import RankOptions
from tests.support.memory import proportional_bytes
from tests.support.side_folder import find_torchao
from tests.support.weight_ranks import (
    CPU,
    SERVED,
    CountedFile,
    counted_reads,
    difference,
    latents,
    lay_out,
    load,
    report,
)

MB = 10**6
BIG = 48 * MB
Found = dict[str, Any]


def options_of(mesh: Mesh, **more: Any) -> RankOptions:
    """Return the options of ranks laid out as ``mesh`` is, which stream the transformers' blocks."""
    layout = mesh.layout
    given = {"offload": ("dit",), "ulysses_degree": layout.ulysses_degree, "tp_degree": layout.tp_degree, **more}
    return RankOptions(model="", device="cpu", dtype="fp32", stages=(), link="", data_timeout=60, **given)


def take_in_turns(copies: HostCopies, mesh: Mesh, take: Callable[[], Any]) -> Any:
    """Let those that make copies take theirs first, then the others."""
    made = None if copies.waits else take()
    copies.tell(mesh)
    made = take() if copies.waits else made
    collect_json(None, mesh)
    copies.close()
    return made


def memory(mesh: Mesh, shared: bool) -> Found:
    """Return what a copy of `BIG` bytes on each rank takes of this one, proportionally."""
    lay_out(mesh, mesh.layout.world_size)
    options = options_of(mesh, host_copies="shared" if shared else "own")
    copies = share_host_copies(options, ("transformer",), rank=mesh.layout.rank, device=CPU)
    collect_json(None, mesh)
    before = proportional_bytes()

    def take() -> torch.Tensor:
        flat, filled = copies.take("transformer/transformer_blocks.0", BIG)
        if not filled:
            flat.copy_(torch.arange(BIG // 8).view(torch.uint8))
        return flat

    flat = take_in_turns(copies, mesh, take)
    total = int(flat.view(torch.int64).sum())
    collect_json(None, mesh)
    taken = proportional_bytes() - before
    # Nobody may give its part back before all have looked.
    collect_json(None, mesh)
    return {"taken": taken, "right": total == sum(range(BIG // 8)), "waits": copies.waits}


def streamed(mesh: Mesh, folder: Path, *degrees: int, **more: Any) -> Found:
    """Compare ranks that stream from shared copies with ranks that have copies of their own, or stream nothing."""
    lay_out(mesh, *degrees)
    options = options_of(mesh, **more)
    own = dataclasses.replace(options, host_copies="own")
    plain = _load(mesh, folder, options, elsewhere=lambda component, tensor: False)[0]
    resident = latents(plain)
    apart, _ = _stream(mesh, folder, own)
    together, found = _stream(mesh, folder, options)
    return found | {"off resident": difference(resident, together), "off own": difference(apart, together)}


def _stream(mesh: Mesh, folder: Path, options: RankOptions) -> tuple[list[torch.Tensor], Found]:
    """Return the latents of a forward that streams its blocks, and what was read and is held for it."""
    copies = share_host_copies(options, ("transformer",), rank=mesh.layout.rank, device=CPU)
    models, read = _load(mesh, folder, options, elsewhere=functools.partial(read_elsewhere, copies, options))
    placement = place_models(models, options, needs=Needs({}))
    owner = take_in_turns(copies, mesh, lambda: ModelOwner(models, placement, CPU, copies, rank=mesh.layout.rank))
    with owner.using("transformer", stage="denoise"), owner.projections(models.transformer):
        owner.check()
        made = latents(models)
    owner.remove()
    owner.check()
    meta = [name for name, tensor in models.transformer.state_dict().items() if tensor.is_meta]
    weights = placement.components["transformer"].weights
    units = [unit for units in (*weights.stacks.values(), weights.modulation) for unit in units]
    sums = {unit.name: _checksum(models.transformer.get_submodule(unit.name)) for unit in units}
    return made, {"read": read, "outside": weights.outside, "all": weights.bytes, "meta": meta, "sums": sums}


def _checksum(module: torch.nn.Module) -> int:
    """Return a number that tells whether this rank's part of the weights is another's."""
    parts = [part for _, tensor in module.named_parameters() for _, part in plain_parts(tensor)]
    return sum(zlib.crc32(part.contiguous().view(torch.uint8).numpy().tobytes()) for part in parts)


def _load(mesh: Mesh, folder: Path, options: RankOptions, *, elsewhere: loading.Elsewhere) -> tuple[Models, int]:
    divisions = plan_divisions(mesh, served=SERVED, text_encoder_degree=1, shard_weights=False)
    with counted_reads():
        models, told = load(folder, "transformer", divisions, storage=options.block_storage, elsewhere=elsewhere)
    assert told == CountedFile.count
    guard_collectives(models.transformer, mesh)
    apply_sequence_parallel(models.transformer, mesh)
    return models, told


def two(mesh: Mesh, folder: Path) -> None:
    """Be one of two ranks."""
    find_torchao()
    model = folder / "model"
    cases: dict[str, Callable[[], Any]] = {
        "shared": lambda: memory(mesh, True),
        "own": lambda: memory(mesh, False),
        "streamed": lambda: streamed(mesh, model, 2),
        "some resident": lambda: streamed(mesh, model, 2, resident_blocks=1, modulation_tables_mb=0),
        "fp8": lambda: streamed(mesh, model, 2, block_storage="fp8"),
        "int8": lambda: streamed(mesh, model, 2, block_storage="int8"),
        "modulation alone": lambda: streamed(mesh, model, 2, offload=()),
    }
    report(mesh, folder, cases)


def four(mesh: Mesh, folder: Path) -> None:
    """Be one of four ranks: two parts, each on two of them."""
    model = folder / "model"
    report(mesh, folder, {"shared": lambda: memory(mesh, True), "parts": lambda: streamed(mesh, model, 2, 1, 2)})
