"""A shot continued 35 times with the tiny model: what is kept stays to the bit, picture and sound stay in step."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.contract import geometry
from engine.contract.extend import Extension, plan_extension
from engine.masking import Edit
from engine.models.bundle import Models
from engine.stages.base import Latents, PromptEmbeds
from engine.stages.decode_audio import decode_audio
from engine.stages.decode_video import decode_video
from engine.stages.denoise import denoise
from tests.support import stages

pytestmark = pytest.mark.usefixtures("one_thread")

WIDTH, HEIGHT = 64, 32


@pytest.fixture(scope="module")
def models(tiny_checkpoint: Path) -> Models:
    return stages.load(tiny_checkpoint, keep=frozenset({"transformer", "vae", "audio_vae"}))


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def cut(latents: Latents, video: range, audio: range) -> Latents:
    """Return a run of both streams."""
    return Latents(latents.video[:, :, video.start : video.stop], latents.audio[..., audio.start : audio.stop])


def join(*parts: Latents) -> Latents:
    """Return latents end to end."""
    return Latents(torch.cat([part.video for part in parts], 2), torch.cat([part.audio for part in parts], 3))


def equal(first: Latents, second: Latents) -> bool:
    """Return whether both streams are the same to the bit."""
    pairs = ((first.video, second.video), (first.audio, second.audio))
    return all(torch.equal(a.contiguous().view(torch.int32), b.contiguous().view(torch.int32)) for a, b in pairs)


def continued(models: Models, source: Latents, plan: Extension, *, seed: int) -> Latents:
    """Return the latent that ``plan`` makes of ``source``."""
    taken = cut(source, plan.taken_latents, plan.taken_audio)
    video_mask = torch.tensor(plan.video_mask)[:, None, None].expand(-1, HEIGHT // 16, WIDTH // 16)
    audio_mask = torch.tensor(plan.audio_mask).expand(2, -1)
    placed = Latents(
        torch.zeros(1, models.facts.latent_channels, *video_mask.shape),
        torch.zeros(1, models.facts.audio_latent_channels, *audio_mask.shape),
    )
    placed.video[:, :, plan.kept_latents.start : plan.kept_latents.stop] = taken.video
    placed.audio[..., plan.kept_audio.start : plan.kept_audio.stop] = taken.audio
    embeds = PromptEmbeds(draw(0, 1, 5, models.facts.text_dim), torch.ones(5, dtype=torch.long))
    made = denoise(
        stages.context(models),
        embeds,
        width=WIDTH,
        height=HEIGHT,
        frames=plan.frames,
        steps=1,
        seed=seed,
        edit=Edit(placed.video, placed.audio, video_mask, audio_mask),
    )
    assert equal(cut(made, plan.kept_latents, plan.kept_audio), taken)
    return made


@pytest.mark.parametrize("end", ["after", "before"])
def test_a_shot_that_was_continued_35_times_is_itself_and_in_step(models: Models, end: str) -> None:
    shot = Latents(draw(1, 1, 24, 37, HEIGHT // 16, WIDTH // 16), draw(2, 1, 32, 2, 207))
    for turn in range(35):
        before, frames = shot, geometry.frames_of_latents(shot.video.shape[2])
        plan = plan_extension(frames, overlap=22, **{end: 4.0 + turn % 5 / 2})
        made = continued(models, shot, plan, seed=turn)
        shot = join(
            cut(shot, range(plan.taken_latents.start), range(plan.taken_audio.start)),
            made,
            cut(
                shot,
                range(plan.taken_latents.stop, shot.video.shape[2]),
                range(plan.taken_audio.stop, shot.audio.shape[3]),
            ),
        )
        old_video, old_audio = before.video.shape[2], before.audio.shape[3]
        first_video, first_audio = (0, 0) if end == "after" else (plan.kept_latents.start, plan.kept_audio.start)
        assert equal(
            cut(shot, range(first_video, first_video + old_video), range(first_audio, first_audio + old_audio)), before
        )
    frames = geometry.frames_of_latents(shot.video.shape[2])
    assert frames / geometry.FPS > 35 * 4
    drift = frames / geometry.FPS - shot.audio.shape[3] / geometry.AUDIO_LATENTS_PER_SECOND
    assert abs(drift) <= 1 / geometry.FPS
    assert abs(drift) <= 0.5 / geometry.AUDIO_LATENTS_PER_SECOND + 1e-9


def test_a_continued_shot_decodes_to_its_frames_and_samples(models: Models) -> None:
    shot = Latents(draw(1, 1, 24, 7, HEIGHT // 16, WIDTH // 16), draw(2, 1, 32, 2, 37))
    plan = plan_extension(22, before=1.0, after=1.0)
    made = continued(models, shot, plan, seed=1)
    ctx = stages.context(models)
    sound = decode_audio(ctx, made.audio)
    assert sound is not None
    assert sum(len(chunk) for chunk in decode_video(ctx, made.video)) == plan.frames == 107
    assert sound.shape[2] == geometry.audio_latents(107) * geometry.SAMPLES_PER_AUDIO_LATENT
