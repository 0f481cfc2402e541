"""Parallel attention on two, three and four gloo ranks against one rank; what travels and what is held.

One group of ranks for each number runs all cases (`tests.support.attention_ranks`); the tests read what it found.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from engine.parallel.accounting import (
    head_bytes,
    ring_bytes,
    ring_peak_bytes,
    ulysses_out_bytes,
    ulysses_peak_bytes,
    ulysses_qkv_bytes,
)
from engine.tiny import AUDIO_LATENT_CHANNELS, LATENT_CHANNELS, PRESETS
from tests.support.attention_cases import CASES, PATCH_CELLS, Case, make_layout
from tests.support.rank_group import run_on_ranks

pytestmark = [pytest.mark.ranks, pytest.mark.slow]
ELEMENT = 4
ROW_HEAD = PRESETS["tiny"].head_dim * ELEMENT


@dataclass(frozen=True)
class Seen:
    """What rank ``rank`` found under layout (U, R)."""

    ulysses: int
    ring: int
    rank: int
    found: dict[str, Any]

    def __str__(self) -> str:
        return f"U={self.ulysses} R={self.ring} rank {self.rank}"


@pytest.fixture(scope="module", params=[2, 3, 4])
def seen(request: pytest.FixtureRequest, tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Seen]:
    """What all ranks of a group found, under both layouts of their number."""
    folder = tmp_path_factory.mktemp(f"ranks{request.param}")
    (folder / "model").symlink_to(tiny_checkpoint)
    run_on_ranks("tests.support.attention_ranks:everything", ranks=request.param, folder=folder, timeout=280)
    return [
        Seen(*(int(degree) for degree in layout.split("x")), rank, found)
        for rank in range(request.param)
        for layout, found in json.loads((folder / f"rank{rank}.json").read_text()).items()
    ]


def every_case(seen: list[Seen]) -> Iterator[tuple[str, Seen, Case, dict[str, Any]]]:
    """Yield (where, rank, case, what was found) of all cases."""
    for one in seen:
        for case in CASES:
            yield f"{one} {case.label}", one, case, one.found["cases"][case.label]


def test_both_streams_of_a_forward_equal_one_ranks_to_a_hundred_thousandth(seen: list[Seen]) -> None:
    far = {where: found["together"] for where, _, _, found in every_case(seen) if max(found["together"]) > 1e-5}
    assert far == {}
    assert len({(one.ulysses, one.ring) for one in seen}) == (3 if len(seen) == 12 else 2)


def test_rows_shared_out_by_weight_give_the_same_result(seen: list[Seen]) -> None:
    for one in seen:
        assert max(one.found["weighted"]["together"]) <= 1e-5, str(one)
        counts = one.found["weighted"]["counts"]
        assert counts[1] > 2 * counts[0]


def test_a_pinned_length_changes_the_used_rows_of_one_rank_by_a_millionth_at_most(seen: list[Seen]) -> None:
    for where, _, case, found in every_case(seen):
        assert max(found["pinned on one rank"]) <= (1e-6 if case.pad else 0.0), where


def test_condition_rows_do_not_travel_back(seen: list[Seen]) -> None:
    assert [where for where, _, _, found in every_case(seen) if found["conditions"]] == []


def test_a_rank_computes_its_own_rows_alone_but_for_the_text_refiner(seen: list[Seen]) -> None:
    for one in seen:
        assert one.found["rows"]["seen"] == one.found["rows"]["expected"], str(one)
        assert one.found["rows"]["seen"]["rope"] < CASES[3].used


def test_removing_the_hooks_restores_the_model_bit_for_bit(seen: list[Seen]) -> None:
    assert [where for where, _, _, found in every_case(seen) if max(found["removed"])] == []


def test_in_bf16_all_ranks_are_at_most_twice_as_far_from_fp32_as_one_rank(seen: list[Seen]) -> None:
    for one in seen:
        alone, together = one.found["bf16"]["alone"], one.found["bf16"]["together"]
        assert all(b <= 2 * a for a, b in zip(alone, together, strict=True)), (str(one), alone, together)
        assert min(alone) > 0


def test_without_communication_or_with_padding_attended_to_the_result_is_far_off(seen: list[Seen]) -> None:
    for one in seen:
        assert min(one.found["controls"]["without communication"]) > 0.1, str(one)
        assert min(one.found["controls"]["padding attended to"]) > 1e-2, str(one)


def test_causal_attention_works_without_padding_and_is_refused_with_it(seen: list[Seen]) -> None:
    for one in seen:
        assert "valid length" in one.found["controls"]["causal"], str(one)
        assert one.found["controls"]["causal difference"] <= 1e-5, str(one)


def test_runs_of_changing_strategy_equal_one_ranks(seen: list[Seen]) -> None:
    """Steps, blocks, a job on one rank of the fleet and the next on all."""
    for one in seen:
        runs = {what: value for what, value in one.found["mixed"].items() if what != "refused"}
        assert max(runs.values()) <= 1e-4, (str(one), runs)
        assert {"steps", "pinned", "the next job on all"} < set(runs)
        assert ("a job on rank 0" in runs) == (one.rank == 0)
        assert any(what.startswith("a local block in") for what in runs)
        assert ("a job on one ulysses group" in runs) == (min(one.ulysses, one.ring) > 1 and one.rank < one.ulysses)


def test_a_strategy_is_refused_on_fewer_ranks_than_it_needs(seen: list[Seen]) -> None:
    assert all("only [0] take part" in one.found["mixed"]["refused"] for one in seen)


def overlaps(events: list[str], ranks: int) -> bool:
    """Return whether each block's transfer is posted before the attention on the one before it, awaited after it."""
    place = {event: number for number, event in enumerate(events)}
    return len(events) == 3 * ranks - 2 and all(
        place[f"post {block}"] < place[f"attend {block - 1}"] < place[f"wait {block}"] < place[f"attend {block}"]
        for block in range(1, ranks)
    )


def test_the_next_block_travels_while_the_current_one_is_attended_to(seen: list[Seen]) -> None:
    for one in seen:
        assert one.ring == 1 or overlaps(one.found["ring"]["events"], one.ring), (str(one), one.found["ring"])


@pytest.mark.parametrize(
    "events",
    [
        "post 1,wait 1,attend 0,post 2,wait 2,attend 1,attend 2",  # first the transfer, then the attention
        "attend 0,post 1,wait 1,attend 1,post 2,wait 2,attend 2",  # first the attention, then the transfer
        "post 1,wait 1,post 2,wait 2,attend 0,attend 1,attend 2",  # all gathered first
        "attend 0",  # nothing travels
    ],
)
def test_a_ring_that_does_not_overlap_would_be_seen(events: str) -> None:
    assert overlaps(["post 1", "attend 0", "wait 1", "post 2", "attend 1", "wait 2", "attend 2"], 3)
    assert not overlaps(events.split(","), 3)


def expected_books(one: Seen, case: Case, found: dict[str, Any]) -> dict[str, tuple[int, int, int]]:
    """Return (sent, received, peak) by kind of collective, from the closed forms."""
    ulysses, ring_index = one.rank % one.ulysses, one.rank // one.ulysses
    valid, heads, layers = found["valid"], found["heads"], found["layers"]
    group = valid[ring_index * one.ulysses : (ring_index + 1) * one.ulysses]
    blocks = [sum(valid[first : first + one.ulysses]) for first in range(0, len(valid), one.ulysses)]
    books = {}
    if one.ulysses > 1:
        to_heads = ulysses_qkv_bytes(group, heads, ulysses, row_head=ROW_HEAD)
        to_rows = ulysses_out_bytes(group, heads, ulysses, row_head=ROW_HEAD)
        peak = ulysses_peak_bytes(group, heads, ulysses, row_head=ROW_HEAD)
        books["ulysses_qkv"] = (layers * to_heads[0], layers * to_heads[1], peak)
        books["ulysses_out"] = (layers * to_rows[0], layers * to_rows[1], 0)
    if one.ring > 1:
        around = ring_bytes(blocks, heads[ulysses], ring_index, row_head=ROW_HEAD)
        peak = ring_peak_bytes(blocks, heads[ulysses], ring_index, row_head=ROW_HEAD)
        books["ring_kv"] = (layers * around[0], layers * around[1], peak)
    books["heads"] = (*expected_head_bytes(one, case, found), 0)
    return books


def expected_head_bytes(one: Seen, case: Case, found: dict[str, Any]) -> tuple[int, int]:
    """Return (sent, received) of the gather of both heads: target rows alone."""
    layout = make_layout(case)
    sent = received = 0
    for indices, conditions, width in (
        (layout.video_indices, case.video_conditions, LATENT_CHANNELS * PATCH_CELLS),
        (layout.audio_indices, case.audio_conditions, AUDIO_LATENT_CHANNELS),
    ):
        rows, start = [], 0
        for count in found["counts"]:
            rows.append(sum(start <= row < start + count for row in indices[conditions:].tolist()))
            start += count
        one_head = head_bytes(rows, one.rank, width=width, element=ELEMENT)
        sent, received = sent + one_head[0], received + one_head[1]
    return sent, received


def test_bytes_and_peaks_are_those_of_the_closed_forms(seen: list[Seen]) -> None:
    for where, one, case, found in every_case(seen):
        books = {kind: (b["sent"], b["received"], b["peak"]) for kind, b in found["books"].items()}
        assert books == expected_books(one, case, found), where
        assert all(entry["held"] == 0 for entry in found["books"].values()), where


def test_with_even_shares_the_bytes_are_the_textbooks(seen: list[Seen]) -> None:
    """80 rows of 4 heads on 2 or 4 ranks: S*H/U*(U-1)/U for Ulysses, 2*S*H*(R-1)/R for a ring; at most two blocks."""
    for one in (one for one in seen if one.ulysses * one.ring in (2, 4)):
        found = one.found["cases"][CASES[0].label]
        books, layers, row = found["books"], found["layers"], 4 * ROW_HEAD
        group = 80 // one.ring
        if one.ulysses > 1:
            once = group * row // one.ulysses * (one.ulysses - 1) // one.ulysses
            assert books["ulysses_qkv"]["sent"] == books["ulysses_qkv"]["received"] == 3 * once * layers
            assert books["ulysses_out"]["sent"] == books["ulysses_out"]["received"] == once * layers
        if one.ring > 1:
            block = 2 * group * row // one.ulysses
            assert books["ring_kv"]["sent"] == books["ring_kv"]["received"] == block * (one.ring - 1) * layers
            assert books["ring_kv"]["peak"] == block * min(2, one.ring - 1)


def test_a_ring_holds_two_remote_blocks_and_no_more(seen: list[Seen]) -> None:
    for one in (one for one in seen if one.ring > 1):
        found = one.found["cases"][CASES[0].label]
        block = 2 * sum(found["valid"]) // one.ring * found["heads"][one.rank % one.ulysses] * ROW_HEAD
        # A block may be one row larger than another.
        assert found["books"]["ring_kv"]["peak"] <= min(2, one.ring - 1) * (block + 8 * ROW_HEAD), str(one)
        assert max(one.found["ring"]["alive"]) == min(2, one.ring - 1), str(one)
