"""Edits on several ranks, in every layout: one rank's result, kept cells to the bit, each row's own time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.mask_ranks import LAYOUTS
from tests.support.rank_group import run_on_ranks

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(300)]

Found = list[dict[str, Any]]
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


def test_every_rank_runs_its_rows_at_their_own_times(case: Found) -> None:
    whole = case[0]["whole"]
    assert len(set(whole)) > 20
    # A rank has a run of the rows, the same as its tensor-parallel neighbours.
    runs = [tuple(rank["times"]) for rank in case]
    joined = [time for i, run in enumerate(runs) if i == 0 or run != runs[i - 1] for time in run]
    assert joined[: len(whole)] == whole
    assert len(joined) == case[0]["pinned"]
    assert set(joined[len(whole) :]) == {whole[0]}, "padding has the time of the text, the video's"
