"""Which rows each rank holds, and under which strategy."""

from __future__ import annotations

import pytest
import torch

from engine.parallel import lse as lse_module
from engine.parallel.layout import Layout
from engine.parallel.lse import Merge, attend_block, plain_attention
from engine.parallel.rows import RowPartition, apportion
from engine.parallel.strategy import BOTH, LOCAL, RING, ULYSSES, build_strategy, full_strategy


@pytest.mark.parametrize(
    ("total", "weights", "parts"),
    [
        (10, (1, 1, 1), (4, 3, 3)),
        (2, (1, 1, 1), (1, 1, 0)),
        (0, (1, 1), (0, 0)),
        (10, (0.1, 0.1, 0.1), (4, 3, 3)),
        (100, (3, 1), (75, 25)),
        (7, (1, 2.5, 0.5, 3), (1, 3, 0, 3)),
        (56, (1,) * 6, (10, 10, 9, 9, 9, 9)),
        (10, (1e308, 1e308), (5, 5)),
        (10, (5e-324, 5e-324), (5, 5)),
    ],
)
def test_things_are_apportioned_by_weight(total: int, weights: tuple[float, ...], parts: tuple[int, ...]) -> None:
    assert apportion(total, weights) == parts


@pytest.mark.parametrize("total", range(0, 70, 7))
@pytest.mark.parametrize("weights", [(1.0,) * 5, (0.3, 7.0, 1.0), (1e-3, 1e3)])
def test_nothing_is_lost_and_nobody_gets_more_than_one_over_its_share(total: int, weights: tuple[float, ...]) -> None:
    parts = apportion(total, weights)
    assert sum(parts) == total
    assert all(abs(part - total * w / sum(weights)) < 1 for part, w in zip(parts, weights, strict=True))


def test_padding_is_at_the_end_and_some_ranks_may_have_nothing_else() -> None:
    rows = RowPartition.divide(128, used=70, weights=(1.0,) * 4)
    assert rows.counts == (32, 32, 32, 32)
    assert rows.valid == (32, 32, 6, 0)
    assert [rows.bounds(i) for i in range(4)] == [(0, 32), (32, 64), (64, 96), (96, 128)]


def test_shapes_depend_on_the_pinned_length_alone() -> None:
    assert len({RowPartition.divide(128, used=used, weights=(1.0, 2.0)).counts for used in range(129)}) == 1


class OneRank:
    """As much of a mesh as a strategy reads."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout


def test_strategies_know_their_groups_and_blocks() -> None:
    mesh = OneRank(Layout(4, 8, 2, 2, 2))
    both = build_strategy(BOTH, mesh, rank_weights=(1, 2, 3, 4))  # type: ignore[arg-type]
    shard = both.shard(100)
    assert (both.index, both.ulysses_index, both.ring_index) == (2, 0, 1)
    assert shard.rows.counts == (10, 20, 30, 40)
    assert shard.ulysses_rows == (30, 40)
    assert shard.ring_blocks == (30, 70)
    assert both.heads(10) == (4, 6)
    ulysses = build_strategy(ULYSSES, mesh, rank_weights=(1, 2, 3, 4))  # type: ignore[arg-type]
    assert (ulysses.index, ulysses.weights, ulysses.shard(70).rows.counts) == (0, (3, 4), (30, 40))
    ring = build_strategy(RING, mesh, rank_weights=(1, 2, 3, 4))  # type: ignore[arg-type]
    assert (ring.index, ring.weights, ring.heads(7)) == (1, (1, 3), (7,))
    local = build_strategy(LOCAL, mesh)  # type: ignore[arg-type]
    assert local.axis is None
    assert local.shard(5).plain
    assert not local.shard(6, used=5).plain


def test_a_strategy_without_ranks_is_refused() -> None:
    mesh = OneRank(Layout(0, 2, 2))
    with pytest.raises(ValueError, match="needs ranks on its axes"):
        build_strategy(RING, mesh)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="there is no strategy"):
        build_strategy("sideways", mesh)  # type: ignore[arg-type]


def test_a_layout_uses_all_its_ranks() -> None:
    names = {degrees: full_strategy(Layout(0, degrees[0] * degrees[1], *degrees)) for degrees in [(1, 1), (2, 1)]}
    assert names == {(1, 1): LOCAL, (2, 1): ULYSSES}
    assert full_strategy(Layout(0, 2, 1, 2)) == RING
    assert full_strategy(Layout(0, 4, 2, 2)) == BOTH


@pytest.mark.parametrize("causal", [False, True])
def test_the_kernel_and_plain_torch_agree_on_result_and_lse(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.parallel.lse.PIECE_BYTES", 4 * 3 * 50 * 7)  # pieces of seven queries
    q, k, v = (torch.randn(1, 50, 3, 16, generator=torch.Generator().manual_seed(i)) for i in range(3))
    out, lse = attend_block(q, k, v, causal=causal)
    plain, plain_lse = plain_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), causal)
    assert out.shape == (1, 50, 3, 16)
    assert lse.shape == (1, 50, 3, 1)
    assert (out - plain.transpose(1, 2)).abs().max() < 1e-6
    assert (lse[..., 0] - plain_lse.transpose(1, 2)).abs().max() < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_blocks_merged_in_any_order_are_the_whole(dtype: torch.dtype) -> None:
    q, k, v = (torch.randn(1, 50, 3, 16, generator=torch.Generator().manual_seed(i)).to(dtype) for i in range(3))
    # One block far hotter than the others: a merge without the LSE's scale would overflow or vanish.
    k = torch.cat([k[:, :20], 40 * k[:, 20:31], k[:, 31:]], 1)
    whole, _ = attend_block(q.float(), k.float(), v.float())
    merge = Merge()
    for first, last in ((20, 31), (0, 20), (31, 50)):
        merge.add(*attend_block(q, k[:, first:last], v[:, first:last]))
    assert merge.result(dtype).dtype == dtype
    assert (merge.result(torch.float32) - whole).abs().max() < (1e-5 if dtype == torch.float32 else 3e-2)


@pytest.mark.parametrize("kernel", ["_flash_cuda", "_cudnn", "_efficient"])
def test_the_gpu_kernels_take_our_arguments_and_give_an_lse_of_each_query(
    kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shapes and types alone: torch's meta device knows the kernels without a GPU."""
    monkeypatch.setattr("engine.parallel.lse._kernel", lambda *_: getattr(lse_module, kernel))
    query = torch.empty(1, 50, 3, 64, device="meta", dtype=torch.bfloat16)
    key = torch.empty(1, 70, 3, 64, device="meta", dtype=torch.bfloat16)
    out, lse = attend_block(query, key, key)
    assert (out.shape, out.dtype) == ((1, 50, 3, 64), torch.bfloat16)
    assert (lse.shape, lse.dtype) == ((1, 50, 3, 1), torch.float32)
