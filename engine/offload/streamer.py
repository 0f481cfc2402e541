"""Streams the units of one stack through a few slots while the stack runs; what calls a unit is left as it is.

Hooks do it: before a unit's module runs, its weights stand in its places, copied ahead into a slot; after it, the host
copy does, and the unit that will need the slot next is copied there. After the last unit the first follows, for the
next step. A unit that runs out of order, or after others were skipped, is brought in when it is called. *Resident*
units lie whole on the device while the stream is open.

Promise: while the stream is open, `Streamer.device_bytes` are on the device, never more; whatever a forward raises, no
unit's place refers to a slot afterwards; `Streamer.close` leaves no hook, and in every place the host copy, without
bringing anything to the device. `Streamer.check` compares the record with the places. Raises
`torch.OutOfMemoryError` in `Streamer.open`, which leaves the stream closed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from .pool import Slot, make_slots
from .source import HostUnit
from .stream_sync import Copies


@dataclass(frozen=True)
class StreamedUnit:
    """A unit and the modules whose calls need it; one may be called from within another."""

    host: HostUnit
    callers: tuple[nn.Module, ...]
    resident: bool = False


@dataclass
class _Open:
    """What exists while a stream is open.

    Attributes:
        slots: the buffers. resident: those of the resident units, by number.
        views: tensors of a unit in a buffer, made once. depth: how many of a unit's callers run, one within another.
    """

    slots: list[Slot] = field(default_factory=list)
    resident: dict[int, torch.Tensor] = field(default_factory=dict)
    views: dict[tuple[int, int], list[torch.Tensor]] = field(default_factory=dict)
    depth: dict[int, int] = field(default_factory=dict)
    hooks: ExitStack = field(default_factory=ExitStack)


class Streamer:
    """The units of one stack, in the order in which they run."""

    def __init__(
        self, units: Sequence[StreamedUnit], *, slots: int, slot_bytes: int, device: torch.device, copies: Copies
    ) -> None:
        """Prepare a closed stream.

        Args:
            slots, slot_bytes: how many buffers and of what size; one for each unit that is not resident, 2 at most.
            copies: orders the copies to ``device``.
        """
        self._units = units
        self._streamed = [number for number, unit in enumerate(units) if not unit.resident]
        self._slot_shape = (slots, slot_bytes)
        self._device = device
        self._copies = copies
        self._open: _Open | None = None

    @property
    def is_open(self) -> bool:
        """Whether units can be called."""
        return self._open is not None

    @property
    def host_bytes(self) -> int:
        """Bytes of the host's copies of its units."""
        return sum(unit.host.bytes for unit in self._units)

    @property
    def device_bytes(self) -> int:
        """Bytes of its buffers on the device now."""
        if self._open is None:
            return 0
        return sum(flat.nbytes for flat in [*self._open.resident.values(), *(slot.flat for slot in self._open.slots)])

    @property
    def on_device(self) -> tuple[str, ...]:
        """Names of the units whose weights are on the device or on their way, in order."""
        if self._open is None:
            return ()
        numbers = {*self._open.resident, *(slot.unit for slot in self._open.slots if slot.unit is not None)}
        return tuple(self._units[number].host.name for number in sorted(numbers))

    def open(self) -> bool:
        """Make the buffers, bring in the resident units and hang up the hooks, unless that is done; return True."""
        if self._open is not None:
            return True
        self._open = _Open()
        try:
            self._open.slots = make_slots(*self._slot_shape, self._device)
            for number, unit in enumerate(self._units):
                if unit.resident:
                    self._bring_whole(number, unit)
            for number in self._streamed:
                for module in self._units[number].callers:
                    self._hook(number, module)
        except BaseException:
            self.close()
            raise
        return True

    def close(self) -> None:
        """Take off the hooks, put the host copies in place and give the buffers back."""
        if self._open is None:
            return
        self._open.hooks.close()
        for unit in self._units:
            unit.host.go_home()
        for slot in self._open.slots:
            self._copies.settle(slot)
        self._open = None

    def check(self) -> None:
        """Assert that in every place stands what the record says."""
        opened = self._open
        for number, unit in enumerate(self._units):
            away = opened is not None and (number in opened.resident or number in opened.depth)
            assert unit.host.at_home != away, (unit.host.name, away)
        if opened is not None:
            held = {slot.unit for slot in opened.slots if slot.unit is not None}
            assert opened.depth.keys() <= held, (opened.depth, held)

    def _bring_whole(self, number: int, unit: StreamedUnit) -> None:
        assert self._open is not None
        flat = torch.empty(unit.host.bytes, dtype=torch.uint8, device=self._device)
        flat.copy_(unit.host.flat, non_blocking=True)
        self._open.resident[number] = flat
        unit.host.put(unit.host.views(flat))

    def _hook(self, number: int, module: nn.Module) -> None:
        assert self._open is not None

        def before(*_: Any) -> None:
            if not torch.compiler.is_compiling():
                self._enter(number)

        def after(*_: Any) -> None:
            if not torch.compiler.is_compiling():
                self._leave(number)

        # Ours come first, so that what other hooks do finds the weights in place.
        self._open.hooks.callback(module.register_forward_pre_hook(before, prepend=True).remove)
        self._open.hooks.callback(module.register_forward_hook(after, always_call=True).remove)

    def _enter(self, number: int) -> None:
        """Before a unit's module runs: have its weights in place."""
        opened = self._open
        assert opened is not None
        opened.depth[number] = opened.depth.get(number, 0) + 1
        if opened.depth[number] > 1:
            return
        slot = self._slot_of(number)
        if slot is None:
            slot = self._room(number)
            self._bring(number, slot)
        self._copies.wait(slot)
        self._units[number].host.put(self._views(number, slot))
        self._copy_ahead(number)

    def _leave(self, number: int) -> None:
        """After a unit's module ran, well or not: its slot is free for the next."""
        opened = self._open
        if opened is None or number not in opened.depth:
            return
        opened.depth[number] -= 1
        if opened.depth[number]:
            return
        del opened.depth[number]
        self._units[number].host.go_home()
        slot = self._slot_of(number)
        if slot is not None:
            self._copies.release(slot)
            self._copy_ahead(number)

    def _copy_ahead(self, number: int) -> None:
        """Fill the slots that nobody uses with the units that follow ``number``."""
        assert self._open is not None
        idle = [slot for slot in self._open.slots if slot.unit not in self._open.depth]
        wanted = list(self._following(number))[: len(idle)]
        missing = [unit for unit in wanted if self._slot_of(unit) is None]
        for slot in idle:
            if missing and slot.unit not in wanted:
                self._bring(missing.pop(0), slot)

    def _following(self, number: int) -> Iterator[int]:
        """Yield the streamed units after ``number`` as they will run, itself last."""
        at = self._streamed.index(number)
        yield from self._streamed[at + 1 :]
        yield from self._streamed[: at + 1]

    def _bring(self, number: int, slot: Slot) -> None:
        slot.unit = number
        self._copies.begin(slot, self._units[number].host.flat)

    def _room(self, number: int) -> Slot:
        """Return a slot for a unit that nobody foresaw: an empty one, or that of the unit that is needed last."""
        assert self._open is not None
        idle = [slot for slot in self._open.slots if slot.unit not in self._open.depth]
        order = {unit: place for place, unit in enumerate(self._following(number))}
        return max(idle, key=lambda slot: len(order) if slot.unit is None else order[slot.unit])

    def _slot_of(self, number: int) -> Slot | None:
        assert self._open is not None
        return next((slot for slot in self._open.slots if slot.unit == number), None)

    def _views(self, number: int, slot: Slot) -> list[torch.Tensor]:
        assert self._open is not None
        key = (number, self._open.slots.index(slot))
        if key not in self._open.views:
            self._open.views[key] = self._units[number].host.views(slot.flat)
        return self._open.views[key]
