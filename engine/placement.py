"""What of the weights lies where on one rank, in bytes: decided here alone, for ranks and planner alike.

From the tensors of each component (`component_weights`) and the options (`plan_placement`) comes a `Placement`: which
blocks stay on the device while their component is in use (*resident*), which pass through a few buffers (*streamed*),
and which components give way to others between stages. Torch-free; ``offload`` carries it out, ``planner`` adds it up.
All sizes are bytes. Raises nothing: whether a placement fits is the planner's to say.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from .rank_options import PARTITIONS, OffloadOptions, ParallelOptions
from .stacks import FULL_PRECISION, MODULATION, REDUCED_STACKS, STACKS, family_of

ALIGNMENT = 256
"""Every tensor of a block begins at a multiple of this many bytes in the block's flat copies."""
SLOTS = 2
"""Buffers of a stream: one block computes in one while the next is copied into the other."""
ITEM_BYTES: Mapping[str, int] = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1, "int64": 8, "bool": 1}
"""Bytes of one element of each type, by the names that are used here."""


@dataclass(frozen=True)
class Held:
    """A tensor as a rank holds it: its ``shape`` (this rank's part) and the name of its type, a key of `ITEM_BYTES`."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        """Bytes of its elements."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


def stays_exact(component: str, tensor: str) -> bool:
    """Whether ``tensor`` of ``component`` is kept in fp32 whatever the rest is computed in."""
    return not FULL_PRECISION[component].isdisjoint(tensor.split("."))


def compute_dtype(component: str, tensor: str, dtype: str) -> str:
    """Return the type that a floating tensor of ``component`` is computed in when the rest is in ``dtype``."""
    return "fp32" if stays_exact(component, tensor) else dtype


def is_reduced(component: str, tensor: str, shape: Sequence[int]) -> bool:
    """Whether ``--block-storage`` concerns ``tensor``: the weight of a linear layer of a block.

    Not vectors (norms and biases), nor what stays fp32 or lies outside the blocks.
    """
    return (
        len(shape) == 2
        and tensor.startswith(tuple(f"{stack}." for stack in REDUCED_STACKS.get(component, ())))
        and tensor.endswith(".weight")
        and not stays_exact(component, tensor)
    )


def stored(component: str, tensor: str, shape: tuple[int, ...], dtype: str, storage: str) -> list[Held]:
    """Return what a rank holds of a tensor whose part here has ``shape`` and which is computed in ``dtype``.

    That is one tensor; of a weight [rows, columns] that is kept in ``int8`` three: the numbers, and for each row a
    scale (fp32) and a zero point (int8, always 0, which torchao keeps all the same).

    Args:
        dtype: a key of `ITEM_BYTES`. storage: ``full``, ``fp8`` or ``int8``.
    """
    if storage == "full" or not is_reduced(component, tensor, shape):
        return [Held(shape, dtype)]
    if storage == "fp8":
        return [Held(shape, "fp8")]
    rows = shape[0]
    return [Held(shape, "int8"), Held((rows, 1), "fp32"), Held((rows, 1), "int8")]


@dataclass(frozen=True)
class Unit:
    """What is brought in at once: a block without its modulation, or a block's modulation alone.

    Attributes:
        name: of the module in its model, such as ``transformer_blocks.7``.
        bytes: of its flat copy: all its tensors, each at a multiple of `ALIGNMENT`.
    """

    name: str
    bytes: int


@dataclass(frozen=True)
class ComponentWeights:
    """The weights (buffers included) of one component on one rank.

    Attributes:
        outside: bytes of what lies outside the stacks.
        stacks: the units of each stack, in order.
        modulation: the units of the blocks' modulation, in order; empty where it counts to the blocks.
    """

    name: str
    outside: int
    stacks: Mapping[str, tuple[Unit, ...]]
    modulation: tuple[Unit, ...] = ()

    @cached_property
    def bytes(self) -> int:
        """All of it."""
        units = itertools.chain(self.modulation, *self.stacks.values())
        return self.outside + sum(unit.bytes for unit in units)


def flat_bytes(tensors: Iterable[Held]) -> int:
    """Return the bytes of a flat copy of ``tensors``."""
    return sum(-(-tensor.bytes // ALIGNMENT) * ALIGNMENT for tensor in tensors)


def unit_of(component: str, tensor: str, *, modulation_apart: bool) -> tuple[str | None, str, bool]:
    """Return the stack and the unit of ``tensor``, and whether the unit is a block's modulation alone.

    The stack is None, the unit empty, for what lies outside the stacks.
    """
    stack = next((stack for stack in STACKS.get(component, ()) if tensor.startswith(f"{stack}.")), None)
    if stack is None:
        return None, "", False
    number, _, rest = tensor[len(stack) + 1 :].partition(".")
    child = MODULATION.get(component) if modulation_apart else None
    if child is not None and rest.startswith(f"{child}."):
        return stack, f"{stack}.{number}.{child}", True
    return stack, f"{stack}.{number}", False


def is_copied(component: str, tensor: str, *, offload: Collection[str], modulation_apart: bool) -> bool:
    """Whether ``tensor`` is in a unit that comes to the device from a copy; ``offload`` names families that stream."""
    stack, _, is_modulation = unit_of(component, tensor, modulation_apart=modulation_apart)
    return is_modulation or (stack is not None and family_of(component) in offload)


def holders(component: str, layout: ParallelOptions) -> tuple[tuple[int, ...], ...]:
    """Return the ranks that hold ``component``: for each distinct part of it those that hold the same tensors.

    With shared copies (``--host-copies``) each tuple shares one, made by the first rank in it.
    """
    if component in PARTITIONS:
        if layout.shard_weights:
            return tuple((rank,) for rank in range(layout.world_size))
        parts = layout.tp_degree
        return tuple(tuple(range(part, layout.world_size, parts)) for part in range(parts))
    return tuple((rank,) for rank in range(layout.text_encoder_tp_degree))


def component_weights(name: str, tensors: Mapping[str, Held], *, modulation_apart: bool) -> ComponentWeights:
    """Sort the tensors of the component ``name`` into stacks.

    Args:
        tensors: parameters and buffers by their names in the model.
        modulation_apart: whether the blocks' modulation is not kept with them.
    """
    units: dict[str, dict[str, list[Held]]] = {stack: {} for stack in STACKS.get(name, ())}
    apart: dict[str, list[Held]] = {}
    outside: list[Held] = []
    for tensor, held in tensors.items():
        stack, unit, is_modulation = unit_of(name, tensor, modulation_apart=modulation_apart)
        if stack is None:
            outside.append(held)
        else:
            (apart if is_modulation else units[stack]).setdefault(unit, []).append(held)
    return ComponentWeights(
        name,
        sum(held.bytes for held in outside),
        {stack: _units(blocks) for stack, blocks in units.items()},
        _units(apart),
    )


def _units(blocks: Mapping[str, list[Held]]) -> tuple[Unit, ...]:
    return tuple(Unit(name, flat_bytes(tensors)) for name, tensors in blocks.items())


@dataclass(frozen=True)
class Stream:
    """Units that run one after the other, some of which pass through buffers.

    Attributes:
        units: all, in order. resident: names of those that stay on the device while the component is in use.
    """

    units: tuple[Unit, ...]
    resident: frozenset[str]

    @cached_property
    def streamed(self) -> tuple[Unit, ...]:
        """Those that pass through the buffers, in order."""
        return tuple(unit for unit in self.units if unit.name not in self.resident)

    @cached_property
    def slots(self) -> int:
        """Buffers: `SLOTS`, fewer if fewer units pass through them."""
        return min(SLOTS, len(self.streamed))

    @cached_property
    def slot_bytes(self) -> int:
        """Bytes of one buffer: the largest unit that passes through it."""
        return max((unit.bytes for unit in self.streamed), default=0)

    @cached_property
    def resident_bytes(self) -> int:
        """Bytes of the units that stay."""
        return sum(unit.bytes for unit in self.units if unit.name in self.resident)

    @cached_property
    def device_bytes(self) -> int:
        """Bytes on the device while the component is in use."""
        return self.resident_bytes + self.slots * self.slot_bytes

    @cached_property
    def host_bytes(self) -> int:
        """Bytes of the copy in host memory, from which units come."""
        return sum(unit.bytes for unit in self.units)


@dataclass(frozen=True)
class ComponentPlacement:
    """Where one component's weights are.

    Attributes:
        weights: what there is.
        offloaded: whether its family is in ``--offload``; if not, all of it stays on the device, no copy elsewhere.
        stays: whether what is on the device of it stays there between stages.
        streams: its stacks' streams, one a stack that has blocks; empty unless offloaded.
        modulation: the stream of its blocks' modulation, whose buffers exist only while they are used; None where it
            counts to the blocks.
    """

    weights: ComponentWeights
    offloaded: bool
    stays: bool
    streams: tuple[Stream, ...] = ()
    modulation: Stream | None = None

    @cached_property
    def device_bytes(self) -> int:
        """Bytes on the device while the component is in use, without the modulation's buffers and tables."""
        if self.offloaded:
            return self.weights.outside + sum(stream.device_bytes for stream in self.streams)
        return self.weights.bytes - sum(unit.bytes for unit in self.weights.modulation)

    @cached_property
    def modulation_bytes(self) -> int:
        """Bytes of the modulation's buffers, while they are used."""
        return 0 if self.modulation is None else self.modulation.device_bytes

    @cached_property
    def host_bytes(self) -> int:
        """Bytes of its copy in host memory: all of an offloaded component, of others the modulation alone."""
        if self.offloaded:
            return self.weights.bytes
        return 0 if self.modulation is None else self.modulation.host_bytes


@dataclass(frozen=True)
class Placement:
    """Where everything is on one rank; `resident` VAEs and activations are counted by whoever made ``needs``.

    Attributes:
        components: by name; without the VAEs.
        budget: bytes of the device that may be used; None: not known, all that is on the device stays there.
    """

    components: Mapping[str, ComponentPlacement]
    budget: int | None

    def on_device(self, component: str | None) -> int:
        """Return the bytes of weights on the device while ``component`` is in use; None: a VAE or nothing."""
        return sum(placed.device_bytes for name, placed in self.components.items() if placed.stays or name == component)


@dataclass(frozen=True)
class Needs:
    """What a rank needs on its device besides these weights.

    Attributes:
        running: bytes while each component is in use (activations, tables, buffers of the modulation), by component.
        between: the same while the VAEs or nothing is, the VAE in use included.
        always: bytes that are always taken, such as VAEs that stay.
    """

    running: Mapping[str, int]
    between: int = 0
    always: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, for the ranks."""
        return {"running": dict(self.running), "between": self.between, "always": self.always}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Needs:
        """Read what `to_dict` returned, after a trip through JSON."""
        return cls(**data)


NO_NEEDS = Needs({})
"""What is left room for when nobody planned."""


def plan_placement(
    weights: Mapping[str, ComponentWeights], options: OffloadOptions, *, budget: int | None, needs: Needs
) -> Placement:
    """Place ``weights`` (without the VAEs) by ``options``.

    Resident blocks are spread evenly over a stack, so that between two of them there is time to copy the next. Those
    that were left to be found (``resident_blocks`` None) are as many as fit into ``budget`` beside ``needs``; without a
    budget none. First come the transformers', which save a copy at every step, each as if the others had left; then the
    largest set of offloaded components that fits stays between stages, and the rest comes and goes; last, of what stays
    and runs once a job, blocks become resident.
    """
    placed = {name: _place(held, options, options.resident_blocks or 0) for name, held in weights.items()}
    looks = options.resident_blocks is None and budget is not None
    for name in PARTITIONS if looks else ():
        if name in placed and placed[name].offloaded:
            leaving = {other: replace(one, stays=not one.offloaded) for other, one in placed.items()}
            found = _most_resident(name, weights[name], options, Placement(leaving, budget), needs)
            placed[name] = replace(found, stays=True)
    placed = _choose_staying(placed, budget, needs)
    for name in placed if looks else ():
        if name not in PARTITIONS and placed[name].offloaded and placed[name].stays:
            placed[name] = _most_resident(name, weights[name], options, Placement(placed, budget), needs)
    return Placement(placed, budget)


def _place(held: ComponentWeights, options: OffloadOptions, resident: int) -> ComponentPlacement:
    modulation = Stream(held.modulation, frozenset()) if held.modulation else None
    if family_of(held.name) not in options.offload:
        return ComponentPlacement(held, False, True, (), modulation)
    streams = tuple(Stream(units, _spread(units, resident)) for units in held.stacks.values() if units)
    return ComponentPlacement(held, True, True, streams, modulation)


def _spread(units: tuple[Unit, ...], count: int) -> frozenset[str]:
    """Return the names of ``count`` of ``units``, evenly spread, at most all."""
    total, count = len(units), min(count, len(units))
    return frozenset(unit.name for i, unit in enumerate(units) if (i + 1) * count // total > i * count // total)


def _choose_staying(
    placed: Mapping[str, ComponentPlacement], budget: int | None, needs: Needs
) -> dict[str, ComponentPlacement]:
    """Return ``placed`` with the largest set of offloaded components staying that fits."""
    movable = [name for name, component in placed.items() if component.offloaded]
    sets = [set(chosen) for size in range(len(movable), -1, -1) for chosen in itertools.combinations(movable, size)]
    sets.sort(key=lambda chosen: -sum(placed[name].device_bytes for name in chosen))
    for chosen in sets:
        tried = {
            name: replace(component, stays=not component.offloaded or name in chosen)
            for name, component in placed.items()
        }
        if fits(Placement(tried, budget), needs) or not chosen:
            return tried
    raise AssertionError("the empty set was tried")


def _most_resident(
    name: str, held: ComponentWeights, options: OffloadOptions, placement: Placement, needs: Needs
) -> ComponentPlacement:
    """Return the placement of ``name`` with as many resident blocks as fit; more blocks never take less."""
    best, low = placement.components[name], 1
    high = max(len(units) for units in held.stacks.values())
    while low <= high:
        middle = (low + high) // 2
        tried = replace(_place(held, options, middle), stays=best.stays)
        if fits(Placement({**placement.components, name: tried}, placement.budget), needs):
            best, low = tried, middle + 1
        else:
            high = middle - 1
    return best


def fits(placement: Placement, needs: Needs) -> bool:
    """Whether ``placement`` and ``needs`` stay within the budget at every stage; true when it is not known."""
    return placement.budget is None or peak(placement, needs) <= placement.budget


def peak(placement: Placement, needs: Needs) -> int:
    """Return the most bytes that are on the device at any stage."""
    running = [placement.on_device(name) + needs.running.get(name, 0) for name in placement.components]
    return needs.always + max([*running, placement.on_device(None) + needs.between])
