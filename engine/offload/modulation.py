"""Modulation tables: what the AdaLN projections make of a run's times, computed once before its first forward.

A projection (`placement_modulation`) sees the times of a step and nothing else, and all steps' times are known. So each
is called once for all steps, with one product a step of exactly that step's times (other groupings change bits), and
is not needed again: while tables are in use the blocks do without it, and it need not be on the device. The tables rest
in host memory, and the device holds that of the step that runs. The ranks that share the sequence share the blocks out
and gather what they made; those that share each layer's weights call it together.
Promise: outputs equal those without tables bit for bit where the ranks compute alike; every rank computes or none does;
whatever happens, the blocks have their projections back afterwards. Raises `DataGroupError` and what a forward raises.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from diffusers.models.modeling_utils import get_parameter_dtype
from torch import nn

from ..contract.words import bytes_in_words
from ..parallel.collectives import gather_uneven
from ..parallel.guard import torch_collectives
from ..parallel.sharding import SequenceParallel, sequence_parallel_of
from ..placement_modulation import (
    FACTORS,
    MODALITIES,
    keeps_modulation_apart,
    modulation_table_bytes,
    tables_fit,
)
from ..rank_options import OffloadOptions

logger = logging.getLogger(__name__)

KIND = "modulation"
"""What the gathered bytes count as in a mesh's account."""
Show = Callable[[int], None]
"""Says that the forward of a step, counted from 0, comes next."""
Projections = Callable[[Any], AbstractContextManager[None]]
"""Given a transformer: its blocks' projections can be called inside the context, from wherever they are kept."""


@dataclass(frozen=True)
class _Tables:
    """The tables of one run, in host memory.

    Attributes:
        transformer: whose. times: [N] of each step. numbers: the table of each step.
        rows: each table, [blocks, N * modalities, 6 * width]: of every block what its projection returns, side by side.
    """

    transformer: Any
    times: Sequence[torch.Tensor]
    numbers: Sequence[int]
    rows: Sequence[torch.Tensor]

    def serve(self, transformer: Any, times: Sequence[torch.Tensor]) -> bool:
        """Whether they are those of ``transformer`` and of steps with these ``times``."""
        return (
            self.transformer is transformer
            and len(self.times) == len(times)
            and all(torch.equal(a, b) for a, b in zip(self.times, times, strict=True))
        )


class Modulation:
    """How this rank's transformers are modulated: by tables if they fit, else by their projections in every forward."""

    def __init__(
        self,
        tables_mb: int = OffloadOptions.modulation_tables_mb,
        *,
        projections: Projections = lambda transformer: nullcontext(),
    ) -> None:
        """Prepare.

        Args:
            tables_mb: see `OffloadOptions.modulation_tables_mb`; the same on all ranks.
            projections: brings a transformer's projections, where something else keeps them.
        """
        self._tables_mb = tables_mb
        self._projections = projections
        self._made: _Tables | None = None

    @contextmanager
    def applied(self, transformer: Any, times: Sequence[torch.Tensor], device: torch.device) -> Iterator[Show]:
        """Let tables stand in for the projections of ``transformer`` for the time of the block, if they fit.

        They are computed here unless they are those of the run before. All ranks of the active strategy call it
        together, where data collectives are allowed, and each forward inside must have been shown.

        Args:
            times: [N] fp32 of each step, distinct, in the order of the forward's ``timestep``; on the CPU.
            device: where the forwards run.
        """
        tables = self._tables(transformer, times, device)
        if tables is None:
            with self._projections(transformer):
                yield lambda step: None
            return
        with _InPlace(tables, device) as in_place:
            yield in_place.show

    @property
    def held(self) -> int:
        """Bytes of the tables that are kept in host memory."""
        return 0 if self._made is None else sum(rows.nbytes for rows in self._made.rows)

    def forget(self) -> None:
        """Drop the tables."""
        self._made = None

    def _tables(self, transformer: Any, times: Sequence[torch.Tensor], device: torch.device) -> _Tables | None:
        parallel = sequence_parallel_of(transformer)
        sharded = parallel is not None and parallel.shares_weights
        if not keeps_modulation_apart(modulation_tables_mb=self._tables_mb, shard_weights=sharded):
            return None
        if self._made is not None and self._made.serve(transformer, times):
            return self._made
        self._made = None
        distinct, numbers = _distinct(times)
        levels, level_bytes = [step.numel() for step in distinct], _level_bytes(transformer)
        if not tables_fit(levels, allowed=self._tables_mb * 10**6, level_bytes=level_bytes):
            logger.info(
                "no modulation tables: those of %d steps would take %s, the largest %s; --modulation-tables-mb is %d",
                len(times),
                *(bytes_in_words(count * level_bytes) for count in (sum(levels), max(levels))),
                self._tables_mb,
            )
            return None
        with self._projections(transformer):
            rows = _compute(transformer, [step.to(device) for step in distinct], parallel)
        self._made = _Tables(transformer, times, numbers, rows)
        return self._made


def _distinct(times: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], list[int]]:
    """Return the different ones among ``times``, and the place of each among those."""
    distinct: list[torch.Tensor] = []
    numbers = []
    for step in times:
        number = next((i for i, other in enumerate(distinct) if torch.equal(step, other)), len(distinct))
        if number == len(distinct):
            distinct.append(step)
        numbers.append(number)
    return distinct, numbers


def _level_bytes(transformer: Any) -> int:
    """Return the bytes of a table of one level."""
    projection = transformer.transformer_blocks[0].adaln_proj
    return modulation_table_bytes(
        [1],
        blocks=len(transformer.transformer_blocks),
        width=projection.hidden_size,
        element=get_parameter_dtype(projection.linear).itemsize,
    )


def _compute(transformer: Any, times: Sequence[torch.Tensor], parallel: SequenceParallel | None) -> list[torch.Tensor]:
    """Return `_Tables.rows` of ``times``, whole on every rank of the active strategy.

    In each round every rank computes one block's tables, and all get them: on the device there are never more.
    """
    blocks = transformer.transformer_blocks
    projection = blocks[0].adaln_proj
    width, dtype = FACTORS * projection.hidden_size, get_parameter_dtype(projection.linear)
    heights = [MODALITIES * step.numel() for step in times]
    tables = [torch.empty((len(blocks), height, width), dtype=dtype) for height in heights]
    ranks, own = (1, 0) if parallel is None else (len(parallel.strategy.weights), parallel.strategy.index)
    with _calling(parallel):
        embeddings = [_embed(transformer, step) for step in times]
    for first in range(0, len(blocks), ranks):
        mine = times[0].new_empty(0, dtype=dtype)
        if first + own < len(blocks):
            with _calling(parallel):
                mine = _project(blocks[first + own].adaln_proj, embeddings)
        counts = [sum(heights) * width if first + rank < len(blocks) else 0 for rank in range(ranks)]
        for number, made in enumerate(_exchange(mine, counts, parallel)[: len(blocks) - first], first):
            for table, rows in zip(tables, torch.split(made.cpu().view(-1, width), heights), strict=True):
                table[number] = rows
    return tables


def _calling(parallel: SequenceParallel | None) -> AbstractContextManager[None]:
    """Return what the transformer's layers are called in: where ranks share them, they communicate."""
    split = parallel is not None and parallel.mesh.layout.tp_degree > 1
    return torch_collectives(parallel.mesh) if parallel is not None and split else nullcontext()


def _exchange(mine: torch.Tensor, counts: Sequence[int], parallel: SequenceParallel | None) -> list[torch.Tensor]:
    """Return what each rank of the active strategy made, [counts[i]] values; this one's is ``mine``."""
    axis = None if parallel is None else parallel.strategy.axis
    if parallel is None or axis is None:
        return [mine]
    return gather_uneven(mine, counts, mesh=parallel.mesh, axis=axis, kind=KIND)


def _embed(transformer: Any, times: torch.Tensor) -> torch.Tensor:
    """Return the embedding of ``times`` [N] as the transformer's forward makes it."""
    embedding: torch.Tensor = transformer.time_embedder(
        transformer.time_proj(times).to(get_parameter_dtype(transformer.time_embedder))
    )
    return embedding


def _project(projection: nn.Module, embeddings: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return what ``projection`` makes of each of ``embeddings``, flat, one after the other.

    The module is called once for all, so that what brings its weights for a call does so once.
    """
    plain, own = projection.forward, projection.__dict__.get("forward")
    projection.forward = lambda several: [torch.cat(plain(embedding), -1).flatten() for embedding in several]
    try:
        return torch.cat(projection(embeddings))
    finally:
        del projection.forward
        if own is not None:
            projection.forward = own


class _Known(nn.Module):
    """Stands in for the projection of a block that is given a table's rows in place of the time embedding."""

    def forward(self, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return two shifts, scales and gates of ``rows`` [N * modalities, 6 * width]."""
        return rows.chunk(FACTORS, dim=-1)


class _InPlace:
    """Tables in use: each block is given its rows of the step that was shown.

    They come as an argument, so that a compiled block sees one more tensor of its kind, not another module.
    """

    def __init__(self, tables: _Tables, device: torch.device) -> None:
        self._tables = tables
        self._device = device
        self._number = -1
        self._rows: torch.Tensor | None = None
        self._undo = ExitStack()

    def show(self, step: int) -> None:
        """See `Show`."""
        if self._number != self._tables.numbers[step]:
            self._number = self._tables.numbers[step]
            # The one before goes first: there is room for one.
            self._rows = None
            self._rows = self._tables.rows[self._number].to(self._device)

    def __enter__(self) -> _InPlace:
        known = _Known()
        for number, block in enumerate(self._tables.transformer.transformer_blocks):
            hook = block.register_forward_pre_hook(self._hook(number, block), with_kwargs=True)
            self._undo.callback(hook.remove)
            self._undo.callback(setattr, block, "adaln_proj", block.adaln_proj)
            block.adaln_proj = known
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def _hook(self, number: int, block: nn.Module) -> Callable[..., Any]:
        signature = inspect.signature(block.forward)

        def give(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            assert self._rows is not None, "a forward must be shown first"
            bound = signature.bind(*args, **kwargs)
            bound.arguments["temb"] = self._rows[number]
            return bound.args, bound.kwargs

        return give
