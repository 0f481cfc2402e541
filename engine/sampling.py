"""The Euler loop over both schedules.

Promise: for the same noise, weights and thread count the rows that come out equal diffusers' bit for bit; rows that an
edit keeps are the source's (`masking`); one forward of the transformer a step; ``boundary`` before each step and
``report`` after it. All steps' times are known before the first forward, and given to `Modulation`. Raises `JobError`
when the two schedules of a checkpoint cannot be stepped together, and whatever ``boundary`` raises.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch

from .contract.errors import JobError
from .masking import UNMASKED, Masks, RowMask
from .offload.modulation import Modulation
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


class _Stream:
    """One stream of a run: the conditions' rows, which stay, and the target's, which move."""

    def __init__(self, rows: torch.Tensor, conditions: int, scheduler: Any, mask: RowMask | None) -> None:
        self._conditions, self._state = rows[:conditions], rows[conditions:]
        self._shown = self._state
        self._scheduler = scheduler
        self._mask = mask

    def shown(self) -> torch.Tensor:
        """Return the rows [1, N, D] that the transformer is given."""
        self._shown = self._state if self._mask is None else self._mask.shown(self._state)
        return torch.cat([self._conditions, self._shown])[None] if len(self._conditions) else self._shown[None]

    def times(self, step: int) -> torch.Tensor | None:
        """Return the times of the target's rows at ``step``, on the CPU, where they have their own."""
        return None if self._mask is None else self._mask.times(self._scheduler.sigmas[step]).cpu()

    def move(self, step: int, velocity: torch.Tensor) -> None:
        """Go one step on with the ``velocity`` [1, N, D] of all rows."""
        own = velocity[0, len(self._conditions) :].float()
        if self._mask is None:
            time = self._scheduler.timesteps[step]
            self._state = self._scheduler.step(own, time, self._state, return_dict=False)[0]
        else:
            self._state = self._mask.step(self._scheduler, step, state=self._state, shown=self._shown, velocity=own)

    def result(self) -> torch.Tensor:
        """Return the target's rows after the last step."""
        return self._state if self._mask is None else self._mask.restored(self._state)


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
    modulation: Modulation,
    masks: Masks = UNMASKED,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Denoise both streams.

    Args:
        transformer: diffusers' transformer, possibly wrapped for parallel attention; it must be for a padded layout.
        video_rows: [Nv, C*p*p] fp32. audio_rows: [Na, Ca] fp32; of both the conditions' rows come first and stay as
            they are. prompt_embeds: [1, L, text_dim]; all on one device.
        modulation: of the transformer's blocks. masks: what of a source is kept, and how.

    Returns:
        The denoised video and audio rows of the target.
    """
    device = video_rows.device
    video = _Stream(video_rows, layout.condition_video_rows, schedules.video, masks.video)
    audio = _Stream(audio_rows, layout.condition_audio_rows, schedules.audio, masks.audio)
    inputs: dict[str, Any] = dict(layout.forward_inputs(device))
    if sequence_parallel_of(transformer) is not None:
        inputs |= layout.sequence_inputs()
    else:
        assert layout.used == layout.token_tags.numel(), "only a wrapped transformer leaves padding out"
    steps = _step_times(layout, schedules, video, audio)
    with ExitStack() as run:
        for step, (times, indices) in enumerate(steps):
            boundary()
            if step == 0:
                # The ranks may trade tables in data collectives, which are allowed from the first boundary on.
                show = run.enter_context(modulation.applied(transformer, [times for times, _ in steps], device))
            show(step)
            video_velocity, audio_velocity = transformer(
                hidden_states=video.shown(),
                audio_hidden_states=audio.shown(),
                encoder_hidden_states=prompt_embeds,
                timestep=times.to(device),
                timestep_indices=indices.to(device),
                return_dict=False,
                **inputs,
            )
            video.move(step, video_velocity)
            audio.move(step, audio_velocity)
            report(step + 1, schedules.forwards)
    return video.result(), audio.result()


def _step_times(
    layout: PackedLayout, schedules: Schedules, video: _Stream, audio: _Stream
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the distinct times of each step and each row's index into them, on the CPU."""
    return [
        layout.row_times(
            float(schedules.video.timesteps[step]),
            float(schedules.audio.timesteps[step]),
            video_rows=video.times(step),
            audio_rows=audio.times(step),
        )
        for step in range(schedules.forwards)
    ]
