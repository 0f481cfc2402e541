"""Layouts over three axes: places, neighbours, what works and what is refused."""

from __future__ import annotations

import itertools

import pytest

from engine.layout import AXES, Layout, layout_problem, layouts_remedy, possible_layouts


def all_ranks(ulysses: int, ring: int, tp: int) -> list[Layout]:
    world = ulysses * ring * tp
    return [Layout(rank, world, ulysses, ring, tp) for rank in range(world)]


def test_the_tp_axis_is_innermost_then_ulysses_then_the_ring() -> None:
    places = [(p.ring_index, p.ulysses_index, p.tp_index) for p in all_ranks(3, 2, 2)]
    assert places == list(itertools.product(range(2), range(3), range(2)))
    assert all_ranks(3, 2, 2)[11].sequence_index == 5


@pytest.mark.parametrize("degrees", [(1, 1, 1), (4, 1, 1), (2, 2, 1), (2, 2, 2), (3, 2, 2)])
def test_the_groups_of_an_axis_cover_all_ranks_once_and_know_each_other(degrees: tuple[int, int, int]) -> None:
    places = all_ranks(*degrees)
    for axis in AXES:
        groups = {place.ranks_along(axis) for place in places}
        assert sorted(rank for group in groups for rank in group) == list(range(len(places)))
        assert all(place.rank in place.ranks_along(axis) for place in places)


def test_the_groups_of_two_by_two_by_two() -> None:
    place = all_ranks(2, 2, 2)[5]
    assert {axis: place.ranks_along(axis) for axis in AXES} == {
        "world": (0, 1, 2, 3, 4, 5, 6, 7),
        "sequence": (1, 3, 5, 7),
        "ulysses": (5, 7),
        "ring": (1, 5),
        "tp": (4, 5),
    }


def test_a_groups_order_is_the_order_of_the_indices_on_its_axis() -> None:
    places = all_ranks(3, 2, 2)
    for place in places:
        assert place.ranks_along("ulysses")[place.ulysses_index] == place.rank
        assert place.ranks_along("ring")[place.ring_index] == place.rank
        assert place.ranks_along("sequence")[place.sequence_index] == place.rank
        assert place.ranks_along("tp")[place.tp_index] == place.rank


def test_all_layouts_of_six_ranks_with_fifty_six_heads() -> None:
    found = possible_layouts(6, shared={"attention heads": 56})
    assert found == [(6, 1, 1), (3, 2, 1), (2, 3, 1), (1, 6, 1), (3, 1, 2), (1, 3, 2)]
    assert {(1, 2, 3), (1, 1, 6), (2, 1, 3)} <= set(possible_layouts(6))
    assert all(layout_problem(6, degrees, shared={"attention heads": 56}) is None for degrees in found)


def test_a_layout_that_cannot_work_is_explained_with_the_ones_that_can() -> None:
    assert "is 4, but there are 6 ranks" in str(layout_problem(6, (2, 2, 1)))
    heads = {"attention heads": 56}
    assert "does not divide the transformer's 56 attention heads." in str(layout_problem(3, (1, 1, 3), shared=heads))
    both = {"attention heads": 56, "feed-forward channels": 100}
    assert "the transformer's 100 feed-forward channels." in str(layout_problem(8, (1, 1, 8), shared=both))
    assert "56 attention heads and 100 feed-forward channels." in str(layout_problem(3, (1, 1, 3), shared=both))
    assert [tp for _, ring, tp in possible_layouts(8, shared=both) if ring == 1] == [1, 2, 4]
    assert layouts_remedy(2, shared={"attention heads": 3}) == (
        "Working layouts of 2 ranks: --ulysses-degree 2 --ring-degree 1 --tp-degree 1; "
        "--ulysses-degree 1 --ring-degree 2 --tp-degree 1."
    )
