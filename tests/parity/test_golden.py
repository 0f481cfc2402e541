"""Forwards and sampling runs with guides, references and masks agree with the golden ones, on one rank and on two."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from engine.contract.mask_cells import rows_of_cells
from engine.masking import RowMask
from tests.support import golden, golden_runs
from tests.support.rank_group import run_on_ranks

pytestmark = pytest.mark.usefixtures("one_thread")

TOLERANCE = 5e-6
FORWARDS = [*golden_runs.unmasked("forward"), *golden_runs.masked("forward")]
RUNS = [*golden_runs.unmasked("sampling"), *golden_runs.masked("sampling")]
MASK_CASES = list(golden.index()["masks"]["cases"])


def test_there_are_runs_with_guides_references_and_masks() -> None:
    assert {"guide_clip_and_audio", "guides_with_refs", "ref2va_all", "fl2va_both_124"} <= set(FORWARDS)
    assert {"masked_audio", "masked_both_with_guides_and_refs"} <= set(FORWARDS)
    assert {"i_guides_three_images", "p_guides_with_all_refs_124", "j_guides_and_both_masks"} <= set(RUNS)
    assert {"f_soft_ramp__velocity_times_mask", "g_random_fractions__velocity_times_mask"} <= set(RUNS)


@pytest.mark.parametrize("name", FORWARDS)
def test_a_forward_agrees(name: str) -> None:
    assert golden_runs.forward_difference(golden_runs.wrapped(None), name) <= TOLERANCE


@pytest.mark.parametrize("name", RUNS)
def test_a_sampling_run_agrees(name: str) -> None:
    assert golden_runs.sampling_difference(golden_runs.wrapped(None), name) <= TOLERANCE


@pytest.mark.parametrize("name", golden_runs.masked("sampling"))
def test_kept_cells_end_as_the_source_bit_for_bit(name: str) -> None:
    kept = golden_runs.kept_cells(golden_runs.wrapped(None), name)
    run = golden.index()["sampling"][name]
    assert kept == {stream: (run[f"kept_{stream}"]["kept"], 0) for stream in ("video", "audio")}


@pytest.mark.parametrize("case", MASK_CASES)
@pytest.mark.parametrize("stream", ["video", "audio"])
def test_row_times_agree(case: str, stream: str) -> None:
    tensors, latest = golden.tensors("masks", case), {"video": 0.999, "audio": 1.0}[stream]
    cells = tensors[f"cell_{stream}"]
    rows = torch.from_numpy(rows_of_cells(cells.numpy())).flatten()
    mask = RowMask(rows, cells, cells, cells, latest)
    audio_sigmas = golden.tensor("masks", "sigmas_audio")
    sigmas = audio_sigmas if stream == "audio" else torch.tensor(golden.index()["masks"]["sigmas"])
    for sigma, wanted in zip(sigmas, tensors[f"row_timestep_{stream}"], strict=True):
        assert (mask.times(sigma) - wanted).abs().max() <= 1.2e-7


def test_a_guide_one_frame_late_is_seen() -> None:
    assert golden_runs.forward_difference(golden_runs.wrapped(None), "guide_clip_and_audio", late=1) > 1e-2


def test_two_ranks_agree_too(tmp_path: Path) -> None:
    run_on_ranks("tests.support.golden_runs:on_ranks", ranks=2, folder=tmp_path)
    for rank in range(2):
        found = json.loads((tmp_path / f"golden-{rank}.json").read_text())
        assert len(found["differences"]) == len(FORWARDS) + len(golden_runs.ON_RANKS)
        assert max(found["differences"].values()) <= TOLERANCE, found
        streams = [stream for kept in found["kept"].values() for stream in kept.values()]
        assert sum(kept for kept, _ in streams) == 336 + 144 + 1408 + 488
        assert sum(different for _, different in streams) == 0
