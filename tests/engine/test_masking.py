"""The arithmetic of edits: with toy velocities whose answer is known, and with the tiny model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import MiniMaxH3Scheduler

from engine.conditioning import Conditions, EncodedCondition, EncodedReference
from engine.contract.errors import RequestError
from engine.contract.limits import ModelFacts
from engine.masking import UNMASKED, Edit, Masks, RowMask
from engine.models.bundle import Models
from engine.offload.modulation import Modulation
from engine.packing import build_layout, latent_grid, pack_audio, pack_video, unpack_audio, unpack_video
from engine.sampling import sample, set_schedules
from engine.stages.base import Latents, PromptEmbeds
from engine.stages.denoise import denoise
from tests.support import stages

pytestmark = pytest.mark.usefixtures("one_thread")

GRID = latent_grid(ModelFacts(), width=96, height=64, frames=22)
LAYOUT = build_layout(torch.ones(9, dtype=torch.long), GRID)
STEPS = 6
SIZES: dict[str, Any] = {"width": 64, "height": 32, "frames": 22}
Velocity = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def fractions(seed: int, *shape: int) -> torch.Tensor:
    """Return masks of which a quarter is 0 and a quarter is 1."""
    drawn = torch.rand(shape, generator=torch.Generator().manual_seed(seed))
    return (drawn * 2 - 0.5).clamp(0, 1)


SOURCE = Latents(draw(1, *GRID.video_shape), draw(2, 1, 32, 2, 37))
NOISE = Latents(draw(3, *GRID.video_shape), draw(4, 1, 32, 2, 37))
GOAL = Latents(draw(5, *GRID.video_shape), draw(6, 1, 32, 2, 37))
VIDEO_MASK, AUDIO_MASK = fractions(7, 7, 4, 6), fractions(8, 2, 37)
ONES, AUDIO_ONES = torch.ones(7, 4, 6), torch.ones(2, 37)


class Toy:
    """A transformer whose velocity is a formula of the rows that it is shown and of their times.

    Attributes:
        seen: of each forward, each row's time by its place in the packed sequence.
    """

    def __init__(self, video: Velocity, audio: Velocity) -> None:
        self._formulas = (video, audio)
        self.seen: list[torch.Tensor] = []

    def __call__(self, **given: Any) -> tuple[torch.Tensor, torch.Tensor]:
        times = given["timestep"][given["timestep_indices"]]
        assert given["timestep"].unique().numel() == given["timestep"].numel(), "distinct times"
        self.seen.append(times)
        rows = (given["hidden_states"][0], given["audio_hidden_states"][0])
        places = (LAYOUT.video_indices, LAYOUT.audio_indices)
        video, audio = (
            formula(shown, times[place][:, None])[None]
            for formula, shown, place in zip(self._formulas, rows, places, strict=True)
        )
        return video, audio


def run(toy: Toy, masks: Masks) -> Latents:
    """Sample with a toy."""
    schedules = set_schedules(MiniMaxH3Scheduler(12.0), MiniMaxH3Scheduler(3.0), steps=STEPS, device=stages.CPU)
    video, audio = sample(
        toy,
        video_rows=pack_video(NOISE.video, 2),
        audio_rows=pack_audio(NOISE.audio),
        prompt_embeds=torch.zeros(1, 9, 8),
        layout=LAYOUT,
        schedules=schedules,
        boundary=lambda: None,
        report=lambda step, total: None,
        modulation=Modulation(0),
        masks=masks,
    )
    return Latents(unpack_video(video, GRID), unpack_audio(audio, GRID))


def masks_of(video: torch.Tensor = ONES, audio: torch.Tensor = AUDIO_ONES, source: Latents = SOURCE) -> Masks:
    edit = Edit(source.video, source.audio, video, audio)
    rows = pack_video(NOISE.video, 2), pack_audio(NOISE.audio)
    return edit.masks(*rows, layout=LAYOUT, scheduler=MiniMaxH3Scheduler(12.0), patch=2)


def bits(latent: torch.Tensor) -> torch.Tensor:
    return latent.contiguous().view(torch.int32)


def wave(shown: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
    """Return a velocity that hangs on the rows and their times."""
    return torch.sin(3 * shown) * (1 + times) - 0.2 * shown


def towards(goal: torch.Tensor) -> Velocity:
    """Return the velocity of a perfect model: a row whose noise level is 1 - t arrives at ``goal``."""
    return lambda shown, times: (goal - shown) / (1 - times)


# --- toy velocities -------------------------------------------------------------------------------------------------


def test_with_a_perfect_model_every_cell_is_the_blend_of_source_and_goal() -> None:
    # Each row stands at its own noise level m * sigma: only a velocity that is multiplied by m arrives, from any m.
    rows = (VIDEO_MASK.max(), VIDEO_MASK[VIDEO_MASK > 0].min())
    assert rows[0] == 1
    assert rows[1] < 0.2
    made = run(Toy(towards(pack_video(GOAL.video, 2)), towards(pack_audio(GOAL.audio))), masks_of(VIDEO_MASK))
    wanted = torch.lerp(SOURCE.video, GOAL.video, VIDEO_MASK)
    assert (made.video - wanted).abs().max() <= 1e-4
    assert (made.audio - GOAL.audio).abs().max() <= 1e-4


def test_a_toy_run_equals_the_formulas_in_double_precision() -> None:
    made = run(Toy(wave, wave), masks_of(VIDEO_MASK, AUDIO_MASK))
    tokens = torch.nn.functional.max_pool2d(VIDEO_MASK[:, None], 2).flatten()
    streams = (
        (12.0, 0.999, pack_video(NOISE.video, 2), pack_video(SOURCE.video, 2), tokens, cells_in_rows()),
        (3.0, 1.0, pack_audio(NOISE.audio), pack_audio(SOURCE.audio), AUDIO_MASK.flatten(), audio_cells_in_rows()),
    )
    for result, (shift, latest, noise, clean, rows, cells) in zip(packed(made), streams, strict=True):
        noise, clean, rows, cells = (value.double() for value in (noise, clean, rows, cells))
        m = torch.ceil(rows * 256)[:, None] / 256
        anchor = 0.999 * clean + 0.001 * noise if latest < 1 else clean
        state, base = noise, torch.linspace(1, 0, STEPS + 1, dtype=torch.float64)
        sigmas = shift * base / (1 + (shift - 1) * base)
        for sigma, following in pairwise(sigmas):
            shown = anchor + m * (state - anchor)
            made_of = shown + sigma * m * wave(shown, (1 - m * sigma).clamp(max=latest))
            blended = clean + cells * (made_of - clean)
            state = following / sigma * state + (1 - following / sigma) * blended
        assert (result - state).abs().max() <= 2e-5


def packed(latents: Latents) -> tuple[torch.Tensor, torch.Tensor]:
    return pack_video(latents.video, 2), pack_audio(latents.audio)


def cells_in_rows() -> torch.Tensor:
    return pack_video(VIDEO_MASK.expand(GRID.video_shape), 2)


def audio_cells_in_rows() -> torch.Tensor:
    return AUDIO_MASK.flatten()[:, None].expand(74, 32)


@pytest.mark.parametrize("velocity", [wave, lambda shown, times: torch.full_like(shown, torch.nan)])
def test_kept_cells_are_the_source_to_the_last_bit(velocity: Velocity) -> None:
    # Zeros with a sign, and whatever the model says of its other rows.
    source = Latents(SOURCE.video.clone(), SOURCE.audio.clone())
    source.video[0, :, 2] = -0.0
    source.audio[0, :, :, 3] = -0.0
    made = run(Toy(velocity, velocity), masks_of(VIDEO_MASK, AUDIO_MASK, source))
    for result, clean, mask in ((made.video, source.video, VIDEO_MASK), (made.audio, source.audio, AUDIO_MASK)):
        kept = (mask == 0).expand(result.shape)
        assert int(kept.sum()) > 100
        assert torch.equal(bits(result)[kept], bits(clean)[kept])
        assert not torch.equal(result[~kept], clean[~kept])


def test_all_zero_gives_the_source() -> None:
    made = run(Toy(wave, wave), masks_of(torch.zeros(7, 4, 6), torch.zeros(2, 37)))
    assert torch.equal(bits(made.video), bits(SOURCE.video))
    assert torch.equal(bits(made.audio), bits(SOURCE.audio))


def test_all_ones_is_no_mask() -> None:
    assert masks_of() == UNMASKED
    assert masks_of(VIDEO_MASK).audio is None
    assert masks_of(audio=AUDIO_MASK).video is None


def test_the_masked_arithmetic_of_ones_is_the_schedulers_to_the_last_bit() -> None:
    def ones(clean: torch.Tensor, latest: float) -> RowMask:
        return RowMask(torch.ones(len(clean)), torch.ones(clean.shape), clean, clean, latest)

    forced = Masks(ones(pack_video(SOURCE.video, 2), 0.999), ones(pack_audio(SOURCE.audio), 1.0))
    toys = Toy(wave, wave), Toy(wave, wave)
    plain, masked = run(toys[0], UNMASKED), run(toys[1], forced)
    assert torch.equal(bits(plain.video), bits(masked.video))
    assert torch.equal(bits(plain.audio), bits(masked.audio))
    for before, after in zip(toys[0].seen, toys[1].seen, strict=True):
        assert torch.equal(before, after)


def test_streams_and_stereo_channels_do_not_touch_each_other() -> None:
    plain = run(Toy(wave, wave), UNMASKED)
    video_only = run(Toy(wave, wave), masks_of(VIDEO_MASK))
    assert torch.equal(bits(video_only.audio), bits(plain.audio))
    left = torch.stack([torch.zeros(37), torch.ones(37)])
    one_channel = run(Toy(wave, wave), masks_of(audio=left))
    assert torch.equal(bits(one_channel.video), bits(plain.video))
    assert torch.equal(bits(one_channel.audio[:, :, 0]), bits(SOURCE.audio[:, :, 0]))
    assert torch.equal(bits(one_channel.audio[:, :, 1]), bits(plain.audio[:, :, 1]))


def test_a_cell_that_is_kept_inside_a_row_that_is_not() -> None:
    mask = torch.zeros(7, 4, 6)
    mask[3, 0, 1] = 1.0
    toy = Toy(wave, wave)
    made = run(toy, masks_of(mask))
    changed = (made.video != SOURCE.video).any(dim=1)[0]
    assert changed.nonzero().tolist() == [[3, 0, 1]]
    # The row of that cell, first of frame 3, runs at the video's time; all others are held.
    times = toy.seen[2][LAYOUT.video_indices]
    assert times[18] == toy.seen[2][0] < 0.999
    assert torch.cat([times[:18], times[19:]]).unique().tolist() == [pytest.approx(0.999)]


def test_row_times_are_those_of_the_mask_rounded_up_and_never_beyond_what_is_held() -> None:
    mask = torch.full((7, 4, 6), 0.5 + 1e-4)
    toy = Toy(wave, wave)
    run(toy, masks_of(mask, torch.full((2, 37), 0.25)))
    schedules = set_schedules(MiniMaxH3Scheduler(12.0), MiniMaxH3Scheduler(3.0), steps=STEPS, device=stages.CPU)
    for step, seen in enumerate(toy.seen):
        video, audio = schedules.video.sigmas[step], schedules.audio.sigmas[step]
        assert set(seen[LAYOUT.video_indices].tolist()) == {float(1 - torch.tensor(129 / 256) * video)}
        assert set(seen[LAYOUT.audio_indices].tolist()) == {float(1 - torch.tensor(0.25) * audio)}
        assert set(seen[LAYOUT.text_indices].tolist()) == {float(schedules.video.timesteps[step])}


# --- what is no edit ------------------------------------------------------------------------------------------------


def read(video_mask: torch.Tensor, *, source: Latents = SOURCE) -> Edit:
    return Edit.read(vars(source), {"video_noise_mask": video_mask[None, None]})


def test_an_edit_is_read_from_tensors_and_numbers() -> None:
    edit = Edit.read(vars(SOURCE), {"video_noise_mask": VIDEO_MASK[None, None]}, audio_mask=0.25)
    assert torch.equal(edit.video_mask, VIDEO_MASK)
    assert torch.equal(edit.audio_mask, torch.full((2, 37), 0.25))
    nothing = Edit.read(vars(SOURCE), {})
    assert bool((nothing.video_mask == 1).all())
    assert bool((nothing.audio_mask == 1).all())


@pytest.mark.parametrize("value", [-0.1, 1.0001, float("nan"), float("inf")])
def test_a_value_that_is_no_mask_is_refused(value: float) -> None:
    mask = VIDEO_MASK.clone()
    mask[3, 2, 1] = value
    with pytest.raises(RequestError) as caught:
        read(mask)
    assert (caught.value.code, caught.value.field) == ("bad_mask", "parts.masks.video_noise_mask")


def test_a_source_with_values_that_are_no_numbers_is_refused() -> None:
    broken = dataclasses.replace(SOURCE, audio=SOURCE.audio.clone())
    broken.audio[0, 0, 0, 0] = torch.nan
    with pytest.raises(RequestError) as caught:
        read(VIDEO_MASK, source=broken)
    assert (caught.value.code, caught.value.field, caught.value.value) == ("bad_tensor", "parts.latents.audio", 1)


# --- the tiny model -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def models(tiny_checkpoint: Path) -> Models:
    return stages.load(tiny_checkpoint, keep=frozenset({"transformer", "transformer_ref"}))


SMALL = Latents(draw(11, 1, 24, 7, 2, 4), draw(12, 1, 32, 2, 37))
GUIDED = Conditions((EncodedCondition(17, draw(13, 1, 24, 1, 2, 4), draw(14, 1, 32, 2, 5)),))
REFERRED = Conditions(GUIDED.conditions, (EncodedReference("image", draw(15, 1, 24, 1, 2, 2)),))


def make(models: Models, edit: Edit | None, conditions: Conditions = GUIDED, *, seed: int = 3) -> Latents:
    embeds = PromptEmbeds(draw(16, 1, 9, models.facts.text_dim), torch.ones(9, dtype=torch.long))
    return denoise(stages.context(models), embeds, **SIZES, steps=3, seed=seed, conditions=conditions, edit=edit)


@pytest.mark.parametrize("conditions", [GUIDED, REFERRED], ids=["guide", "guide and reference"])
def test_with_conditions_what_is_kept_is_the_source_and_the_rest_is_new(models: Models, conditions: Conditions) -> None:
    video_mask, audio_mask = fractions(17, 7, 2, 4), fractions(18, 2, 37)
    made = make(models, Edit(SMALL.video, SMALL.audio, video_mask, audio_mask), conditions)
    for result, clean, mask in ((made.video, SMALL.video, video_mask), (made.audio, SMALL.audio, audio_mask)):
        kept = (mask == 0).expand(result.shape)
        assert 0 < int(kept.sum()) < kept.numel()
        assert torch.equal(bits(result)[kept], bits(clean)[kept])
        assert (result - clean)[(mask > 0.5).expand(result.shape)].abs().mean() > 0.05


def test_with_the_model_all_ones_is_no_mask_to_the_last_bit(models: Models) -> None:
    ones = Edit(SMALL.video, SMALL.audio, torch.ones(7, 2, 4), torch.ones(2, 37))
    plain, masked = make(models, None), make(models, ones)
    assert torch.equal(bits(plain.video), bits(masked.video))
    assert torch.equal(bits(plain.audio), bits(masked.audio))


def test_another_seed_changes_what_is_new_alone(models: Models) -> None:
    mask = torch.zeros(7, 2, 4)
    mask[4:] = 1
    edit = Edit(SMALL.video, SMALL.audio, mask, torch.zeros(2, 37))
    first, second = (make(models, edit, seed=seed) for seed in (3, 4))
    assert torch.equal(bits(first.video[:, :, :4]), bits(second.video[:, :, :4]))
    assert not torch.equal(first.video[:, :, 4:], second.video[:, :, 4:])
    assert torch.equal(bits(first.audio), bits(second.audio))


def test_a_kept_picture_is_seen_by_what_is_new(models: Models) -> None:
    mask = torch.zeros(7, 2, 4)
    mask[4:] = 1
    other = dataclasses.replace(SMALL, video=SMALL.video.flip(1))
    first, second = (
        make(models, Edit(source.video, source.audio, mask, torch.ones(2, 37))) for source in (SMALL, other)
    )
    assert (first.video[:, :, 4:] - second.video[:, :, 4:]).abs().max() > 1e-3
    assert (first.audio - second.audio).abs().max() > 1e-3
