"""Tensor parallelism, sharded weights and compiled blocks on two and four ranks against one rank, in fp32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.checkpoint import open_checkpoint
from engine.models.pieces import Piece
from engine.planner.shapes import is_computed
from engine.planner.weights import ServedModel, Setup, rank_tensors
from engine.rank_options import ParallelOptions
from tests.support.rank_group import run_on_ranks

Found = list[dict[str, Any]]

LAYOUTS = {
    2: ("tensor", "sharded ulysses", "sharded ring"),
    4: ("tensor", "tensor and ulysses", "tensor and ring, sharded", "sharded ulysses and ring"),
}
EXACT = 1e-5


def _measure(function: str, ranks: int, model: Path, folder: Path) -> Found:
    (folder / "model").symlink_to(model)
    run_on_ranks(f"tests.support.weight_ranks:{function}", ranks=ranks, folder=folder, timeout=560)
    found: Found = json.loads((folder / "found.json").read_text())
    assert len(found) == ranks
    return found


@pytest.fixture(scope="module")
def two(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What each of two ranks measured, by case."""
    return _measure("two", 2, tiny_checkpoint, tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def four(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What each of four ranks measured, by case."""
    return _measure("four", 4, tiny_checkpoint, tmp_path_factory.mktemp("four"))


@pytest.fixture(params=[(ranks, name) for ranks, names in LAYOUTS.items() for name in names], ids=str)
def case(request: pytest.FixtureRequest) -> Found:
    """What each rank measured in one layout."""
    ranks, name = request.param
    return [found[name] for found in request.getfixturevalue({2: "two", 4: "four"}[ranks])]


pytestmark = [pytest.mark.ranks, pytest.mark.timeout(300)]


def test_a_forward_equals_one_ranks_to_a_hundred_thousandth(case: Found) -> None:
    assert max(found["off"] for found in case) <= EXACT


def test_ranks_without_rows_run_every_block_with_the_others(case: Found) -> None:
    assert max(found["few rows off"] for found in case) <= EXACT


def test_a_rank_reads_the_bytes_it_holds_and_tells_so(case: Found) -> None:
    for found in case:
        assert found["read"] == found["told"] == found["held"][0]


def test_after_a_forward_a_rank_holds_no_more_than_before(case: Found) -> None:
    for found in case:
        assert found["held"][0] == found["held"][1]


def test_of_all_but_the_small_layers_a_rank_holds_its_part_alone(case: Found, request: pytest.FixtureRequest) -> None:
    _, name = request.node.callspec.params["case"]
    parts = 2 if name == "tensor and ulysses" else len(case)
    # Norms, biases, patch projections, time embedding and heads are whole: a seventh of the tiny transformer.
    small = 87_000
    for found in case:
        assert found["held"][0] < (found["whole"] - small) / parts + small


def test_a_rank_holds_the_bytes_that_the_planner_counts(
    case: Found, request: pytest.FixtureRequest, tiny_checkpoint: Path
) -> None:
    ranks, name = request.node.callspec.params["case"]
    model = ServedModel.of(open_checkpoint(tiny_checkpoint))
    tensor = {"tensor": ranks, "tensor and ulysses": 2, "tensor and ring, sharded": 2}.get(name, 1)
    layout = ParallelOptions(ulysses_degree=ranks // tensor, tp_degree=tensor, shard_weights="sharded" in name)
    assert [found["held"][0] for found in case] == [planned_bytes(model, layout, "transformer")] * ranks


def planned_bytes(model: ServedModel, layout: ParallelOptions, component: str) -> int:
    """Return the planner's bytes of the parameters of ``component`` on one rank, in fp32."""
    tensors = rank_tensors(model, Setup(parallel=layout, dtype="fp32"), component)
    return sum(tensor.bytes for name, tensor in tensors.items() if not is_computed(name))


def test_sharded_weights_are_the_checkpoints_bit_for_bit_once_gathered(two: Found) -> None:
    assert [found["differing in a bit"] for found in two] == [[], []]


def test_without_dividing_weights_ulysses_holds_all_of_them(two: Found) -> None:
    assert all(found["ulysses"]["held"][0] == found["ulysses"]["whole"] for found in two)


def test_gates_split_as_if_they_were_values_are_far_off_so_the_comparison_can_fail(two: Found) -> None:
    assert min(found["mispaired"] for found in two) > 0.1


def test_a_sub_mesh_smaller_than_the_sharding_group_is_refused(two: Found) -> None:
    for rank, found in enumerate(two):
        told, accepted = found["refused"]
        assert told == f"the ranks [0, 1] run together (sharded weights); only [{rank}] take part"
        assert accepted == ""


def test_a_model_that_is_not_served_is_not_divided_and_pins_no_group(two: Found) -> None:
    for found in two:
        assert found["planned"] == [[["text_encoder", "transformer"], True], [["transformer"], True], [[], False]]


@pytest.mark.parametrize(("ranks", "name", "parts"), [(2, "text encoder", 2), (4, "text encoder", 4),
                                                     (4, "text encoder on two", 2)])  # fmt: skip
def test_the_text_encoder_in_parts_equals_the_whole_one_to_a_hundred_thousandth(
    request: pytest.FixtureRequest, ranks: int, name: str, parts: int, tiny_checkpoint: Path
) -> None:
    layout = ParallelOptions(ulysses_degree=ranks, text_encoder_tp_degree=parts)
    planned = planned_bytes(ServedModel.of(open_checkpoint(tiny_checkpoint)), layout, "text_encoder")
    found = [rank[name] for rank in request.getfixturevalue({2: "two", 4: "four"}[ranks])]
    assert [rank["held"] for rank in found[parts:]] == [0] * (ranks - parts)
    for rank in found[:parts]:
        assert rank["off"] <= EXACT
        assert rank["read"] == rank["held"] == planned
        # Embeddings and the vision tower are whole.
        assert rank["held"] < 0.1 * rank["whole"] + rank["whole"] / parts


@pytest.mark.parametrize("name", ["compiled ulysses", "compiled tensor", "compiled sharded"])
def test_a_second_prompt_of_the_pinned_length_compiles_nothing(two: Found, name: str) -> None:
    for found in two:
        first, second, unpinned = found[name]["graphs"]
        assert second == first == 4
        assert unpinned > second, "without the pin another length does compile"
        assert found[name]["off"] <= EXACT


def test_both_partitions_run_the_same_compiled_code_with_their_own_weights(two: Found) -> None:
    for found in (rank["both partitions compiled"] for rank in two):
        assert found["graphs"] == [4, 4]
        assert found["off"] <= EXACT
        assert found["apart"] > 0.1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_blocks_compiled_by_inductor_equal_plain_ones_and_serve_a_second_prompt(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    for found in _measure("inductor", 2, tiny_checkpoint, tmp_path):
        assert found["inductor"]["off"] <= EXACT
        assert found["inductor"]["graphs"] == [4, 4]


def test_pieces_cover_a_tensor_once() -> None:
    whole = list(range(24))
    for parts in (1, 2, 3, 4):
        packed = [Piece.whole((24,)).part_of_blocks(part, parts, blocks=2) for part in range(parts)]
        assert sorted(row for piece in packed for row in piece.read(whole_rows(24)).tolist()) == whole
        for shards in (1, 2, 5, 7):
            chunks = [piece.chunk(index, shards) for piece in packed for index in range(shards)]
            read = [row for chunk in chunks for row in chunk.read(whole_rows(24)).tolist()]
            assert sorted(read) == whole
            assert [chunk.numel for chunk in chunks] == [len(chunk.read(whole_rows(24))) for chunk in chunks]


def whole_rows(count: int) -> Any:
    """Return a tensor of ``count`` numbers that tell where they stood."""
    import torch

    return torch.arange(count)
