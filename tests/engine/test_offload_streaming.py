"""One stack's stream: order, places, failures and both hazards, each hazard with a planted bug that must be seen."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from engine.models.home import Place, places
from engine.offload import stream_sync
from engine.offload.layout import UnitLayout, held_tensors
from engine.offload.pool import Slot
from engine.offload.source import HostUnit, OwnMemory
from engine.offload.stream_sync import Copies, PlainCopies, StreamCopies
from engine.offload.streamer import StreamedUnit, Streamer
from engine.placement import ALIGNMENT, SLOTS, Held, flat_bytes
from tests.support.delayed_copies import Clock, DelayedCopies, WithoutRelease, WithoutWait

CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("one_thread")


class Block(nn.Module):
    """A linear layer and, like the transformer's, a projection that is also called alone."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.projection = nn.Linear(16, 16, bias=False)
        self.register_buffer("offset", torch.randn(3, 16).t())
        self.fails = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.linear(x) + self.projection(x)) + self.offset.sum(1)
        if self.fails:
            raise ValueError("planted")
        return x


class Stack(nn.Module):
    """Blocks, one after the other."""

    def __init__(self, count: int) -> None:
        super().__init__()
        torch.manual_seed(count)
        self.blocks = nn.ModuleList(Block() for _ in range(count)).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


INPUT = torch.linspace(-1, 1, 32).view(2, 16)


def units_of(stack: Stack, resident: frozenset[int] = frozenset(), *, split: bool = False) -> list[StreamedUnit]:
    """Return the units of ``stack``; with ``split`` their projections only, which the blocks' calls need too."""
    found = []
    for number, block in enumerate(stack.blocks):
        assert isinstance(block, Block)
        module: nn.Module = block.projection if split else block
        host = HostUnit(f"blocks.{number}", list(places(module)), OwnMemory(CPU), component="toy")
        callers = (block, block.projection) if split else (block,)
        found.append(StreamedUnit(host, callers, number in resident))
    return found


def streamer(units: list[StreamedUnit], copies: Copies | None = None) -> Streamer:
    streamed = [unit.host.bytes for unit in units if not unit.resident]
    return Streamer(
        units,
        slots=min(SLOTS, len(streamed)),
        slot_bytes=max(streamed, default=0),
        device=CPU,
        copies=PlainCopies() if copies is None else copies,
    )


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("resident", [frozenset[int](), frozenset({0}), frozenset({1, 2}), frozenset(range(5))])
def test_a_stack_that_streams_computes_the_same_with_delayed_copies(count: int, resident: frozenset[int]) -> None:
    stack = Stack(count)
    wanted = stack(INPUT)
    copies = DelayedCopies()
    stream = streamer(units_of(stack, resident), copies)
    for _ in range(2):  # opened and closed twice
        stream.open()
        for _ in range(3):
            assert torch.equal(stack(INPUT), wanted)
            stream.check()
            assert len(stream.on_device) <= len(resident & set(range(count))) + SLOTS
        stream.close()
        stream.check()
        assert stream.on_device == ()
        assert torch.equal(stack(INPUT), wanted)
    assert copies.reused == 0


def test_a_block_that_does_not_wait_for_its_copy_computes_nonsense() -> None:
    stack = Stack(3)
    with_bug = streamer(units_of(stack), WithoutWait())
    with_bug.open()
    assert stack(INPUT).isnan().any()


def test_a_copy_into_a_slot_that_is_computed_with_is_seen() -> None:
    stack, copies = Stack(3), WithoutRelease()
    with_bug = streamer(units_of(stack), copies)
    with_bug.open()
    stack(INPUT)
    assert copies.reused > 0


class _Overwriting(Streamer):
    """Planted: copies the next block into the slot of the one that is about to compute."""

    def _enter(self, number: int) -> None:
        super()._enter(number)
        slot = self._slot_of(number)
        assert slot is not None
        self._copies.begin(slot, self._units[(number + 1) % 3].host.flat)


def test_a_copy_over_a_block_that_computes_makes_nonsense() -> None:
    stack, copies = Stack(3), DelayedCopies()
    units = units_of(stack)
    stream = _Overwriting(units, slots=2, slot_bytes=units[0].host.bytes, device=CPU, copies=copies)
    stream.open()
    assert stack(INPUT).isnan().any()
    assert copies.reused > 0


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> tuple[Clock, Clock]:
    """Return the computing and the copying stream."""
    compute, copy = Clock("compute"), Clock("copy")
    monkeypatch.setattr(stream_sync.torch, "Stream", lambda _: copy)
    monkeypatch.setattr(stream_sync.torch.accelerator, "current_stream", lambda _: compute)
    return compute, copy


class _NoWait(StreamCopies):
    def wait(self, slot: Slot) -> None:
        """Planted."""


class _NoRelease(StreamCopies):
    def release(self, slot: Slot) -> None:
        """Planted, after the first."""
        if slot not in self._computed:
            super().release(slot)


@pytest.mark.parametrize(
    ("kind", "early", "over"),
    [(StreamCopies, False, False), (_NoWait, True, False), (_NoRelease, False, True)],
    ids=["as it is", "no wait", "no release"],
)
def test_events_order_each_copy_between_two_uses(
    clocks: tuple[Clock, Clock], kind: type[StreamCopies], early: bool, over: bool
) -> None:
    """Use before the copy ended (``early``), and a copy before the use ended (``over``)."""
    compute, copy = clocks
    copies, slot, source = kind(CPU), Slot(64, CPU), torch.zeros(64, dtype=torch.uint8)
    before = compute.work()["compute"]
    found_early, found_over = [], []
    for _ in range(3):
        copies.begin(slot, source)
        found_over.append(copy.done["compute"] < before)
        copied = copy.done["copy"]
        copies.wait(slot)
        used = compute.work()
        found_early.append(used["copy"] < copied)
        before = used["compute"]
        copies.release(slot)
    copies.settle(slot)
    assert any(found_early) == early
    assert any(found_over) == over
    if kind is StreamCopies:
        assert compute.work()["copy"] >= copied


def test_blocks_that_are_skipped_or_run_out_of_order_are_brought_in_when_they_are_called() -> None:
    stack = Stack(5)
    order = [3, 0, 0, 4, 1, 3, 2]

    def run() -> torch.Tensor:
        x = INPUT
        for number in order:
            x = stack.blocks[number](x)
        return x

    wanted = run()
    stream = streamer(units_of(stack), DelayedCopies())
    stream.open()
    assert torch.equal(run(), wanted)
    assert torch.equal(run(), wanted)
    stream.check()


def test_an_error_in_the_middle_leaves_every_weight_where_it_belongs() -> None:
    stack = Stack(5)
    wanted = stack(INPUT)
    stream = streamer(units_of(stack, frozenset({1})), DelayedCopies())
    stream.open()
    failing = stack.blocks[2]
    assert isinstance(failing, Block)
    failing.fails = True
    with pytest.raises(ValueError, match="planted"):
        stack(INPUT)
    stream.check()
    assert [unit.host.at_home for unit in stream._units] == [True, False, True, True, True]
    failing.fails = False
    assert torch.equal(stack(INPUT), wanted)
    stream.close()
    stream.check()


def test_the_next_blocks_are_copied_ahead_and_after_the_last_the_first() -> None:
    stack = Stack(4)
    stream = streamer(units_of(stack))
    stream.open()
    seen = []
    for block in stack.blocks:
        block.linear.register_forward_pre_hook(lambda *_: seen.append(stream.on_device))
    stack(INPUT)
    pairs = [("blocks.0", "blocks.1"), ("blocks.1", "blocks.2"), ("blocks.2", "blocks.3"), ("blocks.0", "blocks.3")]
    assert seen == pairs
    assert stream.on_device == ("blocks.0", "blocks.1")


def test_a_part_of_a_block_streams_by_itself_called_alone_or_with_its_block() -> None:
    stack = Stack(3)
    wanted, alone = stack(INPUT), [block.projection(INPUT) for block in stack.blocks]
    stream = streamer(units_of(stack, split=True), DelayedCopies())
    stream.open()
    assert torch.equal(stack(INPUT), wanted)
    stream.check()
    for block, projected in zip(stack.blocks, alone, strict=True):
        assert torch.equal(block.projection(INPUT), projected)
    stream.check()


def test_weights_keep_their_strides_and_their_flat_bytes_are_the_placements() -> None:
    block = Block()
    block.linear.weight = nn.Parameter(torch.randn(16, 16).t(), False)
    block.projection.weight = nn.Parameter(torch.randn(4, 2, 8).permute(2, 0, 1), False)
    block.register_buffer("count", torch.tensor(3))
    before = {place.name: place.tensor.clone() for place in places(block)}
    strides = {place.name: place.tensor.stride() for place in places(block)}
    assert held_tensors(block)["count"] == Held((), "int64")
    unit = HostUnit("block", list(places(block)), OwnMemory(CPU), component="toy")
    assert unit.bytes == flat_bytes(held_tensors(block).values()) == unit.flat.numel()
    stream = streamer([StreamedUnit(unit, (block,))])
    for _ in range(2):
        stream.open()
        stream._enter(0)
        stream.check()
        for place in places(block):
            assert torch.equal(place.tensor, before[place.name])
            assert place.tensor.stride() == strides[place.name]
            assert place.tensor.storage_offset() * place.tensor.itemsize % ALIGNMENT == 0
        stream.close()
        assert {place.name: place.tensor.stride() for place in places(block)} == strides
        assert all(torch.equal(place.tensor, before[place.name]) for place in places(block))


def test_a_weight_with_gaps_is_refused() -> None:
    block = nn.Linear(8, 8)
    block.weight = nn.Parameter(torch.randn(8, 16)[:, ::2], False)
    with pytest.raises(ValueError, match="side by side"):
        UnitLayout([Place("weight", block, "weight")])


def test_own_memory_of_cuda_takes_its_bytes_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own pinned memory comes in powers of two."""
    registered: list[tuple[int, int, int]] = []

    class Runtime:
        def cudaHostRegister(self, *region: int) -> int:
            registered.append((region[0], region[1], region[2]))
            return 0

    monkeypatch.setattr(torch.cuda, "cudart", Runtime)
    monkeypatch.setattr(torch.cuda, "check_error", lambda status: None)
    flat, filled = OwnMemory(torch.device("cuda")).take("toy/block", 5000)
    assert (registered, filled) == ([(flat.data_ptr(), 5000, 0)], False)
