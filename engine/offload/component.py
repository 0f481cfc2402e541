"""One component of a rank, placed: what of it rests on the host, what comes to the device, and how.

Of an offloaded component the host keeps all, each unit of its stacks as one flat copy; `OwnedComponent.enter` brings
what lies outside the stacks and the resident units, and opens the streams; `OwnedComponent.leave` takes all of it out.
One that is not offloaded is put on the device for good; only its modulation, if it is kept apart, has copies on the
host. Raises `torch.OutOfMemoryError` when the device is full; `leave` then brings everything back where it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from ..models.home import Home, Place, moved, places
from ..placement import ComponentPlacement, Stream, unit_of
from .source import HostMemory, HostUnit
from .stream_sync import Copies
from .streamer import StreamedUnit, Streamer


class OwnedComponent:
    """A component and its streams.

    Attributes:
        model: the component. placed: where it was decided to lie.
        modulation: the stream of its blocks' projections, which is open only while they are used; None: they count to
            their blocks.
    """

    def __init__(
        self, model: Any, placed: ComponentPlacement, *, device: torch.device, memory: HostMemory, copies: Copies
    ) -> None:
        """Make the host's copies; put on ``device`` what is not offloaded."""
        self.model = model
        self.placed = placed
        self._device = device
        self._units = _sort(model, placed)
        self._streams = [self._streamer(stream, memory, copies) for stream in placed.streams]
        self.modulation = (
            None if placed.modulation is None else self._streamer(placed.modulation, memory, copies, by_block=True)
        )
        inside = {place.name for found in self._units.values() for place in found}
        if not placed.offloaded:
            for place in places(model):
                if place.name not in inside:
                    _put_on(place, device)
        self._rest = Home(model, lambda name: name not in inside)

    def _streamer(self, stream: Stream, memory: HostMemory, copies: Copies, *, by_block: bool = False) -> Streamer:
        units = []
        for unit in stream.units:
            host = HostUnit(unit.name, self._units[unit.name], memory, component=self.placed.weights.name)
            assert host.bytes == unit.bytes, (unit, host.bytes)
            names = [unit.name.rpartition(".")[0], unit.name] if by_block else [unit.name]
            callers = tuple(self._module(name) for name in names)
            units.append(StreamedUnit(host, callers, unit.name in stream.resident))
        return Streamer(units, slots=stream.slots, slot_bytes=stream.slot_bytes, device=self._device, copies=copies)

    def _module(self, name: str) -> nn.Module:
        found: nn.Module = self.model.get_submodule(name)
        return found

    @property
    def streams(self) -> Iterator[Streamer]:
        """All its streams."""
        yield from self._streams
        if self.modulation is not None:
            yield self.modulation

    @property
    def device_bytes(self) -> int:
        """Bytes of its weights on the device while it is in."""
        return self._rest.bytes + sum(stream.device_bytes for stream in self.streams)

    @property
    def host_bytes(self) -> int:
        """Bytes of the copies that the host keeps of it."""
        return (self._rest.bytes if self.placed.offloaded else 0) + sum(stream.host_bytes for stream in self.streams)

    def enter(self) -> bool:
        """Bring it in; True when all is there."""
        self._rest.leave_for(self._device)
        for stream in self._streams:
            stream.open()
        return True

    def leave(self) -> None:
        """Take it out, be it in whole or in part. What is not offloaded stays where it is."""
        for stream in self.streams:
            stream.close()
        self._rest.come_back()

    def check(self, *, inside: bool) -> None:
        """Assert that it is where the record says, and no more of it than was declared."""
        where = self._device if inside or not self.placed.offloaded else torch.device("cpu")
        assert self._rest.devices() <= {where.type}, (self.placed.weights.name, where, self._rest.devices())
        for stream in self.streams:
            stream.check()
        assert all(stream.is_open == inside for stream in self._streams), self.placed.weights.name
        if inside:
            assert self.device_bytes <= self.placed.device_bytes + self.placed.modulation_bytes, self.placed


def _sort(model: nn.Module, placed: ComponentPlacement) -> dict[str, list[Place]]:
    """Return the places of each unit of the component's streams, by the units' names."""
    streams = [*placed.streams, *([] if placed.modulation is None else [placed.modulation])]
    units: dict[str, list[Place]] = {unit.name: [] for stream in streams for unit in stream.units}
    for place in places(model):
        _, unit, _ = unit_of(placed.weights.name, place.name, modulation_apart=placed.modulation is not None)
        if unit in units:
            units[unit].append(place)
    return units


def _put_on(place: Place, device: torch.device) -> None:
    tensor = place.tensor
    there = moved(tensor, device)
    if there is not tensor:
        place.put(place.as_in(there))
