"""How pictures are cut and units dealt out, and the buffers that they are gathered in."""

from __future__ import annotations

import pytest
import torch
from diffusers import AutoencoderKLMiniMaxH3

from engine.vae.crew import deal
from engine.vae.tiles import Axis, Grid, TileGeometry
from engine.vae.workspace import GatherWorkspace

CPU = torch.device("cpu")
TILE = 4 * 100
"""Bytes of the buffers below."""


@pytest.mark.parametrize("size_and_overlap", [(256, 64), (64, 16), (512, 128), (128, 64)])
def test_tiles_lie_where_diffusers_puts_them(size_and_overlap: tuple[int, int]) -> None:
    class Ratio:
        spatial_compression_ratio = 16

    for side in range(32, 2049, 32):
        starts, lengths, overlaps = AutoencoderKLMiniMaxH3._split_tiles(Ratio(), side, *size_and_overlap)
        axis = Axis.divide(side, TileGeometry(*size_and_overlap), ratio=16)
        assert (axis.starts, [axis.length] * len(starts), axis.overlaps) == (tuple(starts), lengths, tuple(overlaps))


def test_a_released_canvas_has_28_tiles_in_rows() -> None:
    grid = Grid.cover(768, 1344, TileGeometry(), ratio=16)
    assert grid.count == 28
    assert grid.window(0) == (slice(0, 256), slice(0, 256))
    assert grid.window(8, scale=16) == (slice(10, 26), slice(11, 27))


@pytest.mark.parametrize(
    ("units", "weights", "batch", "rounds"),
    [
        (5, (1.0, 1.0), 1, [(0, (1, 1)), (2, (1, 1)), (4, (1, 0))]),
        (2, (1.0, 1.0, 1.0, 1.0), 1, [(0, (1, 1, 0, 0))]),
        (7, (1.0, 1.0), 2, [(0, (2, 2)), (4, (2, 1))]),
        (8, (2.0, 1.0, 1.0), 1, [(0, (2, 1, 1)), (4, (2, 1, 1))]),
        (2, (1.0, 0.0), 1, [(0, (1, 0)), (1, (1, 0))]),
    ],
)
def test_units_are_dealt_out_in_order_and_in_proportion(
    units: int, weights: tuple[float, ...], batch: int, rounds: list[tuple[int, tuple[int, ...]]]
) -> None:
    assert deal(units, weights, batch=batch) == rounds


def test_the_busiest_rank_has_at_most_one_unit_more() -> None:
    for units in range(1, 60):
        for ranks in range(1, 9):
            shares = [share for _, share in deal(units, (1.0,) * ranks)]
            loads = [sum(column) for column in zip(*shares, strict=True)]
            assert sum(loads) == units
            assert max(loads) - min(loads) <= 1


def test_a_geometry_keeps_its_address_and_the_oldest_makes_room() -> None:
    workspace = GatherWorkspace(CPU, budget=2 * TILE)
    first = workspace.take((100,), torch.float32).data_ptr()
    workspace.take((50, 2), torch.float32)
    assert workspace.take((100,), torch.float32).data_ptr() == first
    workspace.take((10, 10), torch.float32)
    assert workspace.bytes == 2 * TILE
    # The second geometry was the least recently used: the first is there still.
    assert workspace.take((100,), torch.float32).data_ptr() == first
    workspace.release()
    assert workspace.bytes == 0


def test_types_of_one_shape_do_not_share_memory() -> None:
    workspace = GatherWorkspace(CPU, budget=10**6)
    buffers = [workspace.take((100,), dtype) for dtype in (torch.float32, torch.int32, torch.bfloat16)]
    assert len({buffer.data_ptr() for buffer in buffers}) == 3


def test_a_buffer_over_the_budget_is_lent_and_not_kept() -> None:
    workspace = GatherWorkspace(CPU, budget=TILE)
    kept = workspace.take((100,), torch.float32).data_ptr()
    assert workspace.take((1000,), torch.float32).numel() == 1000
    assert workspace.bytes == TILE
    assert workspace.take((100,), torch.float32).data_ptr() == kept


def test_a_thousand_geometries_stay_within_the_budget() -> None:
    workspace = GatherWorkspace(CPU, budget=10 * TILE)
    for side in range(1, 1001):
        workspace.take((side,), torch.float32)
        assert workspace.bytes <= 10 * TILE
    assert workspace.bytes > 0
