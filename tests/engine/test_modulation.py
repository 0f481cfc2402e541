"""Modulation tables: the same bits as without them, one call of each projection a run, nothing left behind."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from engine.conditioning import NOTHING, Conditions, EncodedCondition, EncodedReference
from engine.masking import Edit
from engine.models.bundle import Models
from engine.offload.modulation import Modulation
from engine.parallel.compile import compile_blocks
from engine.parallel.layout import Layout
from engine.parallel.mesh import Mesh
from engine.parallel.sharding import apply_sequence_parallel
from engine.placement_modulation import modulation_table_bytes, most_levels
from engine.planner.activations import step_table_bytes, table_bytes
from engine.planner.request import RequestSize
from engine.planner.sizes import RELEASED
from engine.planner.weights import ServedModel, Setup
from engine.rank_options import OffloadOptions, ParallelOptions
from engine.stages.base import Latents, PromptEmbeds
from engine.stages.denoise import denoise
from engine.tiny import PRESETS
from tests.support import modulation_device, stages
from tests.support.fake_accelerator import run_on_device

pytestmark = pytest.mark.usefixtures("one_thread")

TINY = PRESETS["tiny"]
LEVEL = modulation_table_bytes([1], blocks=TINY.layers, width=TINY.hidden, element=4)
STEPS = 4
SIZES: dict[str, Any] = {"width": 64, "height": 32, "frames": 22, "seed": 3}
TEXT_ROWS = 9


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def fractions(seed: int, *shape: int) -> torch.Tensor:
    """Return a mask of many levels, zeros and ones among them."""
    return (draw(seed, *shape) + 0.5).clamp(0, 1)


KEYFRAMES = Conditions((EncodedCondition(0, draw(6, 1, 24, 1, 2, 4), draw(7, 1, 32, 2, 5)),))
REFERENCES = Conditions((), (EncodedReference("image", draw(8, 1, 24, 1, 2, 2), None),))
EDIT = Edit(draw(1, 1, 24, 7, 2, 4), draw(2, 1, 32, 2, 37), fractions(3, 7, 2, 4), fractions(4, 2, 37))
CASES: dict[str, dict[str, Any]] = {
    "text": {},
    "keyframes": {"conditions": KEYFRAMES},
    "references": {"conditions": REFERENCES},
    "masks": {"edit": EDIT},
    "masks and keyframes": {"edit": EDIT, "conditions": KEYFRAMES},
}


@pytest.fixture(scope="module")
def models(tiny_checkpoint: Path) -> Models:
    return stages.load(tiny_checkpoint, keep=frozenset({"transformer", "transformer_ref"}))


def make(models: Models, modulation: Modulation, *, steps: int = STEPS, **options: Any) -> Latents:
    """Denoise with ``modulation``."""
    embeds = PromptEmbeds(draw(5, 1, TEXT_ROWS, models.facts.text_dim), torch.ones(TEXT_ROWS, dtype=torch.long))
    ctx = dataclasses.replace(stages.context(models), modulation=modulation)
    return denoise(ctx, embeds, steps=steps, **(SIZES | {"conditions": NOTHING} | options))


def same(first: Latents, second: Latents) -> bool:
    return torch.equal(first.video, second.video) and torch.equal(first.audio, second.audio)


class Calls:
    """Counts the calls of every projection while it is entered."""

    def __init__(self, *transformers: Any) -> None:
        self.projections = [block.adaln_proj for model in transformers for block in model.transformer_blocks]
        self.each = [0] * len(self.projections)

    def __enter__(self) -> Calls:
        def count(number: int) -> Any:
            def hook(*_: Any) -> None:
                self.each[number] += 1

            return hook

        self._handles = [each.register_forward_pre_hook(count(i)) for i, each in enumerate(self.projections)]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()


def projections(transformer: Any) -> list[Any]:
    return [block.adaln_proj for block in transformer.transformer_blocks]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_run_with_tables_is_the_run_without_them_bit_for_bit(models: Models, case: dict[str, Any]) -> None:
    references = case.get("conditions", NOTHING).references
    transformer = models.transformer_ref if references else models.transformer
    with Calls(transformer) as without:
        plain = make(models, Modulation(0), **case)
    with Calls(transformer) as once:
        made = make(models, Modulation(), **case)
    assert same(made, plain)
    assert without.each == [STEPS] * TINY.layers
    assert once.each == [1] * TINY.layers


def test_the_projections_of_an_edit_see_many_levels_and_every_step_its_own(models: Models) -> None:
    modulation = Modulation()
    make(models, modulation, edit=EDIT)
    held = modulation.held
    assert held % LEVEL == 0
    assert held // LEVEL > STEPS * 20
    make(models, modulation)
    # Video and sound start at one time and go their own ways.
    assert modulation.held == (1 + 2 * (STEPS - 1)) * LEVEL
    make(models, modulation, conditions=KEYFRAMES)
    assert modulation.held <= STEPS * most_levels(pictures=True, sound=True) * LEVEL


def test_outputs_of_the_same_steps_share_one_table_and_other_steps_do_not(models: Models) -> None:
    modulation = Modulation()
    with Calls(models.transformer, models.transformer_ref) as calls:
        first = make(models, modulation, edit=EDIT)
        second = make(models, modulation, edit=EDIT, seed=4)
        assert calls.each == [1, 1, 0, 0]
        assert not same(first, second)
        assert same(second, make(models, Modulation(), edit=EDIT, seed=4))
        assert same(make(models, modulation, steps=2), make(models, Modulation(), steps=2))
        assert calls.each == [4, 4, 0, 0]
        make(models, modulation, steps=2, conditions=REFERENCES)
        assert calls.each == [4, 4, 1, 1]
        modulation.forget()
        assert modulation.held == 0


def test_tables_above_the_budget_are_not_made_and_the_log_says_so(
    models: Models, caplog: pytest.LogCaptureFixture
) -> None:
    plain = make(models, Modulation(0), edit=EDIT)
    modulation = Modulation(1)
    caplog.set_level(logging.INFO, logger="engine.offload.modulation")
    with Calls(models.transformer) as calls:
        assert same(make(models, modulation, edit=EDIT, steps=30), make(models, Modulation(0), edit=EDIT, steps=30))
        assert calls.each == [60, 60]
        assert same(make(models, modulation, edit=EDIT), plain)
    assert "--modulation-tables-mb is 1" in caplog.text


def test_projections_are_brought_for_the_tables_alone_or_for_the_whole_run(models: Models) -> None:
    events: list[str] = []

    @contextmanager
    def bring(transformer: Any) -> Iterator[None]:
        assert transformer is models.transformer
        events.append("in")
        yield
        events.append("out")

    handle = models.transformer.register_forward_pre_hook(lambda *_: events.append("step"))
    make(models, Modulation(projections=bring), steps=2)
    make(models, Modulation(1, projections=bring), steps=30, edit=EDIT)
    handle.remove()
    assert events == ["in", "out", "step", "step", "in", *["step"] * 30, "out"]


@pytest.mark.parametrize("where", ["a projection", "a block"])
def test_a_run_that_fails_leaves_every_block_its_projection(models: Models, where: str) -> None:
    before = projections(models.transformer)

    def fail(*_: Any) -> None:
        raise MemoryError

    failing = before[1] if where == "a projection" else models.transformer.transformer_blocks[1]
    handle = failing.register_forward_pre_hook(fail)
    modulation = Modulation()
    with pytest.raises(MemoryError):
        make(models, modulation)
    handle.remove()
    assert projections(models.transformer) == before
    assert all("forward" not in projection.__dict__ for projection in before)
    assert not any(block._forward_pre_hooks for block in models.transformer.transformer_blocks)
    assert same(make(models, modulation), make(models, Modulation(0)))


def test_a_compiled_block_is_compiled_for_two_counts_of_levels_not_for_every_step(tiny_checkpoint: Path) -> None:
    models = stages.load(tiny_checkpoint, keep=frozenset({"transformer"}))
    apply_sequence_parallel(models.transformer, Mesh(Layout(0, 1, 1), None))  # type: ignore[arg-type]
    plain = make(models, Modulation(0), edit=EDIT, steps=12)
    compile_blocks(models.transformer, backend="eager")
    torch.compiler.reset()
    counters.clear()
    graphs = []
    for steps in (1, 2, 12):
        made = make(models, Modulation(), edit=EDIT, steps=steps)
        graphs.append(counters["stats"]["unique_graphs"])
    assert (made.video - plain.video).abs().max() <= 1e-5
    # Twelve steps of an edit have more counts of levels than torch would compile for.
    assert graphs[2] == graphs[1]


@pytest.fixture(scope="module")
def told(small_checkpoint: Path) -> dict[str, dict[str, int]]:
    """What runs on the fake accelerator held and moved from their second step on, by case."""
    found: dict[str, dict[str, int]] = run_on_device(
        "tests.support.modulation_device:report", folder=str(small_checkpoint)
    )
    return found


def test_while_denoising_the_device_has_one_steps_table_and_not_the_projections(
    told: dict[str, dict[str, int]],
) -> None:
    without, tables = told["projections with their blocks"], told["tables"]
    small = PRESETS["small"]
    projections = small.layers * (small.time + 1) * 18 * small.hidden * 4
    level = modulation_table_bytes([1], blocks=small.layers, width=small.hidden, element=4)
    # Video and sound begin at one time.
    assert (tables["projections"], tables["tables"]) == (projections, 7 * level)
    assert without["between"] - tables["between"] == projections - level
    # A forward without tables makes one block's rows at a time.
    row = modulation_table_bytes([2], blocks=1, width=small.hidden, element=4)
    assert without["peak"] - tables["peak"] == projections - 2 * level + row
    assert tables["moved"] - without["moved"] == (modulation_device.STEPS - 1) * 2 * level


def test_offloaded_blocks_pass_without_their_projections(told: dict[str, dict[str, int]]) -> None:
    without, tables = told["offload"], told["offload and tables"]
    # Each step brings every block; the last one has brought the first ones of the next.
    level = tables["tables"] // 7
    assert without["moved"] - tables["moved"] == (modulation_device.STEPS - 1) * (tables["projections"] - 2 * level)
    per_block = tables["projections"] // PRESETS["small"].layers
    assert without["between"] - tables["between"] == 2 * per_block - level


def test_projections_that_got_no_tables_pass_through_their_own_slots(told: dict[str, dict[str, int]]) -> None:
    streamed = told["tables above the budget"]
    assert streamed["tables"] == 0
    passes, inputs = divmod(streamed["moved"], streamed["projections"])
    assert passes == modulation_device.LONG - 1
    assert inputs < streamed["projections"] / 100
    slots = 2 * streamed["projections"] // PRESETS["small"].layers
    assert told["a long run"]["between"] - streamed["between"] == streamed["projections"] - slots


def test_on_a_device_the_result_is_the_same_bit_for_bit_wherever_the_weights_lie(
    told: dict[str, dict[str, int]],
) -> None:
    assert set(told) == {*modulation_device.CASES, *modulation_device.LONG_CASES}
    assert {name: case["differing"] for name, case in told.items()} == dict.fromkeys(told, 0)


def test_the_released_transformer_gives_up_two_fifths_of_its_weights_for_a_gigabyte_in_host_memory() -> None:
    layers, hidden, time, element = 50, 5376, 2688, 2
    projections = layers * (time + 1) * 18 * hidden * element
    assert projections == pytest.approx(26.0e9, rel=0.01)
    assert projections / 66.3e9 == pytest.approx(0.39, abs=0.005)
    level = modulation_table_bytes([1], blocks=layers, width=hidden, element=element)
    assert level == layers * 18 * hidden * element == 9_676_800
    # Fifty steps: video and sound at their own times, but for the first.
    assert modulation_table_bytes([1, *[2] * 49], blocks=layers, width=hidden, element=element) < 1e9


def test_the_planner_leaves_an_edit_what_its_masks_may_ask_of_tables() -> None:
    model = ServedModel(RELEASED)
    setup = Setup(parallel=ParallelOptions(ulysses_degree=1))
    size = RequestSize(width=1344, height=768, frames=362, steps=50)
    level = modulation_table_bytes([1], blocks=50, width=5376, element=2)
    assert table_bytes(model, setup, size) == 100 * level
    # A mask of zeros and ones has one time more in each stream; of one with fractions nobody knows.
    assert table_bytes(model, setup, dataclasses.replace(size, mask_levels=2)) == 200 * level
    edit = dataclasses.replace(size, mask_levels=512)
    assert table_bytes(model, setup, edit) == 4_000_000_000
    # On the device there is one step's table.
    assert step_table_bytes(model, setup, size) == 2 * level
    assert step_table_bytes(model, setup, edit) == 1_000_000_000
    small = dataclasses.replace(setup, offload=OffloadOptions(modulation_tables_mb=500))
    assert table_bytes(model, small, size) == 0
