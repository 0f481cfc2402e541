"""Edits on several ranks, in every layout: one rank's result, kept cells to the bit, each row's own time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.parallel.accounting import modulation_bytes
from engine.parallel.rows import apportion
from engine.placement_modulation import modulation_table_bytes
from engine.tiny import PRESETS
from tests.support.mask_ranks import LAYOUTS, SIZES
from tests.support.rank_group import run_on_ranks

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(300)]

Found = list[dict[str, Any]]
TINY = PRESETS["tiny"]
CASES = [
    pytest.param((ranks, name), marks=[pytest.mark.slow] if ranks > 2 else [], id=f"{ranks} {name}")
    for ranks, layouts in LAYOUTS.items()
    for name in layouts
]


def _measure(ranks: int, model: Path, folder: Path) -> Found:
    (folder / "model").symlink_to(model)
    run_on_ranks("tests.support.mask_ranks:run", ranks=ranks, folder=folder, timeout=280)
    found: Found = json.loads((folder / "found.json").read_text())
    assert len(found) == ranks
    return found


@pytest.fixture(scope="module")
def two(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What each of two ranks found, by layout."""
    return _measure(2, tiny_checkpoint, tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def four(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What each of four ranks found, by layout."""
    return _measure(4, tiny_checkpoint, tmp_path_factory.mktemp("four"))


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Found:
    """What each rank found in one layout."""
    ranks, name = request.param
    found = request.getfixturevalue({2: "two", 4: "four"}[ranks])
    return [{**rank[name], "whole": rank["whole"]} for rank in found]


def test_an_edit_equals_one_ranks_to_a_hundred_thousandth(case: Found) -> None:
    assert max(rank["off"] for rank in case) <= 1e-5
    assert min(rank["from plain"] for rank in case) > 0.1


def test_what_is_kept_is_the_source_to_the_bit_on_every_rank(case: Found) -> None:
    assert [rank["kept but changed"] for rank in case] == [0] * len(case)


def test_all_ones_is_no_mask_to_the_bit(case: Found) -> None:
    assert [rank["ones but not plain"] for rank in case] == [0] * len(case)


def test_tables_of_modulation_change_no_bit_and_travel_as_the_closed_form_says(case: Found) -> None:
    assert [rank["changed by tables"] for rank in case] == [0] * len(case)
    tables = [rank["tables"] for rank in case]
    if case[0]["sharded"]:
        # Weights that are gathered block by block bring their projections with them.
        assert [found["held"] for found in tables] == [0] * len(case)
        assert [len(found["computed"]) for found in tables] == [SIZES["steps"] * TINY.layers] * len(case)
        return
    sequence = case[0]["sequence"]
    shares = apportion(TINY.layers, [1.0] * sequence)
    one_level = modulation_table_bytes([1], blocks=TINY.layers, width=TINY.hidden, element=4)
    levels = tables[0]["held"] // one_level
    assert levels > 3 * 20
    for number, found in enumerate(tables):
        place = number * sequence // len(case)
        assert found["held"] == levels * one_level
        assert len(found["computed"]) == shares[place]
        moved = modulation_bytes([levels], shares, place, width=TINY.hidden, modalities=3, element=4)
        assert found["moved"] == (list(moved) if sequence > 1 else [0, 0])
    # Ranks that share each layer's weights compute the same blocks; of the others each block is computed once.
    computed = [block for found in tables[:: len(case) // sequence] for block in found["computed"]]
    assert sorted(computed) == list(range(TINY.layers))


def test_every_rank_runs_its_rows_at_their_own_times(case: Found) -> None:
    whole = case[0]["whole"]
    assert len(set(whole)) > 20
    # A rank has a run of the rows, the same as its tensor-parallel neighbours.
    runs = [tuple(rank["times"]) for rank in case]
    joined = [time for i, run in enumerate(runs) if i == 0 or run != runs[i - 1] for time in run]
    assert joined[: len(whole)] == whole
    assert len(joined) == case[0]["pinned"]
    assert set(joined[len(whole) :]) == {whole[0]}, "padding has the time of the text, the video's"
