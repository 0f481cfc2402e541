"""Forwards and sampling runs with guides and references agree with the golden ones, on one rank and on two."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.support import golden_runs
from tests.support.rank_group import run_on_ranks

TOLERANCE = 5e-6
FORWARDS = golden_runs.unmasked("forward")
RUNS = golden_runs.unmasked("sampling")


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_there_are_runs_with_guides_and_references() -> None:
    assert {"guide_clip_and_audio", "guides_with_refs", "ref2va_all", "fl2va_both_124"} <= set(FORWARDS)
    assert {"i_guides_three_images", "p_guides_with_all_refs_124"} <= set(RUNS)


@pytest.mark.parametrize("name", FORWARDS)
def test_a_forward_agrees(name: str) -> None:
    assert golden_runs.forward_difference(golden_runs.wrapped(None), name) <= TOLERANCE


@pytest.mark.parametrize("name", RUNS)
def test_a_sampling_run_agrees(name: str) -> None:
    assert golden_runs.sampling_difference(golden_runs.wrapped(None), name) <= TOLERANCE


def test_a_guide_one_frame_late_is_seen() -> None:
    assert golden_runs.forward_difference(golden_runs.wrapped(None), "guide_clip_and_audio", late=1) > 1e-2


def test_two_ranks_agree_too(tmp_path: Path) -> None:
    run_on_ranks("tests.support.golden_runs:on_ranks", ranks=2, folder=tmp_path)
    for rank in range(2):
        found = json.loads((tmp_path / f"golden-{rank}.json").read_text())
        assert len(found) == len(FORWARDS) + 2
        assert max(found.values()) <= TOLERANCE, found
