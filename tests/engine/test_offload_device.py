"""Streaming on the fake accelerator: results, places and bytes for every choice of families and resident blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_accelerator import run_on_device

STACKS = {
    "text_encoder": ("visual.blocks", "language_model.layers"),
    "transformer": ("token_refiner.refiner_blocks", "transformer_blocks"),
}
FAMILY = {"text_encoder": "text_encoder", "transformer": "dit"}
SLACK = 256
"""Bytes of small tensors that libraries keep from one run to the next."""
Report = dict[str, Any]


@pytest.fixture(scope="module")
def told(tiny_checkpoint: Path) -> Report:
    report: Report = run_on_device("tests.support.offload_cases:report", folder=str(tiny_checkpoint))
    return report


@pytest.fixture(scope="module")
def cases(told: Report) -> list[Report]:
    found: list[Report] = told["subsets"]
    assert len({(*case["families"], case["resident"]) for case in found}) == len(found) == 17
    return found


def owned(case: Report, component: str) -> bool:
    return FAMILY[component] in case["families"]


def test_every_choice_of_families_and_resident_blocks_makes_the_same_bits_twice(cases: list[Report]) -> None:
    assert [case for case in cases if not all(case["same"] + case["again"])] == []


def test_what_is_declared_is_on_the_device_and_nothing_else(cases: list[Report]) -> None:
    """By the owner's record, by the placement and by what the device allocated."""
    for case in cases:
        assert case["resting"] == pytest.approx(sum(case["held"].values()), abs=SLACK)
        for component, placed in case["placed"].items():
            if owned(case, component):
                assert case["held"][component] == placed["device"]
            else:  # tensor by tensor, without the padding of flat copies
                assert 0.99 * placed["device"] < case["held"][component] <= placed["device"]
        assert case["host"] == sum(placed["host"] for placed in case["placed"].values())


def test_no_block_is_on_the_device_beside_those_that_stay_and_those_in_the_slots(cases: list[Report]) -> None:
    for case in cases:
        for at in case["seen"]:
            component = next(name for name, stacks in STACKS.items() if at["stack"] in stacks)
            placed = case["placed"][component]
            assert at["types"] == ["hpu"]
            for units, resident, slots in zip(at["units"], placed["resident"], placed["slots"], strict=True):
                assert set(resident) <= set(units)
                assert len(units) <= len(resident) + slots
            own = STACKS[component].index(at["stack"])
            assert f"{at['stack']}.{at['number']}" in at["units"][own]
        ran = {at["stack"] for at in case["seen"]}
        assert ran == {stack for name, stacks in STACKS.items() if owned(case, name) for stack in stacks}


def test_resident_blocks_are_as_many_as_asked_for_and_the_others_share_two_slots(cases: list[Report]) -> None:
    case = next(case for case in cases if case["families"] == ["dit", "text_encoder"] and case["resident"] == 2)
    layers = case["placed"]["text_encoder"]
    assert [len(resident) for resident in layers["resident"]] == [2, 2]
    assert layers["slots"] == [1, 2]
    assert set(layers["resident"][1]) == {"language_model.layers.24", "language_model.layers.49"}


def test_the_peak_falls_by_the_bytes_that_stay_on_the_host(cases: list[Report]) -> None:
    """So activations, hooks and copies take nothing more."""
    whole = next(case for case in cases if not case["families"])
    for case in cases:
        saved = sum(whole["held"].values()) - sum(case["held"].values())
        assert whole["peak"] - case["peak"] == pytest.approx(saved, abs=2 * SLACK)


def test_each_block_is_copied_once_a_forward_and_two_ahead_for_the_next(cases: list[Report]) -> None:
    """Fifty layers pass through two slots; then the first two follow."""
    none, resident = (
        next(case for case in cases if case["families"] == ["text_encoder"] and case["resident"] == count)
        for count in (0, 99)
    )
    vision, layer = none["layers"]
    # The vision tower did not run: of its three blocks those that stay were brought in.
    assert none["moved"] - resident["moved"] == 2 * layer - 3 * vision


def test_taking_the_owner_away_leaves_no_hook_and_nothing_of_an_offloaded_component(cases: list[Report]) -> None:
    for case in cases:
        assert case["hooks"] == 0
        stay = sum(held for name, held in case["held"].items() if not owned(case, name))
        assert case["left"] == pytest.approx(stay, abs=SLACK)


def test_components_that_do_not_fit_together_take_turns(told: Report) -> None:
    turns = told["budgets"]
    assert turns["stays"] == {"text_encoder": False, "transformer": False}
    assert turns["inside"] == [["text_encoder"], ["transformer"]]
    assert turns["after"] == []
    assert all(turns["same"])


def test_a_full_device_is_told_with_what_it_holds_and_the_next_run_works(told: Report) -> None:
    turns = told["budgets"]
    assert (turns["failed"]["code"], turns["failed"]["details"]["stage"]) == ("out_of_memory", "encode_prompt")
    assert "--resident-blocks" in turns["failed"]["remedy"]
    assert turns["inside_after_failure"] == []
    assert turns["left_after_failure"] == {"text_encoder": 0, "transformer": 0}
    assert all(turns["recovered"])


def test_auto_keeps_as_many_blocks_as_the_budget_holds(told: Report) -> None:
    assert [layers for _, layers in told["budgets"]["auto"]] == [0, 7, 50]


def test_a_divided_layer_rests_on_the_host_and_streams_as_what_it_is(told: Report) -> None:
    """torch itself would move a DTensor to its mesh's device as soon as it is made."""
    found = told["divided"]
    rest, there = ["cpu"], ["hpu"]
    for name, kind in (("whole", "Parameter"), ("divided", "DTensor")):
        places = [rest, there, there, rest]
        assert found[name] == [[kind, *place] for place in places]
    assert found["same"]
