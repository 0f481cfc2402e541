"""The Euler loop over both schedules.

Promise: for the same noise, weights and thread count the rows that come out equal diffusers' bit for bit; one forward
of the transformer a step; ``boundary`` before each step and ``report`` after it. Raises `JobError` when the two
schedules of a checkpoint cannot be stepped together, and whatever ``boundary`` raises.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .contract.errors import JobError
from .packing import PackedLayout
from .parallel.sharding import sequence_parallel_of


@dataclass(frozen=True)
class Schedules:
    """A video and an audio schedule of equal length, with their diffusers schedulers set.

    The schedulers hold the position in their schedule: one `Schedules` serves one run.
    """

    video: Any
    audio: Any

    @property
    def forwards(self) -> int:
        """Forwards of the transformer. Fewer than the steps asked for when the shift makes two steps one."""
        return int(self.video.timesteps.numel())


def set_schedules(video: Any, audio: Any, *, steps: int, device: torch.device) -> Schedules:
    """Set both schedulers to ``steps`` forwards.

    Raises:
        JobError: ``job_failed`` when the schedules come out with different lengths.
    """
    # diffusers counts grid points, the terminal zero included.
    video.set_timesteps(steps + 1, device=device)
    audio.set_timesteps(steps + 1, device=device)
    lengths = (video.timesteps.numel(), audio.timesteps.numel())
    if lengths[0] != lengths[1]:
        raise JobError(
            "job_failed",
            f"{steps} steps give {lengths[0]} distinct video and {lengths[1]} distinct audio times.",
            field="request.steps",
            value=steps,
            remedy="Use fewer steps: the checkpoint's shifts make neighbouring times equal.",
        )
    return Schedules(video, audio)


@torch.no_grad()
def sample(
    transformer: Any,
    *,
    video_rows: torch.Tensor,
    audio_rows: torch.Tensor,
    prompt_embeds: torch.Tensor,
    layout: PackedLayout,
    schedules: Schedules,
    boundary: Callable[[], None],
    report: Callable[[int, int], None],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Denoise both streams.

    Args:
        transformer: diffusers' transformer, possibly wrapped for parallel attention; it must be for a padded layout.
        video_rows: [Nv, C*p*p] fp32. audio_rows: [Na, Ca] fp32; of both the conditions' rows come first and stay as
            they are. prompt_embeds: [1, L, text_dim]; all on one device.

    Returns:
        The denoised video and audio rows of the target.
    """
    kept_video, kept_audio = layout.condition_video_rows, layout.condition_audio_rows
    device = video_rows.device
    inputs: dict[str, Any] = dict(layout.forward_inputs(device))
    if sequence_parallel_of(transformer) is not None:
        inputs |= layout.sequence_inputs()
    else:
        assert layout.used == layout.token_tags.numel(), "only a wrapped transformer leaves padding out"
    total = schedules.forwards
    times_of = zip(schedules.video.timesteps, schedules.audio.timesteps, strict=True)
    for step, (video_time, audio_time) in enumerate(times_of):
        boundary()
        times, indices = layout.row_times(float(video_time), float(audio_time))
        video_velocity, audio_velocity = transformer(
            hidden_states=video_rows[None],
            audio_hidden_states=audio_rows[None],
            encoder_hidden_states=prompt_embeds,
            timestep=times.to(device),
            timestep_indices=indices.to(device),
            return_dict=False,
            **inputs,
        )
        video_rows = _step(schedules.video, video_velocity[0], video_time, video_rows, kept_video)
        audio_rows = _step(schedules.audio, audio_velocity[0], audio_time, audio_rows, kept_audio)
        report(step + 1, total)
    return video_rows[kept_video:], audio_rows[kept_audio:]


def _step(scheduler: Any, velocity: torch.Tensor, time: torch.Tensor, rows: torch.Tensor, kept: int) -> torch.Tensor:
    """Return ``rows`` one step on; the first ``kept`` are conditions."""
    moved: torch.Tensor = scheduler.step(velocity[kept:].float(), time, rows[kept:], return_dict=False)[0]
    return torch.cat([rows[:kept], moved]) if kept else moved
