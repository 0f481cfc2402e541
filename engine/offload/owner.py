"""The owner of one rank's weights but the VAEs': has a component on the device while it is used, as was decided.

`place_models` decides with `placement.plan_placement` what lies where; `ModelOwner` carries it out (`component`).
Promise: before a component comes in, those that do not stay have left; at most what the placement declares is on the
device; whatever happens in use, the weights are back in their places afterwards. What is on the device is on record
(`ModelOwner.inside`), and `ModelOwner.check` compares the record with the weights. Raises `JobError`
``out_of_memory`` naming what holds the device's memory.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..contract.errors import JobError
from ..devices_memory import attempt, exhausted, free_caches
from ..models.bundle import Models
from ..placement import ComponentWeights, Needs, Placement, component_weights, plan_placement
from ..placement_modulation import keeps_modulation_apart
from ..rank_options import PARTITIONS, RankOptions
from .component import OwnedComponent
from .layout import held_tensors
from .source import HostMemory
from .stream_sync import Copies, copies_for

OWNED = ("text_encoder", *PARTITIONS)
"""The components with weights that are owned here."""
_REMEDY = (
    "Offload more families (--offload), keep fewer blocks on the device (--resident-blocks), or ask for a smaller "
    "canvas or a shorter video."
)


def weights_of(models: Models, options: RankOptions) -> dict[str, ComponentWeights]:
    """Return what this rank holds of each component but the VAEs; the weights may be on the meta device."""
    apart = keeps_modulation_apart(
        modulation_tables_mb=options.modulation_tables_mb, shard_weights=options.shard_weights
    )
    return {
        name: component_weights(name, held_tensors(model), modulation_apart=apart)
        for name in OWNED
        if (model := getattr(models, name)) is not None
    }


def place_models(models: Models, options: RankOptions, *, needs: Needs) -> Placement:
    """Decide where the weights of ``models`` lie; ``needs`` is what the device must hold besides.

    What may be used of it was found when the options were resolved (`config_devices`), the same for every rank.
    """
    budget = None if options.gpu_memory is None else round(options.gpu_memory * 1e9)
    return plan_placement(weights_of(models, options), options, budget=budget, needs=needs)


class ModelOwner:
    """All components with weights of one rank but the VAEs; those that it does not hold are None."""

    def __init__(
        self,
        models: Models,
        placement: Placement,
        device: torch.device,
        memory: HostMemory,
        *,
        rank: int,
        copies: Copies | None = None,
    ) -> None:
        """Take over the components of ``models``, and put on ``device`` those that are not offloaded.

        Args:
            placement: of these components, which were loaded to the CPU or, if they are not offloaded, to the device.
            memory: where the copies lie from which blocks come.
            copies: orders copies to the device; by default as the device does.

        Raises:
            JobError: ``out_of_memory``.
        """
        self.placement = placement
        self._device = device
        self._rank = rank
        self._stage = "start"
        self._components: dict[str, OwnedComponent] = {}
        self._inside: list[str] = []
        copies = copies_for(device) if copies is None else copies
        for name, placed in placement.components.items():
            take = functools.partial(OwnedComponent, getattr(models, name), placed)
            owned = attempt(functools.partial(take, device=device, memory=memory, copies=copies))
            if owned is None:
                raise self._exhausted(f"{name} does not fit")
            self._components[name] = owned
            if not placed.offloaded:
                self._inside.append(name)

    @property
    def inside(self) -> tuple[str, ...]:
        """The components that are on the device, by the record."""
        return tuple(self._inside)

    @property
    def device_bytes(self) -> int:
        """The most bytes of these weights that are on the device at once."""
        names = (None, *self._components)
        return max(self.placement.on_device(name) for name in names)

    @property
    def host_bytes(self) -> int:
        """Bytes of the weights' copies in host memory."""
        return sum(owned.host_bytes for owned in self._components.values())

    @contextmanager
    def using(self, name: str, *, stage: str) -> Iterator[Any]:
        """Have the component ``name`` on the device inside the block; None on a rank that does not hold it.

        Raises:
            JobError: ``out_of_memory`` in ``stage``.
        """
        owned = self._components.get(name)
        if owned is None:
            yield None
            return
        self._stage = stage
        self._clear(but=name)
        if name not in self._inside:
            self._bring_in(name)
        try:
            yield owned.model
        finally:
            self._clear()

    @contextmanager
    def projections(self, model: Any) -> Iterator[None]:
        """Let the modulation of the blocks of ``model`` be called inside the block, through buffers of its own.

        Nothing is done for one that keeps its projections with its blocks.

        Raises:
            JobError: ``out_of_memory``.
        """
        stream = next((owned.modulation for owned in self._components.values() if owned.model is model), None)
        if stream is None:
            yield
            return
        if not attempt(stream.open):
            free_caches()
            if not attempt(stream.open):
                raise self._exhausted("the projections of two blocks do not fit")
        try:
            yield
        finally:
            stream.close()

    def remove(self) -> None:
        """Take off every hook and take what is offloaded off the device; in its places stand the host's copies."""
        for owned in self._components.values():
            owned.leave()
        self._inside = [name for name in self._inside if not self._components[name].placed.offloaded]

    def check(self) -> None:
        """Assert that the record is true and within what was declared."""
        passing = [name for name in self._inside if not self._components[name].placed.stays]
        assert len(passing) <= 1, passing
        for name, owned in self._components.items():
            owned.check(inside=name in self._inside)

    def held(self) -> dict[str, int]:
        """Return the bytes of weights on the device, by component."""
        return {name: owned.device_bytes if name in self._inside else 0 for name, owned in self._components.items()}

    def _clear(self, *, but: str | None = None) -> None:
        """Take out what does not stay, except ``but``."""
        for name in self.inside:
            if name != but and not self._components[name].placed.stays:
                self._components[name].leave()
                self._inside.remove(name)

    def _bring_in(self, name: str) -> None:
        if not self._try(name):
            free_caches()
            if not self._try(name):
                raise self._exhausted(f"{name} does not fit")
        self._inside.append(name)

    def _try(self, name: str) -> bool:
        """Bring ``name`` in; whether there was room."""
        owned, arrived = self._components[name], None
        try:
            arrived = attempt(owned.enter)
        finally:
            if arrived is None:
                owned.leave()
        return arrived is not None

    def _exhausted(self, what: str) -> JobError:
        return exhausted(what, stage=self._stage, rank=self._rank, held=self.held(), remedy=_REMEDY)
