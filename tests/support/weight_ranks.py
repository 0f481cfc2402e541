"""What the ranks of the tests of divided weights do: models loaded in parts, compared with models loaded whole."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch.distributed.tensor import DTensor

from engine.checkpoint import open_checkpoint
from engine.models import loading
from engine.models.bundle import Models
from engine.parallel import weights
from engine.parallel.collectives import collect_json
from engine.parallel.compile import check_compiler, compile_blocks
from engine.parallel.guard import guard_collectives
from engine.parallel.layout import Layout
from engine.parallel.mesh import Mesh
from engine.parallel.sharding import apply_sequence_parallel, sequence_parallel_of
from engine.parallel.weights import held_bytes, plan_divisions
from engine.rank_options import PARTITIONS
from engine.stacks_shares import TRANSFORMER, Split
from engine.stages.base import PromptEmbeds, StageContext
from engine.stages.denoise import denoise
from tests.support.attention_cases import Case, make_inputs

CPU = torch.device("cpu")
TEXT_ROWS = (10, 11)
PINNED = 128
FEW_ROWS = Case(4, 1, 1, 1)
PROMPT = torch.arange(30)[None]
SERVED = frozenset({"text_encoder", "transformer"})
Found = dict[str, Any]


class CountedFile:
    """A safetensors file that counts the bytes that are read of it."""

    count = 0

    def __init__(self, tensors: Any) -> None:
        self._tensors = tensors

    def get_tensor(self, name: str) -> torch.Tensor:
        return self._counted(self._tensors.get_tensor(name))

    def get_slice(self, name: str) -> Any:
        return CountedSlice(self._tensors.get_slice(name))

    @staticmethod
    def _counted(tensor: torch.Tensor) -> torch.Tensor:
        CountedFile.count += tensor.nbytes
        return tensor


class CountedSlice:
    def __init__(self, stored: Any) -> None:
        self._stored = stored

    def __getitem__(self, index: Any) -> torch.Tensor:
        return CountedFile._counted(self._stored[index])


@contextmanager
def counted_reads() -> Iterator[None]:
    """Count in `CountedFile.count`."""
    plain = loading.safe_open

    @contextmanager
    def opened(*args: Any, **kwargs: Any) -> Iterator[CountedFile]:
        with plain(*args, **kwargs) as tensors:
            yield CountedFile(tensors)

    CountedFile.count = 0
    loading.safe_open = opened
    try:
        yield
    finally:
        loading.safe_open = plain


def load(
    folder: Path,
    component: str,
    divisions: Any = None,
    *,
    storage: str = "full",
    dtype: torch.dtype = torch.float32,
    elsewhere: loading.Elsewhere = lambda component, tensor: False,
) -> tuple[Models, int]:
    """Return a component and the bytes that loading it said to have read."""
    told: list[int] = []
    models = loading.load_models(
        open_checkpoint(folder, stages=("encode_prompt", "denoise")),
        device=CPU,
        dtype=dtype,
        keep=frozenset({component}),
        on_bytes=lambda name, done, total: told.append(done) or told.append(total),  # type: ignore[func-returns-value]
        divisions=divisions or {},
        storage=storage,
        elsewhere=elsewhere,
    )
    assert told[-2] == told[-1]
    return models, told[-1]


def latents(models: Models, rows: int = TEXT_ROWS[0], pad_seq_len: int | None = None) -> list[torch.Tensor]:
    """Return the latents after one forward."""
    embeds = torch.randn(1, rows, models.facts.text_dim, generator=torch.Generator().manual_seed(rows))
    ctx = StageContext(models, CPU, lambda step, total: None, lambda: None)
    conditioning = PromptEmbeds(embeds, torch.ones(rows, dtype=torch.long))
    made = denoise(ctx, conditioning, width=64, height=32, frames=22, steps=1, seed=3, pad_seq_len=pad_seq_len)
    return [made.video, made.audio]


def difference(first: list[torch.Tensor], second: list[torch.Tensor]) -> float:
    """Return the largest absolute difference."""
    return max(float((a - b).abs().max()) for a, b in zip(first, second, strict=True))


def open_all_groups(mesh: Mesh) -> None:
    """Make the groups of all layouts at once: torch remembers the first group of some ranks for good."""
    ranks = range(mesh.layout.world_size)
    pairs = [pair for pair in combinations(ranks, 2) if len(ranks) > len(pair)]
    mesh.open_data(CPU, timeout=60, teams=pairs)


def lay_out(mesh: Mesh, *degrees: int) -> None:
    """Give the ranks another layout (U, R, T)."""
    mesh.layout = Layout(mesh.layout.rank, mesh.layout.world_size, *degrees)


def divided(
    mesh: Mesh, folder: Path, *, shard: bool, component: str = "transformer", storage: str = "full"
) -> tuple[Models, int, int]:
    """Load this rank's part of a transformer; return it, the bytes read, and the bytes said to be read."""
    divisions = plan_divisions(mesh, served=SERVED, text_encoder_degree=1, shard_weights=shard)
    with counted_reads():
        models, told = load(folder, component, divisions, storage=storage)
    transformer = getattr(models, component)
    guard_collectives(transformer, mesh)
    apply_sequence_parallel(transformer, mesh, weights_axis="sequence" if shard else None)
    return models, CountedFile.count, told


def compare(mesh: Mesh, folder: Path, *degrees: int, shard: bool = False) -> Found:
    """Compare a layout with one rank."""
    lay_out(mesh, *degrees)
    one, _ = load(folder, "transformer")
    models, read, told = divided(mesh, folder, shard=shard)
    before = held_bytes(models.transformer)
    off = max(difference(latents(one, rows), latents(models, rows)) for rows in TEXT_ROWS)
    few = make_inputs(FEW_ROWS, one.transformer)
    with torch.no_grad():
        few_off = difference(*([*wrapped.transformer(**few)] for wrapped in (one, models)))
    return {
        "off": off,
        "few rows off": few_off,
        "read": read,
        "told": told,
        "held": [before, held_bytes(models.transformer)],
        "whole": held_bytes(one.transformer),
        "dirty": mesh.dirty,
    }


def refused(mesh: Mesh, folder: Path) -> list[str]:
    """Return why sharded weights refuse a forward on this rank alone, and on all ranks without dividing the rows."""
    lay_out(mesh, 2)
    models, _, _ = divided(mesh, folder, shard=True)
    parallel = sequence_parallel_of(models.transformer)
    assert parallel is not None
    told = []
    for ranks in ([mesh.layout.rank], [0, 1]):
        try:
            with parallel.using("local", ranks=ranks):
                told.append("")
        except ValueError as error:
            told.append(str(error))
    return told


def gathered(mesh: Mesh, folder: Path) -> list[str]:
    """Return the names of the parameters that differ in a bit once sharded weights are gathered."""
    lay_out(mesh, 2)
    one, _ = load(folder, "transformer")
    models, _, _ = divided(mesh, folder, shard=True)
    whole = dict(one.transformer.named_parameters())
    found = {
        name: parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        for name, parameter in models.transformer.named_parameters()
    }
    assert found.keys() == whole.keys()
    return [name for name, parameter in found.items() if not torch.equal(parameter, whole[name])]


def mispaired(mesh: Mesh, folder: Path) -> float:
    """Return how far off the result is when the feed-forward's gates are split as if they were values."""
    lay_out(mesh, 1, 1, mesh.layout.world_size)
    one, _ = load(folder, "transformer")
    plain = weights.TRANSFORMER
    weights.TRANSFORMER = dataclasses.replace(TRANSFORMER, layers={**TRANSFORMER.layers, "ff.net.0.proj": Split(0)})
    try:
        models, _, _ = divided(mesh, folder, shard=False)
    finally:
        weights.TRANSFORMER = plain
    return difference(latents(one), latents(models))


def planned(mesh: Mesh, *served: str) -> list[Any]:
    """Return what an engine that serves these components divides, and whether it holds on to the groups."""
    lay_out(mesh, 1, 1, 2)
    found = plan_divisions(mesh, served=frozenset(served), text_encoder_degree=2, shard_weights=False)
    return [sorted(found), mesh.pinned]


def encode(mesh: Mesh, folder: Path, degree: int) -> Found:
    """Compare the text encoder in parts with the whole one: largest difference, relative to the largest value."""
    lay_out(mesh, mesh.layout.world_size)
    if mesh.layout.rank >= degree:
        return {"held": 0}
    one, whole = load(folder, "text_encoder")
    divisions = plan_divisions(mesh, served=SERVED, text_encoder_degree=degree, shard_weights=False)
    with counted_reads():
        models, _ = load(folder, "text_encoder", divisions)
    with torch.no_grad():
        wanted, found = (
            encoder(input_ids=PROMPT, attention_mask=torch.ones_like(PROMPT), use_cache=False).last_hidden_state
            for encoder in (one.text_encoder, models.text_encoder)
        )
    off = float((wanted - found).abs().max() / wanted.abs().max())
    return {"off": off, "read": CountedFile.count, "whole": whole, "held": held_bytes(models.text_encoder)}


def compiled(mesh: Mesh, folder: Path, *degrees: int, shard: bool = False, backend: str = "eager") -> Found:
    """Compile, run two prompts of a pinned length, count the graphs after each."""
    lay_out(mesh, *degrees)
    models, _, _ = divided(mesh, folder, shard=shard)
    plain = [latents(models, rows, PINNED) for rows in TEXT_ROWS]
    compile_blocks(models.transformer, backend=backend)
    torch.compiler.reset()
    counters.clear()
    graphs, off = [], []
    for rows, wanted in zip(TEXT_ROWS, plain, strict=True):
        off.append(difference(wanted, latents(models, rows, PINNED)))
        graphs.append(counters["stats"]["unique_graphs"])
    breaks = sum(counters["graph_break"].values())
    if backend == "eager":
        latents(models, TEXT_ROWS[0])
        graphs.append(counters["stats"]["unique_graphs"])
    return {"off": max(off), "graphs": graphs, "breaks": breaks}


def both_compiled(mesh: Mesh, folder: Path) -> Found:
    """Compile both partitions and run them in turn; count the graphs after each."""
    lay_out(mesh, 2)
    made = [divided(mesh, folder, shard=False, component=name)[0] for name in PARTITIONS]
    models = [made[0], dataclasses.replace(made[1], transformer=made[1].transformer_ref)]
    plain = [latents(one, TEXT_ROWS[0], PINNED) for one in models]
    for one in models:
        compile_blocks(one.transformer, backend="eager")
    torch.compiler.reset()
    counters.clear()
    graphs, off = [], []
    for one, wanted in zip(models, plain, strict=True):
        off.append(difference(wanted, latents(one, TEXT_ROWS[0], PINNED)))
        graphs.append(counters["stats"]["unique_graphs"])
    return {"off": max(off), "apart": difference(*plain), "graphs": graphs}


def two(mesh: Mesh, folder: Path) -> None:
    """Be one of two ranks."""
    model = folder / "model"
    cases: dict[str, Callable[[], Any]] = {
        "tensor": lambda: compare(mesh, model, 1, 1, 2),
        "sharded ulysses": lambda: compare(mesh, model, 2, shard=True),
        "ulysses": lambda: compare(mesh, model, 2),
        "sharded ring": lambda: compare(mesh, model, 1, 2, shard=True),
        "refused": lambda: refused(mesh, model),
        "differing in a bit": lambda: gathered(mesh, model),
        "planned": lambda: [planned(mesh, *SERVED), planned(mesh, "transformer"), planned(mesh, "vae")],
        "mispaired": lambda: mispaired(mesh, model),
        "text encoder": lambda: encode(mesh, model, 2),
        "compiled ulysses": lambda: compiled(mesh, model, 2),
        "compiled tensor": lambda: compiled(mesh, model, 1, 1, 2),
        "compiled sharded": lambda: compiled(mesh, model, 2, shard=True),
        "both partitions compiled": lambda: both_compiled(mesh, model),
    }
    report(mesh, folder, cases)


def inductor(mesh: Mesh, folder: Path) -> None:
    """Be one of two ranks that compile for real."""
    check_compiler(CPU)
    report(mesh, folder, {"inductor": lambda: compiled(mesh, folder / "model", 2, backend="inductor")})


def four(mesh: Mesh, folder: Path) -> None:
    """Be one of four ranks."""
    model = folder / "model"
    cases: dict[str, Callable[[], Any]] = {
        "tensor": lambda: compare(mesh, model, 1, 1, 4),
        "tensor and ulysses": lambda: compare(mesh, model, 2, 1, 2),
        "tensor and ring, sharded": lambda: compare(mesh, model, 1, 2, 2, shard=True),
        "sharded ulysses and ring": lambda: compare(mesh, model, 2, 2, shard=True),
        "text encoder": lambda: encode(mesh, model, 4),
        "text encoder on two": lambda: encode(mesh, model, 2),
    }
    report(mesh, folder, cases)


def report(mesh: Mesh, folder: Path, cases: dict[str, Callable[[], Any]]) -> None:
    open_all_groups(mesh)
    found = {name: case() for name, case in cases.items()}
    everywhere = collect_json(found, mesh)
    if mesh.layout.rank == 0:
        (folder / "found.json").write_text(json.dumps(everywhere))
