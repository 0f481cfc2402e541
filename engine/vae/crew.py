"""The ranks that share a VAE's work, and how units of it are dealt out and gathered.

A unit is one tile of one chunk in time. All units of a call have the same shape and cost, so that balancing counts
balances cost; ranks of unlike speed get counts in proportion to their weights, a rank without the VAE none. Units go
in order, chunk by chunk, in rounds of about as many as there are ranks; after each round the first rank, which answers,
receives what the others made. Promise: ``boundary`` before each round, and after the last if tiles travel, on every
rank alike; a chunk is handed on while the other ranks work on the next round; the answering rank holds the tiles of one
chunk and one round; an error in computing leaves no data collective unfinished. Raises what ``boundary`` raises,
`DataGroupError`, and `JobError` ``out_of_memory`` naming what holds the memory.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch

from ..devices_memory import attempt, exhausted, free_caches
from ..models.bundle import Models
from ..parallel.collectives import DataGroupError, bring_to_first
from ..parallel.mesh import Mesh
from ..parallel.rows import apportion
from ..rank_options import VaeOptions
from .staging import VaeStaging
from .tiles import TileGeometry
from .workspace import GatherWorkspace

logger = logging.getLogger(__name__)

ANSWERING = 0
"""The rank that gets the results."""
_KIND = "vae_tiles"
Round = tuple[int, tuple[int, ...]]
"""The first unit of a round and how many, from there, each rank computes."""


@dataclass(frozen=True)
class Work:
    """What one call computes.

    Attributes:
        stage: its name, for errors.
        chunks: in time. tiles: of each chunk.
        shape, dtype: of one unit's result.
        compute: consecutive units -> their results [n, ...shape]. Never called on a rank without the VAE.
        batch: how many units to compute at once.
    """

    stage: str
    chunks: int
    tiles: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    compute: Callable[[range], torch.Tensor]
    batch: int = 1


@dataclass(frozen=True)
class VaeCrew:
    """One rank's place among the ranks that share the VAE's work, and what it works with.

    Attributes:
        mesh: all ranks. weights: of each rank, its share of the units; 0 for one that takes no part.
        staging: the VAEs of this rank. workspace: where results are gathered. tiles: how pictures are cut.
        frees_workspace: give the gather buffers back after each call.
        leader_encodes: whether the answering rank encodes alone.
    """

    mesh: Mesh
    weights: tuple[float, ...]
    staging: VaeStaging
    workspace: GatherWorkspace
    tiles: TileGeometry
    frees_workspace: bool
    leader_encodes: bool = False

    @property
    def rank(self) -> int:
        """This rank."""
        return self.mesh.layout.rank

    @property
    def answers(self) -> bool:
        """Whether this rank gets the results."""
        return self.rank == ANSWERING

    @property
    def encoders(self) -> VaeCrew:
        """The crew that encodes."""
        return dataclasses.replace(self, weights=_alone(self.weights)) if self.leader_encodes else self

    def bring_vae(self, *, stage: str) -> AbstractContextManager[Any]:
        """Have the video VAE on the device inside the block; None on a rank that computes nothing with it.

        Raises:
            JobError: ``out_of_memory`` in ``stage``.
        """
        return self.staging.bring("vae", stage=stage) if self.weights[self.rank] else nullcontext()

    def free(self) -> None:
        """Give back memory that nobody uses at the moment."""
        self.workspace.release()
        free_caches()

    def finish(self) -> None:
        """End a call: take the VAE out, and release what need not be kept."""
        self.staging.clear()
        if self.frees_workspace:
            self.workspace.release()

    def held(self) -> dict[str, int]:
        """Return the bytes that this rank holds on its device, by what they are for."""
        return {**self.staging.held(), "gather buffers": self.workspace.bytes}


def build_crew(
    models: Models,
    mesh: Mesh,
    options: VaeOptions,
    *,
    rank_weights: Sequence[float] | None = None,
    others: Callable[[], Mapping[str, int]] = dict,
) -> VaeCrew:
    """Return the crew of this rank; all ranks use the same options.

    Args:
        rank_weights: of the ranks of the sequence, see `ParallelOptions`; those that share a layer's weights are alike.
        others: says how many bytes of the device other weights take, by component.
    """
    world, tp = mesh.layout.world_size, mesh.layout.tp_degree
    shares = tuple(1.0 if rank_weights is None else rank_weights[rank // tp] for rank in range(world))
    return VaeCrew(
        mesh,
        _alone(shares) if options.vae_on_one_rank else shares,
        VaeStaging(models, mesh.device, rank=mesh.layout.rank, resident=options.vae_resident, others=others),
        GatherWorkspace(mesh.device, budget=options.gather_workspace_mb * 10**6),
        TileGeometry(options.vae_tile, options.vae_tile_overlap),
        options.release_gather_workspace,
        options.media_encode == "leader",
    )


def _alone(weights: tuple[float, ...]) -> tuple[float, ...]:
    """Return weights by which the answering rank does all."""
    return tuple(1.0 if rank == ANSWERING else 0.0 for rank in range(len(weights)))


def deal(units: int, weights: tuple[float, ...], *, batch: int = 1) -> list[Round]:
    """Deal ``units`` out in rounds in which the slowest rank computes ``batch`` units, the last round fewer.

    Args:
        weights: of the ranks; at least one is positive.
    """
    size = math.ceil(batch * sum(weights) / min(weight for weight in weights if weight))
    return [(first, apportion(min(size, units - first), weights)) for first in range(0, units, size)]


def collect(work: Work, crew: VaeCrew, *, boundary: Callable[[], None]) -> Iterator[list[torch.Tensor]]:
    """Compute ``work`` together; every rank calls it alike.

    Yields:
        on the answering rank the results of each chunk's tiles, in order. They lie in the workspace: use them before
        the next one is asked for. Nothing on the other ranks.
    """
    rounds = deal(work.chunks * work.tiles, crew.weights, batch=work.batch)
    slots = _Slots(work, crew, rounds)
    finished = 0
    for first, shares in rounds:
        boundary()
        crew.mesh.quiet = not _travels(shares)
        # The other ranks are at work already: what was gathered is handed on meanwhile.
        if crew.answers:
            while (finished + 1) * work.tiles <= first:
                yield slots.chunk(finished)
                finished += 1
        slots.fill(first, shares)
    if any(_travels(shares) for _, shares in rounds):
        # A rank that failed in the last round sent its tiles all the same.
        boundary()
    if crew.answers:
        for chunk in range(finished, work.chunks):
            yield slots.chunk(chunk)


def _travels(shares: tuple[int, ...]) -> bool:
    """Whether any rank but the answering one computes something in a round."""
    return sum(shares) > shares[ANSWERING]


class _Slots:
    """Where one call's results lie on this rank: a ring on the answering one, room for one round on the others."""

    def __init__(self, work: Work, crew: VaeCrew, rounds: list[Round]) -> None:
        self._work = work
        self._crew = crew
        self._batch = work.batch
        if crew.answers:
            # Until a round is complete, all but one tile of a chunk may wait for it.
            largest = work.tiles - 1 + max(sum(shares) for _, shares in rounds)
            count = min(largest, work.chunks * work.tiles)
        else:
            count = max(shares[crew.rank] for _, shares in rounds)
        self._buffer = crew.workspace.take((count, *work.shape), work.dtype) if count else None
        self._count = count

    def _slot(self, index: int) -> torch.Tensor:
        assert self._buffer is not None
        return self._buffer[index % self._count]

    def chunk(self, number: int) -> list[torch.Tensor]:
        """Return the results of a chunk, which are all there."""
        first = number * self._work.tiles
        return [self._slot(unit) for unit in range(first, first + self._work.tiles)]

    def fill(self, first: int, shares: tuple[int, ...]) -> None:
        """Compute this rank's units of a round and gather the others'; raise an error of this rank after that."""
        ends = list(accumulate(shares, initial=first))
        units = [range(start, end) for start, end in pairwise(ends)]
        mine = units[self._crew.rank]
        offset = 0 if self._crew.answers else mine.start
        try:
            self._compute(mine, offset)
        except Exception:
            # The others wait for this rank's part. What is in it nobody uses: they meet before.
            with suppress(DataGroupError):
                self._gather(units, offset)
            raise
        self._gather(units, offset)

    def _gather(self, units: list[range], offset: int) -> None:
        """Bring all results of a round to the answering rank."""
        mine = units[self._crew.rank]
        if not _travels(tuple(map(len, units))):
            return
        if self._crew.answers:
            arriving = {rank: [self._slot(unit) for unit in given] for rank, given in enumerate(units) if rank}
            bring_to_first([], arriving, mesh=self._crew.mesh, kind=_KIND)
        elif mine:
            bring_to_first([self._slot(unit - offset) for unit in mine], {}, mesh=self._crew.mesh, kind=_KIND)
        self._crew.mesh.end_data()

    def _compute(self, units: range, offset: int) -> None:
        """Compute ``units``, as many at once as fit; after running out of memory, once more one by one."""
        while units:
            now = units[: self._batch]
            if not self._try(now, offset):
                logger.warning("out of memory with %d tiles at once; freeing caches, then one by one", len(now))
                self._crew.free()
                self._batch, now = 1, now[:1]
                if not self._try(now, offset):
                    raise exhausted(
                        "one tile at a time",
                        stage=self._work.stage,
                        rank=self._crew.rank,
                        held={**self._crew.held(), "tiles": 0 if self._buffer is None else self._buffer.nbytes},
                    )
            units = units[len(now) :]

    def _try(self, units: range, offset: int) -> bool:
        def run() -> bool:
            results = self._work.compute(units)
            for unit, result in zip(units, results, strict=True):
                self._slot(unit - offset).copy_(result)
            return True

        return attempt(run) is not None
