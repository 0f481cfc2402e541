"""Bytes that each stage of a run takes on a rank's device besides the weights; from sizes alone.

Signatures; the closed forms follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .placement import ComponentWeights, Needs
from .planner_request import RequestSize
from .planner_weights import ServedModel, Setup


@dataclass(frozen=True, kw_only=True)
class StageBytes:
    """What one stage takes at its peak, bytes; the sum of all is the peak, by `total`.

    Attributes:
        activations: what its model's forward allocates, keys and values of other ranks apart.
        remote: keys and values of other ranks (Ulysses, ring), with the buffers in which they come.
        tables: modulation tables, and the modulation's buffers where there are none.
        gathered: blocks of weights that are gathered for the time of their forward (`shard_weights`).
        vae: weights of the VAE that is brought in for the stage; 0 where the VAEs stay.
        workspace: gather buffers of tiles.
    """

    activations: int = 0
    remote: int = 0
    tables: int = 0
    gathered: int = 0
    vae: int = 0
    workspace: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return self.activations + self.remote + self.tables + self.gathered + self.vae + self.workspace


def rank_stages(model: ServedModel, setup: Setup, rank: int, request: RequestSize) -> dict[str, StageBytes]:
    """Return what each served stage of ``request`` takes on ``rank``, by the stage's name, in the order of a run."""
    raise NotImplementedError


def always_bytes(model: ServedModel, setup: Setup, rank: int) -> int:
    """Return what is taken at all times: VAEs that stay, gather buffers that are kept."""
    raise NotImplementedError


def rank_needs(
    model: ServedModel, setup: Setup, rank: int, request: RequestSize, weights: Mapping[str, ComponentWeights]
) -> Needs:
    """Return what `placement.plan_placement` is to leave room for on ``rank`` when it runs ``request``.

    Args:
        weights: see `rank_weights`.
    """
    raise NotImplementedError
