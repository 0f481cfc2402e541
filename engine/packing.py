"""The packed sequence of one request: where every row sits, and the way between latents and rows.

Promise: the numbers are diffusers' own, since its functions are called; latents are in ComfyUI's layout outside this
module. Everything is built on the CPU and moved once. Raises nothing of its own: sizes were checked by the contract.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from diffusers.modular_pipelines.minimax_h3.before_denoise import (
    MiniMaxH3PrepareLayoutStep,
    MiniMaxH3SetTimestepsStep,
    patchify_video_latents,
)
from diffusers.modular_pipelines.minimax_h3.modular_pipeline import (
    MINIMAX_H3_AUDIO_TAG,
    MINIMAX_H3_TEXT_TAG,
    MINIMAX_H3_VIDEO_TAG,
)
from diffusers.utils.torch_utils import maybe_adjust_dtype_for_device

from .contract import geometry
from .contract.limits import ModelFacts

VISUAL_CONDITION_TIME = 0.999
"""The time at which visual condition rows are held (1 is clean)."""


@dataclass(frozen=True)
class LatentGrid:
    """Sizes of a request's latents.

    Attributes:
        channels: of a video latent. frames, height, width: latent frames and cells.
        audio_channels: of an audio latent. audio_length: audio latents per stereo channel.
        patch: latent cells per row, each spatial axis.
    """

    channels: int
    frames: int
    height: int
    width: int
    audio_channels: int
    audio_length: int
    patch: int

    @property
    def video_shape(self) -> tuple[int, int, int, int, int]:
        """Shape of the video latents: [1, C, T, h, w]."""
        return (1, self.channels, self.frames, self.height, self.width)

    @property
    def audio_rows_shape(self) -> tuple[int, int]:
        """Shape of the audio rows: [2A, Ca], channel-major."""
        return (geometry.AUDIO_CHANNELS * self.audio_length, self.audio_channels)


def latent_grid(facts: ModelFacts, *, width: int, height: int, frames: int) -> LatentGrid:
    """Return the latent sizes of ``frames`` (on the lattice 17n+5) pixel frames of ``width`` x ``height``."""
    return LatentGrid(
        channels=facts.latent_channels,
        frames=geometry.latent_frames(frames),
        height=height // facts.spatial_ratio,
        width=width // facts.spatial_ratio,
        audio_channels=facts.audio_latent_channels,
        audio_length=geometry.audio_latents(frames),
        patch=facts.patch,
    )


@dataclass(frozen=True)
class PackedLayout:
    """The packed sequence ``text | conditions | target audio | target video | padding`` of P rows, S of them used.

    Attributes:
        position_ids: [P, 3] rotary coordinates (t, h, w), float64 where the device has it.
        token_tags: [P] int64; 0 video, 1 text, 2 audio; padding is tagged as text.
        video_indices, audio_indices, text_indices: rows of each modality, conditions first.
        condition_video_rows, condition_audio_rows: how many leading rows of each are conditions.
    """

    position_ids: torch.Tensor
    token_tags: torch.Tensor
    video_indices: torch.Tensor
    audio_indices: torch.Tensor
    text_indices: torch.Tensor
    condition_video_rows: int
    condition_audio_rows: int

    @property
    def used(self) -> int:
        """S, the rows that are not padding."""
        return self.video_indices.numel() + self.audio_indices.numel() + self.text_indices.numel()

    def padded(self, rows: int) -> PackedLayout:
        """Return the layout with padding at its end, ``rows`` long in all; the rows before it stay where they are."""
        padding = rows - self.token_tags.numel()
        assert padding >= 0, (rows, self.token_tags.numel())
        return replace(
            self,
            position_ids=torch.cat([self.position_ids, self.position_ids.new_zeros((padding, 3))]),
            token_tags=torch.cat([self.token_tags, self.token_tags.new_full((padding,), MINIMAX_H3_TEXT_TAG)]),
        )

    def sequence_inputs(self) -> dict[str, int]:
        """Return what a wrapped transformer takes besides: see `parallel.sharding`."""
        return {
            "valid_kv_length": self.used,
            "condition_video_rows": self.condition_video_rows,
            "condition_audio_rows": self.condition_audio_rows,
        }

    def forward_inputs(self, device: torch.device) -> dict[str, torch.Tensor]:
        """Return the layout's part of the transformer's arguments, on ``device``."""
        dtype = maybe_adjust_dtype_for_device(self.position_ids.dtype, device)
        return {
            "position_ids": self.position_ids.to(device, dtype),
            "token_tags": self.token_tags.to(device),
            "video_indices": self.video_indices.to(device),
            "audio_indices": self.audio_indices.to(device),
            "text_indices": self.text_indices.to(device),
        }

    def row_times(self, video_time: float, audio_time: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the distinct times [n] of one step and each row's index [P] into them; padding has the video's."""
        times, indices = MiniMaxH3SetTimestepsStep.build_row_timesteps(
            self.video_indices,
            self.audio_indices,
            self.condition_video_rows,
            self.condition_audio_rows,
            self.text_indices.numel(),
            video_time,
            audio_time,
            max(video_time, VISUAL_CONDITION_TIME),
            1.0,
        )
        padding = self.token_tags.numel() - self.used
        return times, torch.cat([indices, indices[self.video_indices[-1:]].expand(padding)])


def build_layout(token_tags: torch.Tensor, grid: LatentGrid, *, pad_seq_len: int | None = None) -> PackedLayout:
    """Lay out a request without conditions.

    Args:
        token_tags: [L] int64, on the CPU; one tag for each text row.
        pad_seq_len: rows to pad the sequence to, not below those used; None: no padding.
    """
    layout = PackedLayout(
        *MiniMaxH3PrepareLayoutStep.build_packed_sequence(
            token_tags,
            grid.frames,
            grid.height,
            grid.width,
            grid.audio_length,
            (1, grid.patch, grid.patch),
            geometry.AUDIO_CHANNELS,
            MINIMAX_H3_AUDIO_TAG,
            MINIMAX_H3_VIDEO_TAG,
        )
    )
    return layout if pad_seq_len is None else layout.padded(pad_seq_len)


def pack_video(video: torch.Tensor, patch: int) -> torch.Tensor:
    """Return the rows [T*(h/p)*(w/p), C*p*p] of video latents [1, C, T, h, w]."""
    rows: torch.Tensor = patchify_video_latents(video, (1, patch, patch))
    return rows


def unpack_video(rows: torch.Tensor, grid: LatentGrid) -> torch.Tensor:
    """Return the video latents [1, C, T, h, w] of ``rows``: the inverse of `pack_video`."""
    p = grid.patch
    cells = rows.reshape(grid.frames, grid.height // p, grid.width // p, grid.channels, p, p)
    # [T, h/p, w/p, C, p, p] -> [C, T, h/p, p, w/p, p]
    return cells.permute(3, 0, 1, 4, 2, 5).reshape(grid.video_shape)


def unpack_audio(rows: torch.Tensor, grid: LatentGrid) -> torch.Tensor:
    """Return the audio latents [1, Ca, 2, A] of channel-major ``rows`` [2A, Ca]."""
    channels = rows.reshape(geometry.AUDIO_CHANNELS, grid.audio_length, grid.audio_channels)
    return channels.permute(2, 0, 1)[None].contiguous()
