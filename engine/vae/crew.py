"""The ranks that share a VAE's work, and how units of it are dealt out and gathered.

A unit is one tile of one chunk in time. All units of a call have the same shape and cost, so that balancing counts
balances cost; ranks of unlike speed get counts in proportion to their weights, a rank without the VAE none. Units go
in order, chunk by chunk, in rounds of about as many as there are ranks; after each round the first rank, which answers,
receives what the others made. Promise: ``boundary`` before each round, and after the last if tiles travel, on every
rank alike; a chunk is finished and handed on while the other ranks work on the next round; the answering rank holds the
tiles of one chunk and one round; an error in computing or finishing leaves no data collective unfinished. What runs out
of memory is tried once more, with freed caches and gather buffers, and with one unit at once. Raises what ``boundary``
raises, `DataGroupError`, and `JobError` ``out_of_memory`` naming what holds the memory.
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

from ..devices_memory import Room, attempt, exhausted, free_caches
from ..models.bundle import Models
from ..parallel.collectives import DataGroupError, bring_to_first, collect_json
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
        return {**self.staging.held(), "gather buffers": self.workspace.bytes, "tiles": self.workspace.bytes_lent}

    @property
    def room(self) -> Room:
        """The memory of this rank's device."""
        return Room(self.rank, self.free, self.held)


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
    workspace = GatherWorkspace(mesh.device, budget=options.gather_workspace_mb * 10**6)
    staging = VaeStaging(
        models,
        mesh.device,
        rank=mesh.layout.rank,
        resident=options.vae_resident,
        others=others,
        release=workspace.release,
    )
    return VaeCrew(
        mesh,
        _alone(shares) if options.vae_on_one_rank else shares,
        staging,
        workspace,
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


def collect(
    work: Work, crew: VaeCrew, *, boundary: Callable[[], None], finish: Callable[[list[torch.Tensor]], torch.Tensor]
) -> Iterator[torch.Tensor]:
    """Compute ``work`` together; every rank calls it alike.

    Args:
        finish: the results of a chunk's tiles, in order -> what is yielded, in memory of its own. Called on the
            answering rank, chunk by chunk; once more for a chunk when memory ran out in it.

    Yields:
        on the answering rank what was made of each chunk. Nothing on the other ranks.
    """
    slots = _find_room(work, crew, boundary=boundary)
    finished = 0
    for number, (first, _) in enumerate(slots.rounds):
        boundary()
        crew.mesh.quiet = not slots.travels(number)
        # The other ranks are at work already: what was gathered is handed on meanwhile.
        while crew.answers and (finished + 1) * work.tiles <= first:
            try:
                made = slots.finish(finished, finish)
            except Exception:
                slots.pass_by(number)
                raise
            yield made
            del made
            finished += 1
        slots.fill(number)
    if any(map(slots.travels, range(len(slots.rounds)))):
        # A rank that failed in the last round sent its tiles all the same.
        boundary()
    if crew.answers:
        for chunk in range(finished, work.chunks):
            yield slots.finish(chunk, finish)


def _find_room(work: Work, crew: VaeCrew, *, boundary: Callable[[], None]) -> _Slots:
    """Return room for the results: of as many units at once as all ranks have room for; every rank calls it alike."""
    if work.batch > 1:
        slots = attempt(lambda: _Slots(work, crew))
        # A rank that failed until here must not be waited for in the exchange that follows.
        boundary()
        if all(collect_json(slots is not None, crew.mesh)):
            assert slots is not None
            return slots
        logger.warning("a rank has no room for %d tiles at once; freeing caches, then one by one", work.batch)
        del slots
        crew.free()
        work = dataclasses.replace(work, batch=1)
    return crew.room.make(lambda: _Slots(work, crew), what="the tiles of one round", stage=work.stage)


class _Slots:
    """Where one call's results lie on this rank: a ring on the answering one, room for one round on the others.

    Attributes:
        rounds: in which they are computed.
    """

    def __init__(self, work: Work, crew: VaeCrew) -> None:
        """Take the room; all ranks have the same ``work``."""
        self.rounds = rounds = deal(work.chunks * work.tiles, crew.weights, batch=work.batch)
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

    def travels(self, number: int) -> bool:
        """Whether any rank but the answering one computes something in round ``number``."""
        _, shares = self.rounds[number]
        return sum(shares) > shares[ANSWERING]

    def finish(self, chunk: int, call: Callable[[list[torch.Tensor]], torch.Tensor]) -> torch.Tensor:
        """Return what ``call`` makes of the results of ``chunk``, which are all there."""
        first = chunk * self._work.tiles
        tiles = [self._slot(unit) for unit in range(first, first + self._work.tiles)]
        return self._crew.room.make(lambda: call(tiles), what="a chunk of whole pictures", stage=self._work.stage)

    def fill(self, number: int) -> None:
        """Compute this rank's units of a round and gather the others'; raise an error of this rank after that."""
        mine = self._units(number)[self._crew.rank]
        try:
            self._compute(mine, self._offset(mine))
        except Exception:
            self.pass_by(number)
            raise
        self._gather(number)

    def pass_by(self, number: int) -> None:
        """Take part in a round with nothing: the others wait for this rank. They meet before anybody uses its part."""
        with suppress(DataGroupError):
            self._gather(number)

    def _units(self, number: int) -> list[range]:
        """Return the units of each rank in a round."""
        first, shares = self.rounds[number]
        return [range(start, end) for start, end in pairwise(accumulate(shares, initial=first))]

    def _offset(self, mine: range) -> int:
        """Return the unit whose result is in the first slot, before the ring comes around."""
        return 0 if self._crew.answers else mine.start

    def _gather(self, number: int) -> None:
        """Bring all results of a round to the answering rank."""
        if not self.travels(number):
            return
        units = self._units(number)
        mine = units[self._crew.rank]
        offset = self._offset(mine)
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
                    held = self._crew.held()
                    raise exhausted("one tile at a time", stage=self._work.stage, rank=self._crew.rank, held=held)
            units = units[len(now) :]

    def _try(self, units: range, offset: int) -> bool:
        def run() -> bool:
            results = self._work.compute(units)
            for unit, result in zip(units, results, strict=True):
                self._slot(unit - offset).copy_(result)
            return True

        return attempt(run) is not None
