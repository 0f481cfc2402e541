"""Layouts with keyframes, guides and references: diffusers' bit for bit where it has them, golden ones elsewhere."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers.modular_pipelines.minimax_h3.before_denoise import (
    MiniMaxH3PrepareLayoutStep,
    MiniMaxH3Ref2VAPrepareLayoutStep,
)

from engine.contract.limits import ModelFacts
from engine.packing import Block, LatentGrid, PackedLayout, build_layout, latent_grid, pack_audio, unpack_audio
from tests.support import golden

PATCH = (1, 2, 2)
LENGTHS = (5, 22, 124, 362, 1450)
TAGS = torch.tensor([1, 1, 0, 0, 0, 1, 1])
REFERENCES = {
    "an image": [Block("image", (1, 6, 4))],
    "a silent video": [Block("video", (17, 4, 6))],
    "a video with sound": [Block("video", (32, 6, 4), 178)],
    "sound longer than its video": [Block("video", (7, 4, 4), 80), Block("image", (1, 4, 10))],
    "audio between": [Block("image", (1, 4, 4)), Block("audio", None, 80), Block("video", (37, 4, 6), 207)],
    "audio first": [Block("audio", None, 81), Block("video", (62, 4, 6)), Block("image", (1, 10, 4))],
}


def target(frames: int, width: int = 96, height: int = 64) -> LatentGrid:
    return latent_grid(ModelFacts(), width=width, height=height, frames=frames)


def fields_of(layout: PackedLayout) -> tuple[Any, ...]:
    return (
        layout.position_ids,
        layout.token_tags,
        layout.video_indices,
        layout.audio_indices,
        layout.text_indices,
        layout.condition_video_rows,
        layout.condition_audio_rows,
    )


def assert_equal(layout: PackedLayout, expected: tuple[Any, ...]) -> None:
    for ours, theirs in zip(fields_of(layout), expected, strict=True):
        assert torch.equal(torch.as_tensor(ours), torch.as_tensor(theirs))


@pytest.mark.parametrize("frames", LENGTHS)
@pytest.mark.parametrize("anchors", [(), ("first",), ("last",), ("first", "last")], ids="-".join)
def test_keyframes_lie_where_diffusers_puts_them(frames: int, anchors: tuple[str, ...]) -> None:
    grid = target(frames)
    blocks = [
        Block("condition", (1, grid.height, grid.width), frame=0 if anchor == "first" else frames - 1)
        for anchor in anchors
    ]
    expected = MiniMaxH3PrepareLayoutStep.build_packed_sequence(
        TAGS, grid.frames, grid.height, grid.width, grid.audio_length, PATCH, 2, 2, 0, anchors
    )
    assert_equal(build_layout(TAGS, grid, blocks), expected)


@pytest.mark.parametrize("frames", LENGTHS)
@pytest.mark.parametrize("name", REFERENCES)
def test_references_lie_where_diffusers_puts_them(frames: int, name: str) -> None:
    blocks, grid = REFERENCES[name], target(frames, 64, 160)
    expected = MiniMaxH3Ref2VAPrepareLayoutStep.build_ref2va_packed_sequence(
        TAGS,
        [SimpleNamespace(kind=block.kind, has_audio=block.audio > 0) for block in blocks],
        [torch.empty(1, 1, *block.video) for block in blocks if block.video],
        [torch.empty(2 * block.audio, 1) for block in blocks if block.audio],
        grid.frames,
        grid.height,
        grid.width,
        grid.audio_length,
        PATCH,
        2,
        2,
        0,
    )
    assert_equal(build_layout(TAGS, grid, blocks), expected)


@pytest.mark.parametrize("name", golden.index()["layout"])
def test_layouts_and_row_times_are_the_golden_ones(name: str) -> None:
    scenario, expected = golden.index()["layout"][name], golden.tensors("layout", name)
    layout = golden.layout(scenario)
    assert (layout.position_ids - expected["position_ids"]).abs().max() <= golden.index()["tolerance"][
        "positions_float64"
    ]
    assert torch.equal(layout.token_tags, expected["row_tag"].long())
    for indices, conditions, kind in (
        (layout.video_indices, layout.condition_video_rows, "img"),
        (layout.audio_indices, layout.condition_audio_rows, "audio"),
    ):
        assert torch.equal(indices, expected[f"{kind}_pos"].long())
        assert torch.equal(torch.arange(len(indices)) >= conditions, expected[f"{kind}_update"].bool())
    sigma = scenario["sigma_video_for_row_timesteps"]
    base = sigma / (12 - 11 * sigma)
    times, rows = layout.row_times(1 - sigma, 1 - 3 * base / (1 + 2 * base))
    assert (times[rows] - expected["row_timestep"]).abs().max() <= 1.2e-7


def test_a_layout_with_conditions_is_padded_at_its_end() -> None:
    blocks = [Block("condition", (2, 4, 6), 9, frame=17), *REFERENCES["a video with sound"]]
    layout, padded = (build_layout(TAGS, target(39), blocks, pad_seq_len=length) for length in (None, 1024))
    assert padded.token_tags.numel() == 1024
    assert padded.used == layout.token_tags.numel()
    assert torch.equal(padded.position_ids[: padded.used], layout.position_ids)
    assert padded.condition_video_rows == 2 * 6 + 32 * 6
    assert padded.condition_audio_rows == 2 * (9 + 178)


def test_packing_sound_undoes_unpacking() -> None:
    grid = target(22)
    rows = torch.randn(grid.audio_rows_shape)
    assert torch.equal(pack_audio(unpack_audio(rows, grid)), rows)
