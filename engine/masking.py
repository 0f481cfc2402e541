"""What an edit keeps of its source while the rest is made anew: masks of rows, their times, and putting it back.

A mask is 0 where the source is kept, 1 where it is made anew, a blend between; it is given for cells, of picture
[T, h, w] and of sound [2, A]. A row of the transformer has the largest mask m of its cells, rounded up to 1/256: it is
shown lerp(anchor, state, m) at the time min(1 - m * sigma, latest), and its velocity is multiplied by m. The anchor is
what conditions are: of picture 0.999 * clean + 0.001 * the run's noise at 0.999, of sound the clean rows at 1. What
comes of a step is lerp(clean, x0, mask of the cell, not rounded), blended with the state as diffusers' scheduler does.

Promise: cells with mask 0 end as the source, bit for bit; where m is 1 the arithmetic is the scheduler's, bit for bit,
and a stream whose mask is all ones has no `RowMask`; streams do not touch each other. Raises `RequestError` for values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .contract.check_masks import MASK_TENSORS
from .contract.errors import RequestError
from .contract.mask_cells import MaskReport, describe_masks, rows_of_cells
from .packing import VISUAL_CONDITION_TIME, PackedLayout, pack_audio, pack_video

AUDIO_CONDITION_TIME = 1.0
"""The time of sound that is held: clean."""


@dataclass(frozen=True)
class RowMask:
    """The mask of one stream in one run; fp32, on the device of the run.

    Attributes:
        rows: [N] mask of each row, in 256ths. cells: [N, D] mask of each value.
        clean: [N, D] the source. anchor: [N, D] what is shown of it where it is kept.
        latest: time of rows that are kept, the highest there is.
    """

    rows: torch.Tensor
    cells: torch.Tensor
    clean: torch.Tensor
    anchor: torch.Tensor
    latest: float

    def shown(self, state: torch.Tensor) -> torch.Tensor:
        """Return what the transformer is given of ``state`` [N, D]."""
        return torch.lerp(self.anchor, state, self.rows[:, None])

    def times(self, sigma: torch.Tensor) -> torch.Tensor:
        """Return the time [N] of each row where the stream's noise level is ``sigma``."""
        return (1.0 - self.rows * sigma).clamp(max=self.latest)

    def step(
        self, scheduler: Any, step: int, *, state: torch.Tensor, shown: torch.Tensor, velocity: torch.Tensor
    ) -> torch.Tensor:
        """Return ``state`` [N, D] after step number ``step`` of the schedule.

        The two sources of sigma are the scheduler's: x0 takes 1 - t, the blend the grid.

        Args:
            scheduler: diffusers', set to its schedule. shown: see `shown`. velocity: [N, D] what came of it, fp32.
        """
        made = shown + (1.0 - scheduler.timesteps[step]) * (self.rows[:, None] * velocity)
        blended = torch.lerp(self.clean, made, self.cells)
        ratio = scheduler.sigmas[step + 1] / scheduler.sigmas[step]
        moved: torch.Tensor = ratio * state + (1.0 - ratio) * blended
        return moved

    def restored(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the last ``rows`` [N, D] with what is kept as it was: zeros keep their sign, and nothing leaks in."""
        return torch.where(self.cells > 0, rows, self.clean)


@dataclass(frozen=True)
class Masks:
    """The masks of a run; None: all of the stream is made anew."""

    video: RowMask | None = None
    audio: RowMask | None = None


UNMASKED = Masks()


@dataclass(frozen=True)
class Edit:
    """A source and what of it is kept.

    Attributes:
        video: [1, C, T, h, w] the source's normalised latents. audio: [1, Ca, 2, A].
        video_mask: [T, h, w] fp32. audio_mask: [2, A] fp32; 0 keeps, 1 makes anew.
    """

    video: torch.Tensor
    audio: torch.Tensor
    video_mask: torch.Tensor
    audio_mask: torch.Tensor

    @classmethod
    def read(
        cls,
        source: Mapping[str, torch.Tensor],
        masks: Mapping[str, torch.Tensor],
        *,
        video_mask: float | None = None,
        audio_mask: float | None = None,
    ) -> Edit:
        """Take it from the parts ``latents`` and ``masks``, whose shapes the contract checked, or from numbers.

        A stream with neither tensor nor number is made anew.

        Raises:
            RequestError: ``bad_tensor`` for a source, ``bad_mask`` for a mask with values that are none; alike on all
                ranks that were given the same.
        """
        video, audio = source["video"].float(), source["audio"].float()
        for name, latent in (("video", video), ("audio", audio)):
            _check_source(name, latent)
        edit = cls(
            video,
            audio,
            _mask(masks.get(MASK_TENSORS["video"]), video_mask, (video.shape[2], *video.shape[3:])),
            _mask(masks.get(MASK_TENSORS["audio"]), audio_mask, tuple(audio.shape[2:])),
        )
        for stream, mask in (("video", edit.video_mask), ("audio", edit.audio_mask)):
            _check_values(f"parts.masks.{MASK_TENSORS[stream]}", mask)
        return edit

    def report(self, *, frames: int) -> MaskReport:
        """Return what the masks do to a video of ``frames`` pixel frames, for a person."""
        return describe_masks(self.video_mask.cpu().numpy(), self.audio_mask.cpu().numpy(), frames=frames)

    def masks(
        self,
        video_rows: torch.Tensor,
        audio_rows: torch.Tensor,
        *,
        layout: PackedLayout,
        scheduler: Any,
        patch: int,
    ) -> Masks:
        """Return the masks of one run.

        Args:
            video_rows, audio_rows: [N, D] all rows before the first step, the target's being noise.
            scheduler: diffusers', which mixes the anchor as it mixes conditions. patch: cells of a row's side.
        """
        noise = video_rows[layout.condition_video_rows :]
        clean = pack_video(self.video, patch).to(noise.device)
        assert clean.shape == noise.shape, "the source has the size of what is made"
        video = RowMask(
            rows=_rows(self.video_mask, noise.device),
            cells=pack_video(self.video_mask[None, None].expand(self.video.shape), patch).to(noise.device),
            clean=clean,
            anchor=scheduler.scale_noise(clean, VISUAL_CONDITION_TIME, noise),
            latest=VISUAL_CONDITION_TIME,
        )
        clean = pack_audio(self.audio).to(noise.device)
        assert clean.shape == audio_rows[layout.condition_audio_rows :].shape, "and its sound too"
        audio = RowMask(
            rows=_rows(self.audio_mask, noise.device),
            cells=self.audio_mask.flatten()[:, None].expand(clean.shape).to(noise.device),
            clean=clean,
            anchor=clean,
            latest=AUDIO_CONDITION_TIME,
        )
        return Masks(_unless_all_ones(video), _unless_all_ones(audio))


def _mask(tensor: torch.Tensor | None, number: float | None, shape: tuple[int, ...]) -> torch.Tensor:
    if tensor is not None:
        return tensor.reshape(shape)
    return torch.full(shape, 1.0 if number is None else number)


def _rows(cells: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return the mask of each row, in the order of the packed sequence."""
    return torch.from_numpy(rows_of_cells(cells.cpu().numpy())).flatten().to(device)


def _unless_all_ones(mask: RowMask) -> RowMask | None:
    return None if bool((mask.cells == 1).all()) else mask


def _check_source(name: str, latent: torch.Tensor) -> None:
    bad = int((~latent.isfinite()).sum())
    if bad:
        raise RequestError(
            "bad_tensor",
            f"{bad} of the {latent.numel()} values of the source are not finite numbers.",
            field=f"parts.latents.{name}",
            value=bad,
            remedy="Encode the source again.",
        )


def _check_values(field: str, mask: torch.Tensor) -> None:
    # What is not a number is not between either.
    bad = mask[~((mask >= 0) & (mask <= 1))]
    if bad.numel():
        raise RequestError(
            "bad_mask",
            f"{bad.numel()} of the {mask.numel()} values are not 0, keep, to 1, regenerate.",
            field=field,
            value=float(bad[0]),
            remedy="Scale the mask to 0 to 1.",
        )
