"""The owner of both VAEs: brings one onto the device around each encode and decode, and takes it out again.

Promise: unless both stay (``resident``), at most one VAE is on the device at a time, and none between uses; after an
error in use, or while it was brought in, the weights are back where they were. What is on the device is on record
(`VaeStaging.inside`), and `VaeStaging.check` compares the record with the weights. On a CPU nothing is moved, and the
record is kept all the same. Raises `JobError` ``out_of_memory`` naming what holds the device's memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from ..devices_memory import attempt, exhausted, free_caches
from ..models.bundle import VAES, Models
from ..models.home import Home, plain_parts

logger = logging.getLogger(__name__)

HOME = torch.device("cpu")


class VaeStaging:
    """Both VAEs of one rank; one that it does not hold is None."""

    def __init__(
        self,
        models: Models,
        device: torch.device,
        *,
        rank: int,
        resident: bool,
        others: Callable[[], Mapping[str, int]] = dict,
        release: Callable[[], None] = lambda: None,
    ) -> None:
        """Take over the VAEs of ``models``, which were loaded to `HOME`.

        Args:
            resident: keep both on the device, if they fit.
            others: says how many bytes of the device other weights take, by component.
            release: called when the device is full: gives back what is kept there and not needed.
        """
        self._models = models
        self._others = others
        self._release = release
        self._device = device
        self._rank = rank
        self._homes = {name: Home(model) for name in VAES if (model := getattr(models, name)) is not None}
        self._inside: list[str] = []
        self._stay = resident and self._bring_all()

    @property
    def inside(self) -> tuple[str, ...]:
        """The VAEs that are on the device, by the record: ``vae``, ``audio_vae``."""
        return tuple(self._inside)

    def check(self) -> None:
        """Assert that the record is true and within the promise."""
        assert self._stay or len(self._inside) <= 1, self._inside
        for name, home in self._homes.items():
            where = self._device if name in self._inside else HOME
            assert home.devices() == {where.type}, (name, where, home.devices())

    @contextmanager
    def bring(self, name: str, *, stage: str) -> Iterator[Any]:
        """Have the VAE ``name`` on the device inside the block; None on a rank that does not hold it.

        Raises:
            JobError: ``out_of_memory`` in ``stage``.
        """
        if name not in self._homes:
            yield None
            return
        if not self._stay:
            # A use that was abandoned, its generator never closed, may have left the other one in.
            self.clear()
            self._bring_in(name, stage)
        try:
            yield getattr(self._models, name)
        finally:
            self.clear()

    def clear(self) -> None:
        """Take out what need not stay."""
        if not self._stay:
            for name in self._inside:
                self._homes[name].come_back()
            self._inside.clear()

    def held(self) -> dict[str, int]:
        """Return the bytes of weights on the device, by component."""
        found = dict(self._others())
        for name in self._homes:
            model = getattr(self._models, name)
            found[name] = sum(_bytes_on(parameter, self._device) for parameter in model.parameters())
        return found

    def _bring_in(self, name: str, stage: str) -> None:
        if self._try(name) or self._try(name):
            return
        raise exhausted(f"{name} does not fit", stage=stage, rank=self._rank, held=self.held())

    def _try(self, name: str) -> bool:
        """Bring ``name`` in; whether there was room."""
        home, arrived = self._homes[name], False
        try:
            arrived = bool(attempt(lambda: home.leave_for(self._device)))
        finally:
            if not arrived:
                home.come_back()
        if arrived:
            self._inside.append(name)
        else:
            self._release()
            free_caches()
        return arrived

    def _bring_all(self) -> bool:
        """Bring both in to stay; whether there was room."""
        if all(self._try(name) for name in self._homes):
            return True
        logger.warning("the VAEs do not fit beside the other weights: each is brought in when it is needed")
        for name in self._inside:
            self._homes[name].come_back()
        self._inside.clear()
        free_caches()
        return False


def _bytes_on(parameter: torch.Tensor, device: torch.device) -> int:
    return sum(part.nbytes for _, part in plain_parts(parameter) if part.device.type == device.type)
