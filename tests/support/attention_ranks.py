"""What the ranks of the attention tests do: every case under every layout of their number, against one rank.

`everything` writes one JSON file for each rank; the tests read them.
"""

from __future__ import annotations

import dataclasses
import json
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from engine.parallel import attention, ring
from engine.parallel.layout import Layout
from engine.parallel.mesh import Mesh
from engine.parallel.sharding import SequenceParallel, apply_sequence_parallel
from tests.support.attention_cases import CASES, Case, make_inputs, make_layout, make_transformer
from tests.support.attention_runs import mixed_runs

Found = dict[str, Any]
LAYOUTS = {2: ((2, 1), (1, 2)), 3: ((3, 1), (1, 3)), 4: ((2, 2), (4, 1), (1, 4))}
"""(U, R) by number of ranks."""
UNEVEN = (1.0, 2.5, 0.5, 3.0)


def everything(mesh: Mesh, folder: Path) -> None:
    """Run all cases under all layouts."""
    found: Found = {}
    with torch.no_grad():
        for degrees in LAYOUTS[mesh.layout.world_size]:
            lay_out(mesh, degrees)
            found["{}x{}".format(*degrees)] = {
                "cases": {case.label: run_case(case, mesh) for case in CASES},
                "weighted": run_case(CASES[2], mesh, weights=UNEVEN[: mesh.layout.world_size]),
                "bf16": run_bf16(CASES[2], mesh),
                "controls": run_controls(mesh),
                "rows": rows_computed(CASES[3], mesh),
                "ring": ring_events(mesh) if degrees[1] > 1 else None,
                "mixed": mixed_runs(mesh, folder),
            }
    (folder / f"rank{mesh.layout.rank}.json").write_text(json.dumps(found))


def lay_out(mesh: Mesh, degrees: tuple[int, int]) -> None:
    """Put the mesh's ranks into another layout."""
    mesh.layout = Layout(mesh.layout.rank, mesh.layout.world_size, *degrees)
    mesh.rebuild_data()


def targets(outputs: Any, case: Case) -> list[torch.Tensor]:
    """Return the outputs of the target rows, video then audio."""
    return [outputs[0][:, case.video_conditions :].float(), outputs[1][:, case.audio_conditions :].float()]


def differences(first: Any, second: Any, case: Case) -> list[float]:
    """Return the largest difference of the video rows and of the audio rows."""
    return [float((a - b).abs().max()) for a, b in zip(targets(first, case), targets(second, case), strict=True)]


def wrapped(model: Any, case: Case) -> Any:
    """Run a wrapped transformer."""
    return model(**make_inputs(case, model), **make_layout(case).sequence_inputs())


def run_case(case: Case, mesh: Mesh, weights: tuple[float, ...] | None = None) -> Found:
    """Compare one forward of all ranks with one rank's, without the padding there; count the bytes."""
    model = make_transformer(case.heads)
    alone = model(**make_inputs(dataclasses.replace(case, pad=None), model))
    parallel = apply_sequence_parallel(model, mesh, rank_weights=weights)
    mesh.account.reset()
    together = wrapped(model, case)
    books = {kind: dataclasses.asdict(entry) for kind, entry in mesh.account.entries.items()}
    with parallel.using("local"):
        pinned = wrapped(model, case)
    conditions = torch.cat(
        [together[0][:, : case.video_conditions].flatten(), together[1][:, : case.audio_conditions].flatten()]
    )
    shard = parallel.strategy.shard(case.pad or case.used, used=case.used)
    parallel.remove()
    removed = model(**make_inputs(dataclasses.replace(case, pad=None), model))
    return {
        "together": differences(alone, together, case),
        "pinned on one rank": differences(alone, pinned, case),
        "removed": differences(alone, removed, case),
        "conditions": float(conditions.abs().sum()),
        "books": books,
        "valid": shard.rows.valid,
        "counts": shard.rows.counts,
        "heads": parallel.strategy.heads(case.heads),
        "layers": len(model.transformer_blocks),
    }


def run_bf16(case: Case, mesh: Mesh) -> Found:
    """Measure the error of bf16 against one rank's fp32, on one rank and on all."""
    exact = make_transformer(case.heads)
    reference = exact(**make_inputs(dataclasses.replace(case, pad=None), exact))
    model = make_transformer(case.heads, torch.bfloat16)
    alone = model(**make_inputs(dataclasses.replace(case, pad=None), model))
    apply_sequence_parallel(model, mesh)
    return {
        "alone": differences(reference, alone, case),
        "together": differences(reference, wrapped(model, case), case),
    }


def rows_computed(case: Case, mesh: Mesh) -> Found:
    """Return how many rows each part of the transformer computes on this rank, and how many are its own."""
    model = make_transformer(case.heads)
    parallel = apply_sequence_parallel(model, mesh)
    watched = {
        name: model.get_submodule(name)
        for name in ("rope", "proj_in", "audio_proj_in", "context_embedder", "transformer_blocks.0", "proj_out")
    }
    seen: Found = {}
    for name, module in watched.items():
        # Rows are the dim before the last, of [B, R, C] and of positions [R, 3] alike.
        module.register_forward_hook(lambda _, args, __, name=name: seen.__setitem__(name, args[0].shape[-2]))
    wrapped(model, case)
    start, stop = parallel.strategy.shard(case.pad or case.used, used=case.used).bounds
    layout = make_layout(case)

    def own(indices: torch.Tensor) -> int:
        return int(((indices >= start) & (indices < stop)).sum())

    expected = {
        "rope": stop - start,
        "proj_in": own(layout.video_indices),
        "audio_proj_in": own(layout.audio_indices),
        "context_embedder": case.text,
        "transformer_blocks.0": stop - start,
        "proj_out": stop - start,
    }
    return {"seen": seen, "expected": expected}


def run_controls(mesh: Mesh) -> Found:
    """Break the attention and measure how far off the result is."""
    case = CASES[3]
    model = make_transformer(case.heads)
    alone = model(**make_inputs(dataclasses.replace(case, pad=None), model))
    apply_sequence_parallel(model, mesh)
    inputs = make_inputs(case, model)
    with replaced(attention, "sequence_attention", own_rows_only):
        silent = wrapped(model, case)
    everything_valid = model(**inputs)
    refused = "nothing"
    shard = SequenceParallel(make_transformer(1), mesh).strategy.shard(64, used=50)
    rows = torch.zeros(1, shard.rows.counts[shard.strategy.index], 1, 8)
    try:
        attention.sequence_attention(rows, rows, rows, shard=shard, mesh=mesh, causal=True)
    except ValueError as error:
        refused = str(error)
    return {
        "without communication": differences(alone, silent, case),
        "padding attended to": differences(alone, everything_valid, case),
        "causal": refused,
        "causal difference": causal_difference(mesh),
    }


def causal_difference(mesh: Mesh) -> float:
    """Compare causal attention over 37 rows of 4 heads with torch's."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 37, 4, 16, generator=generator) for _ in range(3))
    whole = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
    ).transpose(1, 2)
    shard = SequenceParallel(make_transformer(1), mesh).strategy.shard(37)
    start, stop = shard.bounds
    mine = attention.sequence_attention(
        q[:, start:stop], k[:, start:stop], v[:, start:stop], shard=shard, mesh=mesh, causal=True
    )
    return float((mine - whole[:, start:stop]).abs().max())


def own_rows_only(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **_: Any) -> torch.Tensor:
    """Attend over this rank's rows alone."""
    if not query.shape[1]:
        return query
    return torch.nn.functional.scaled_dot_product_attention(
        query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    ).transpose(1, 2)


def ring_events(mesh: Mesh) -> Found:
    """Return what one ring attention did, in order (posts, attentions and waits, by number of the block), and how many
    remote blocks were in memory at each post.
    """
    events: list[str] = []
    alive: list[int] = []
    blocks: list[weakref.ref[torch.Tensor]] = []
    counts = {"post": 0, "attend": 0}
    post, attend = ring.start_transfer, ring.attend_block

    def noting_post(sent: torch.Tensor, received: torch.Tensor, **kwargs: Any) -> Any:
        transfer = post(sent, received, **kwargs)
        blocks.append(weakref.ref(received))
        alive.append(sum(block() is not None for block in blocks))
        counts["post"] += 1
        number, wait = counts["post"], transfer.wait
        events.append(f"post {number}")

        def noting_wait() -> None:
            events.append(f"wait {number}")
            wait()

        transfer.wait = noting_wait
        return transfer

    def noting_attend(*args: Any, **kwargs: Any) -> Any:
        events.append(f"attend {counts['attend']}")
        counts["attend"] += 1
        return attend(*args, **kwargs)

    shard = SequenceParallel(make_transformer(1), mesh).strategy.shard(40)
    rows = torch.randn(1, shard.valid, 4, 16)
    with replaced(ring, "start_transfer", noting_post), replaced(ring, "attend_block", noting_attend):
        attention.sequence_attention(rows, rows, rows, shard=shard, mesh=mesh)
    return {"events": events, "alive": alive}


@contextmanager
def replaced(module: Any, name: str, double: Callable[..., Any]) -> Iterator[None]:
    """Put ``double`` in place of a function for the time of the block."""
    before = getattr(module, name)
    setattr(module, name, double)
    try:
        yield
    finally:
        setattr(module, name, before)
