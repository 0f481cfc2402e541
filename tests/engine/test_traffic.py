"""The bytes of torch's own collectives, counted on real ranks, against the closed forms of each layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.checkpoint import open_checkpoint
from engine.parallel.accounting import (
    modulation_bytes,
    sum_bytes,
    tensor_gather_bytes,
    tensor_sum_bytes,
    weights_bytes,
)
from engine.planner.activations import table_bytes
from engine.planner.activations_transformer import RankRows, transformer_peak
from engine.planner.request import RequestSize
from engine.planner.weights import ServedModel, Setup
from engine.rank_options import ParallelOptions
from engine.tiny import PRESETS
from tests.support.rank_group import run_on_ranks
from tests.support.traffic_ranks import PEAK_SIZE

pytestmark = pytest.mark.ranks

TINY = PRESETS["tiny"]
ELEMENT = 4
MODALITIES = 3
TEXT = 10
ROWS = TEXT + 2 * 37 + 7 * 1 * 2
"""Text, sound in two channels, and the video's patches, of 22 frames of 64x32 pixels."""
PROMPT = 30
INNER = TINY.heads * TINY.head_dim
ATTENTION = [(INNER, TINY.hidden)] * 3 + [(TINY.hidden, INNER)]
FEED_FORWARD = [(2 * TINY.ffn, TINY.hidden), (TINY.hidden, TINY.ffn)]
REFINER_BLOCK = ATTENTION + FEED_FORWARD
BLOCK = [*REFINER_BLOCK, (6 * MODALITIES * TINY.hidden, TINY.time)]
Found = list[dict[str, Any]]


def measure(function: str, ranks: int, model: Path, folder: Path) -> Found:
    (folder / "model").symlink_to(model)
    run_on_ranks(f"tests.support.traffic_ranks:{function}", ranks=ranks, folder=folder, timeout=240)
    found: Found = json.loads((folder / "found.json").read_text())
    assert len(found) == ranks
    return found


@pytest.fixture(scope="module")
def two(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What each of two ranks counted in one forward, by case and kind of collective."""
    return measure("two", 2, tiny_checkpoint, tmp_path_factory.mktemp("two"))


def moved(entry: dict[str, Any]) -> tuple[int, int, int]:
    return entry["calls"], entry["sent"], entry["received"]


def test_tensor_parallelism_sums_twice_and_gathers_one_table_a_block(two: Found) -> None:
    shape: dict[str, int] = {"width": TINY.hidden, "element": ELEMENT, "ranks": 2}
    sums = TINY.layers * tensor_sum_bytes(ROWS, **shape) + TINY.refiner * tensor_sum_bytes(TEXT, **shape)
    tables = TINY.layers * tensor_gather_bytes(1, modalities=MODALITIES, **shape)
    # With T = 2 a sum costs its tensor's bytes, a gather half of them.
    assert sums == 2 * (TINY.layers * ROWS + TINY.refiner * TEXT) * TINY.hidden * ELEMENT
    assert tables == TINY.layers * 6 * MODALITIES * TINY.hidden * ELEMENT / 2
    for found in two:
        books = found["tensor"]
        assert moved(books["tensor_sum"]) == (2 * (TINY.layers + TINY.refiner), sums, sums)
        assert moved(books["tensor_gather"]) == (TINY.layers, tables, tables)
        assert set(books) == {"tensor_sum", "tensor_gather"}


def test_a_text_encoder_in_two_parts_sums_twice_a_layer(two: Found) -> None:
    for found in two:
        books = found["text encoder"]
        size = books["layers"] * tensor_sum_bytes(PROMPT, width=TINY.text_dim, element=ELEMENT, ranks=2)
        assert moved(books["tensor_sum"]) == (2 * books["layers"], size, size)
        assert set(books) == {"tensor_sum", "layers"}


def test_weights_that_two_ranks_share_travel_once_a_forward_half_of_each_block(two: Found) -> None:
    size = TINY.layers * weights_bytes(BLOCK, element=ELEMENT, ranks=2)
    size += TINY.refiner * weights_bytes(REFINER_BLOCK, element=ELEMENT, ranks=2)
    whole = sum(rows * columns for rows, columns in BLOCK * TINY.layers + REFINER_BLOCK * TINY.refiner) * ELEMENT
    assert size == whole / 2
    for found in two:
        assert moved(found["sharded"]["weights"]) == (TINY.layers + TINY.refiner, size, size)


def test_weights_without_even_shares_travel_padded(tiny_checkpoint: Path, tmp_path: Path) -> None:
    size = TINY.layers * weights_bytes(BLOCK, element=ELEMENT, ranks=3)
    size += TINY.refiner * weights_bytes(REFINER_BLOCK, element=ELEMENT, ranks=3)
    for found in measure("three", 3, tiny_checkpoint, tmp_path):
        assert moved(found["sharded"]["weights"]) == (TINY.layers + TINY.refiner, size, size)


def test_watching_leaves_the_counts_of_our_own_collectives_as_they_are(two: Found) -> None:
    for found in two:
        whole = dict(found["ulysses"])
        assert {"ulysses_qkv", "ulysses_out", "heads"} <= set(whole)
        assert not {"tensor_sum", "tensor_gather", "weights"} & set(whole)
        # Sharded weights come with their projections: no tables of modulation travel.
        assert moved(whole.pop("modulation"))[0] == 1
        ours = {kind: entry for kind, entry in found["sharded"].items() if kind != "weights"}
        assert ours == whole


def test_half_of_the_modulation_tables_comes_from_the_other_rank(two: Found) -> None:
    # One step, whose two streams start at one time.
    sizes: dict[str, int] = {"width": TINY.hidden, "modalities": MODALITIES, "element": ELEMENT}
    for rank, found in enumerate(two):
        sent, received = modulation_bytes([1], [TINY.layers // 2] * 2, rank, **sizes)
        assert moved(found["ulysses"]["modulation"]) == (1, sent, received)
        assert sent == received == TINY.layers * 6 * MODALITIES * TINY.hidden * ELEMENT / 2
        assert "modulation" not in found["tensor"]


def test_a_sum_moves_each_part_to_its_rank_and_back_to_all() -> None:
    # n ranks: n - 1 parts of a rank travel to their owners, and its own sum travels to n - 1 ranks.
    for ranks in (1, 2, 3, 5):
        assert sum_bytes(60, ranks) == (ranks - 1) * (60 // ranks) + (ranks - 1) * (60 // ranks)


@pytest.mark.parametrize(
    ("name", "degrees"), [("ulysses", (2, 1, 1)), ("ring", (1, 2, 1)), ("tensor", (1, 1, 2))], ids=str
)
def test_a_ranks_forward_peaks_within_fifteen_percent_of_the_plan(
    two: Found, name: str, degrees: tuple[int, int, int], tiny_checkpoint: Path
) -> None:
    ulysses, ring, tensor = degrees
    layout = ParallelOptions(ulysses_degree=ulysses, ring_degree=ring, tp_degree=tensor)
    model, setup = ServedModel.of(open_checkpoint(tiny_checkpoint)), Setup(parallel=layout, dtype="fp32")
    request = RequestSize(**PEAK_SIZE)
    for rank, found in enumerate(two):
        rows = RankRows.of(model, setup, rank, request)
        planned = transformer_peak(model, setup, request, rows, tables=True) + table_bytes(model, setup, request)
        assert planned == pytest.approx(found["peaks"][name], rel=0.15)
