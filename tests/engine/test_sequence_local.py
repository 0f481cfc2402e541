"""The wrapped transformer on one rank: bit for bit the unwrapped one, and padding that changes nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.models.bundle import Models
from engine.parallel.layout import Layout
from engine.parallel.mesh import Mesh
from engine.parallel.sharding import SequenceParallel, apply_sequence_parallel, sequence_parallel_of
from tests.support.attention_cases import CASES, Case, make_inputs, make_layout, make_transformer
from tests.support.attention_runs import difference, latents
from tests.support.stages import load

ALONE = Mesh(Layout(0, 1, 1), None)  # type: ignore[arg-type]
UNPADDED = [case for case in CASES if case.pad is None]
PADDED = [case for case in CASES if case.pad is not None]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Bits depend on the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.no_grad():
        yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def models(tiny_checkpoint: Path) -> Models:
    return load(tiny_checkpoint, keep=frozenset({"transformer"}))


def wrap(model: Any) -> SequenceParallel:
    return apply_sequence_parallel(model, ALONE)


@pytest.mark.parametrize("case", UNPADDED, ids=lambda case: case.label)
def test_without_padding_the_wrapped_transformer_is_the_unwrapped_one_bit_for_bit(case: Case) -> None:
    model = make_transformer(case.heads)
    inputs = make_inputs(case, model)
    before = model(**inputs)
    wrap(model)
    for extras in ({}, make_layout(case).sequence_inputs()):
        assert all(torch.equal(a, b) for a, b in zip(before, model(**inputs, **extras), strict=True))


@pytest.mark.parametrize("case", PADDED, ids=lambda case: case.label)
def test_padding_changes_no_used_row_by_more_than_a_millionth(case: Case) -> None:
    model = make_transformer(case.heads)
    before = model(**make_inputs(dataclasses.replace(case, pad=None), model))
    wrap(model)
    after = model(**make_inputs(case, model), **make_layout(case).sequence_inputs())
    assert max(float((a - b).abs().max()) for a, b in zip(before, after, strict=True)) <= 1e-6


def test_a_run_of_a_pinned_length_gives_the_same_latents(models: Models) -> None:
    before = latents(models)
    parallel = wrap(models.transformer)
    assert difference(before, latents(models)) == 0.0
    assert difference(before, latents(models, pad_seq_len=192)) <= 1e-5
    parallel.remove()
    assert difference(before, latents(models)) == 0.0


def test_padding_without_a_wrapped_transformer_is_not_attempted(models: Models) -> None:
    assert sequence_parallel_of(models.transformer) is None
    with pytest.raises(AssertionError, match="wrapped"):
        latents(models, pad_seq_len=192)


def test_a_forward_that_fails_leaves_nothing_behind() -> None:
    case = CASES[3]
    model = make_transformer(case.heads)
    parallel = wrap(model)
    inputs = make_inputs(case, model) | make_layout(case).sequence_inputs()

    def fail(*_: object) -> None:
        assert parallel.shard is not None
        raise MemoryError

    handle = model.transformer_blocks[1].register_forward_pre_hook(fail)
    with pytest.raises(MemoryError):
        model(**inputs)
    assert parallel.shard is None
    handle.remove()
    model(**inputs)


def test_an_output_that_is_no_tuple_stays_what_it_was() -> None:
    case = CASES[0]
    model = make_transformer(case.heads)
    wrap(model)
    inputs = {**make_inputs(case, model), "return_dict": True}
    assert model(**inputs).sample.shape == (1, case.video, 96)


def test_rows_of_padding_have_the_tag_of_text_no_position_and_the_time_of_the_video() -> None:
    layout = make_layout(CASES[3])
    times, indices = layout.row_times(0.3, 0.6)
    assert (layout.used, layout.token_tags.numel()) == (85, 128)
    assert set(layout.token_tags[85:].tolist()) == {1}
    assert layout.position_ids[85:].abs().max() == 0
    assert times[indices[85:]].unique().tolist() == [pytest.approx(0.3)]
    assert indices.shape == (128,)
