"""How a rank comes by its weights: what is read and whither, whose copies they are, and who owns them afterwards.

All ranks call both functions together: host copies are made by one rank and mapped by others in two turns
(`offload.host`). Raises `ConfigError`, `JobError` ``out_of_memory``.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

import torch

from .checkpoint import Checkpoint
from .contract.words import bytes_in_words
from .models.bundle import Models
from .models.loading import OnBytes, load_models
from .models.pieces import Division
from .offload.host import HostCopies, read_elsewhere
from .offload.owner import OWNED, ModelOwner, place_models
from .parallel.mesh import Mesh
from .placement import NO_NEEDS, ComponentPlacement, Needs, Placement
from .placement_modulation import keeps_modulation_apart
from .rank_options import PARTITIONS, RankOptions
from .stacks import family_of

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


class Together(Protocol):
    """Runs a step on all ranks; None on all of them when it failed on one."""

    def __call__(self, step: Callable[[], _T]) -> _T | None:
        """Return what ``step`` returns."""
        ...


def from_host(options: RankOptions) -> frozenset[str]:
    """Return the components that are read to the host, from where their owner brings them to the device."""
    offloaded = {name for name in OWNED if family_of(name) in options.offload}
    apart = keeps_modulation_apart(
        modulation_tables_mb=options.modulation_tables_mb, shard_weights=options.shard_weights
    )
    return frozenset(offloaded | (set(PARTITIONS) if apart else set()))


def load_rank(
    checkpoint: Checkpoint,
    options: RankOptions,
    copies: HostCopies,
    *,
    keep: frozenset[str],
    device: torch.device,
    dtype: torch.dtype,
    on_bytes: OnBytes,
    divisions: Mapping[str, Division],
) -> Models:
    """Load the components ``keep``; what another rank's copy holds is not read. See `load_models`."""
    return load_models(
        checkpoint,
        device=device,
        dtype=dtype,
        keep=keep,
        on_bytes=on_bytes,
        divisions=divisions,
        storage=options.block_storage,
        from_host=from_host(options),
        elsewhere=functools.partial(read_elsewhere, copies, options),
    )


def take_over(
    models: Models,
    options: RankOptions,
    copies: HostCopies,
    *,
    mesh: Mesh,
    together: Together,
) -> ModelOwner | None:
    """Return the owner of the weights of ``models``; None on all ranks when it failed on one."""
    rank = mesh.layout.rank
    owners: list[ModelOwner] = []

    def own() -> bool:
        needs = Needs.from_dict(options.needs[rank]) if options.needs else NO_NEEDS
        placement = place_models(models, options, needs=needs)
        _tell(placement, mesh)
        owners.append(ModelOwner(models, placement, mesh.device, copies, rank=rank))
        return True

    def tell() -> bool:
        copies.tell(mesh)
        return True

    for turn in (own if not copies.waits else bool, tell, own if copies.waits else bool):
        if together(turn) is None:
            return None
    copies.close()
    return owners[0]


def _tell(placement: Placement, mesh: Mesh) -> None:
    """Log where the weights lie."""
    for name, placed in placement.components.items():
        logger.info(
            "%s: %s on the device while it is used, which %s between; %s on the host; resident blocks: %s",
            *(name, bytes_in_words(placed.device_bytes), "stay" if placed.stays else "leave"),
            *(bytes_in_words(placed.host_bytes), _resident(placed)),
        )
    if mesh.device.type == "cpu" and mesh.layout.rank == 0:
        streamed = [name for name, placed in placement.components.items() if placed.offloaded]
        if streamed:
            logger.warning("on a CPU --offload saves nothing: %s would be in the same memory", ", ".join(streamed))


def _resident(placed: ComponentPlacement) -> str:
    if not placed.offloaded:
        return "all"
    return ", ".join(f"{len(stream.resident)} of {len(stream.units)}" for stream in placed.streams)
