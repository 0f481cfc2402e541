"""Latents to rows and back, the layout's shape, noise draws and schedules."""

from __future__ import annotations

import pytest
import torch
from diffusers import MiniMaxH3Scheduler

from engine.contract.errors import JobError
from engine.contract.lengths import used_rows
from engine.contract.limits import ModelFacts
from engine.noise import NoiseShapes, draw_noise
from engine.packing import build_layout, latent_grid, pack_video, unpack_audio, unpack_video
from engine.sampling import set_schedules

GRID = latent_grid(ModelFacts(), width=96, height=64, frames=22)
CPU = torch.device("cpu")


def test_a_grid_has_the_sizes_of_the_geometry() -> None:
    assert GRID.video_shape == (1, 24, 7, 4, 6)
    assert GRID.audio_rows_shape == (2 * 37, 32)


@pytest.mark.parametrize(
    ("text_rows", "width", "height", "frames"), [(1, 32, 32, 5), (27, 96, 64, 22), (9, 64, 160, 124)]
)
def test_the_contract_counts_the_rows_that_are_packed(text_rows: int, width: int, height: int, frames: int) -> None:
    grid = latent_grid(ModelFacts(), width=width, height=height, frames=frames)
    layout = build_layout(torch.ones(text_rows, dtype=torch.long), grid)
    rows = used_rows(text_rows=text_rows, width=width, height=height, frames=frames, facts=ModelFacts())
    assert rows == layout.token_tags.numel()


def test_unpacking_undoes_packing() -> None:
    video = torch.randn(GRID.video_shape)
    rows = pack_video(video, GRID.patch)
    assert rows.shape == (7 * 2 * 3, 96)
    assert torch.equal(unpack_video(rows, GRID), video)


def test_a_video_row_holds_one_patch_of_one_frame() -> None:
    video = torch.arange(torch.Size(GRID.video_shape).numel(), dtype=torch.float64).reshape(GRID.video_shape)
    row = pack_video(video, GRID.patch)[1 * 6 + 1 * 3 + 2]  # frame 1, patch row 1, patch column 2
    assert torch.equal(row, video[0, :, 1, 2:4, 4:6].reshape(-1))


def test_audio_rows_are_channel_major() -> None:
    rows = torch.arange(74 * 32).reshape(74, 32)
    audio = unpack_audio(rows, GRID)
    assert audio.shape == (1, 32, 2, 37)
    assert torch.equal(audio[0, :, 1, 5], rows[37 + 5])


def test_the_sequence_is_text_then_sound_then_video_and_the_clock_starts_after_the_text() -> None:
    layout = build_layout(torch.ones(9, dtype=torch.long), GRID)
    assert layout.token_tags.tolist() == [1] * 9 + [2] * 74 + [0] * 42
    assert layout.position_ids[8, 0] == 8
    assert layout.position_ids[9, 0] == 9
    assert layout.position_ids[9 + 74, 0] == 9
    assert layout.position_ids.dtype == torch.float64


def test_rows_of_one_step_carry_the_time_of_their_stream() -> None:
    layout = build_layout(torch.ones(9, dtype=torch.long), GRID)
    times, indices = layout.row_times(0.25, 0.5)
    assert times[indices[layout.audio_indices]].unique().tolist() == [0.5]
    assert times[indices[layout.video_indices]].unique().tolist() == [0.25]
    assert times[indices[layout.text_indices]].unique().tolist() == [0.25]


def test_noise_is_drawn_video_first_from_one_generator() -> None:
    noise = draw_noise(NoiseShapes.of(GRID, ()), seed=2**64 - 1)
    generator = torch.Generator().manual_seed(2**64 - 1)
    assert torch.equal(noise.video, torch.randn(1, 24, 7, 4, 6, generator=generator))
    assert torch.equal(noise.audio, torch.randn(74, 32, generator=generator))


@pytest.mark.parametrize("steps", [1, 2, 50, 1000])
def test_steps_count_forwards(steps: int) -> None:
    schedules = set_schedules(MiniMaxH3Scheduler(12.0), MiniMaxH3Scheduler(3.0), steps=steps, device=CPU)
    assert schedules.forwards == steps
    assert schedules.video.timesteps[0] == 0


def test_steps_that_fall_together_in_one_schedule_alone_are_refused() -> None:
    with pytest.raises(JobError, match="distinct video") as caught:
        set_schedules(MiniMaxH3Scheduler(1e9), MiniMaxH3Scheduler(3.0), steps=500, device=CPU)
    assert caught.value.field == "request.steps"
    assert caught.value.value == 500


def test_steps_that_fall_together_in_both_schedules_are_counted_once() -> None:
    schedules = set_schedules(MiniMaxH3Scheduler(1e9), MiniMaxH3Scheduler(1e9), steps=500, device=CPU)
    assert 1 <= schedules.forwards < 500
