"""The packed sequence of one request: where every row sits, and the way between latents and rows.

Promise: built from sizes alone, on the CPU, and moved once; positions, tags, indices and times equal diffusers' bit for
bit wherever it knows the layout (t2va, fl2va, ref2va), since its grids are used; latents are in ComfyUI's layout
outside this module. Raises `RequestError` for a pinned length that is too short; other sizes the contract checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from diffusers.modular_pipelines.minimax_h3.before_denoise import (
    _ROPE_FRAME_RESCALE,
    _ROPE_FRAMES_PER_LATENT,
    MiniMaxH3SetTimestepsStep,
    _fill_audio_positions,
    _frame_position_grid,
    _temporal_position_grid,
    patchify_video_latents,
)
from diffusers.modular_pipelines.minimax_h3.modular_pipeline import (
    MINIMAX_H3_AUDIO_TAG,
    MINIMAX_H3_TEXT_TAG,
    MINIMAX_H3_VIDEO_TAG,
)
from diffusers.utils.torch_utils import maybe_adjust_dtype_for_device

from .contract import geometry
from .contract.lengths import check_pinned
from .contract.limits import ModelFacts

_FRAME_TIME = float(_ROPE_FRAME_RESCALE)
"""Time of one pixel frame, in audio latents: 5/3."""
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
    """The packed sequence of P rows, S of them used.

    Its order: ``text | conditions | references | target audio | target video | padding``.

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
        """Return the layout with padding at its end, ``rows`` long in all; the rows before it stay where they are.

        Raises:
            RequestError: ``out_of_range`` when they are fewer than the used ones; with pictures in the text only the
                ranks can tell.
        """
        check_pinned(rows, rows=self.token_tags.numel())
        padding = rows - self.token_tags.numel()
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

    def row_times(
        self,
        video_time: float,
        audio_time: float,
        *,
        video_rows: torch.Tensor | None = None,
        audio_rows: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the distinct times [n] of one step and each row's index [P] into them; padding has the video's.

        Args:
            video_rows: [Nv] fp32 on the CPU, a time of its own for each row of the target's pictures; None: the
                stream's. audio_rows: [Na], the same of its sound.
        """
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
        if video_rows is not None or audio_rows is not None:
            each = times[indices]
            if video_rows is not None:
                each[self.video_indices[self.condition_video_rows :]] = video_rows
            if audio_rows is not None:
                each[self.audio_indices[self.condition_audio_rows :]] = audio_rows
            times, indices = torch.unique(each, sorted=True, return_inverse=True)
        padding = self.token_tags.numel() - self.used
        # Text has the video's time in every case.
        return times, torch.cat([indices, indices[self.text_indices[:1]].expand(padding)])


@dataclass(frozen=True)
class Block:
    """The rows that one condition or reference adds, by the sizes of its latents.

    Attributes:
        kind: ``condition``, a keyframe or guide; else a reference of this kind, its sound included.
        video: latent frames, height and width; None: no pictures.
        audio: audio latents of each channel; 0: no sound.
        frame: of a condition, the target's pixel frame where it starts.
    """

    kind: Literal["condition", "image", "video", "audio"]
    video: tuple[int, int, int] | None = None
    audio: int = 0
    frame: int = 0

    @property
    def span(self) -> float:
        """Time that a reference pushes the target's clock on: an image 1, else its longer stream.

        The spans of the pictures are added one by one, as diffusers does; see `_condition_time`.
        """
        if self.kind == "image":
            return 1.0
        return max(float(self.audio), float(sum(_latent_spans(self.video[0] if self.video else 0))))


def build_layout(
    token_tags: torch.Tensor, grid: LatentGrid, blocks: Sequence[Block] = (), *, pad_seq_len: int | None = None
) -> PackedLayout:
    """Lay out a request.

    Args:
        token_tags: [L] int64, on the CPU; one tag for each text row.
        blocks: what it is conditioned on, in order; conditions before references.
        pad_seq_len: rows to pad the sequence to, not below those used; None: no padding.
    """
    sequence = _Sequence(token_tags, grid.patch)
    clock = float(token_tags.shape[0])
    origins = []
    for block in blocks:
        origins.append(clock)
        clock += 0.0 if block.kind == "condition" else block.span
    _, width_grid = _frame_position_grid(grid.height, grid.width, grid.patch, grid.patch)
    for block, origin in zip(blocks, origins, strict=True):
        if block.kind == "condition":
            sequence.add_condition(block, _condition_time(block, clock, grid.frames), width_grid)
        else:
            sequence.add_reference(block, origin, width_grid)
    condition_rows = (len(sequence.video), len(sequence.audio))
    sequence.add_audio(grid.audio_length, clock, width_grid)
    sequence.add_video((grid.frames, grid.height, grid.width), clock)
    layout = sequence.finish(*condition_rows)
    return layout if pad_seq_len is None else layout.padded(pad_seq_len)


def _latent_spans(frames: int) -> list[float]:
    """Return the time that each of ``frames`` latent frames takes, 5/3 for every pixel frame it covers."""
    pattern = _ROPE_FRAMES_PER_LATENT
    return [_FRAME_TIME * pattern[index % len(pattern)] for index in range(frames)]


def _condition_time(block: Block, origin: float, target_frames: int) -> float:
    """Return where a condition starts on a clock whose target starts at ``origin``: 5/3 for each pixel frame.

    Of the target's last pixel frame, diffusers takes the whole span less one pixel frame, added up pairwise (numpy's
    way), which differs in the last bit from the sum one by one and from the product.
    """
    if block.video is not None and block.frame == geometry.frames_of_latents(target_frames) - 1:
        return origin + float(np.array(_latent_spans(target_frames)).sum()) - _FRAME_TIME
    return origin + _FRAME_TIME * block.frame


class _Rows:
    """Rows of one modality: where they stand in the sequence, in order."""

    def __init__(self) -> None:
        self._spans: list[torch.Tensor] = []

    def __len__(self) -> int:
        return sum(span.numel() for span in self._spans)

    def add(self, start: int, stop: int) -> None:
        self._spans.append(torch.arange(start, stop))

    @property
    def indices(self) -> torch.Tensor:
        return torch.cat(self._spans)


class _Sequence:
    """A packed sequence that grows at its end, after the text."""

    def __init__(self, token_tags: torch.Tensor, patch: int) -> None:
        self.video = _Rows()
        self.audio = _Rows()
        self._text = token_tags.shape[0]
        self._patch = patch
        self._length = self._text
        positions = torch.zeros((self._text, 3), dtype=torch.float64)
        positions[:, 0] = torch.arange(self._text, dtype=torch.float64)
        self._positions = [positions]
        self._tags = [token_tags.to(torch.long)]

    def add_condition(self, block: Block, time: float, width_grid: torch.Tensor) -> None:
        """Pictures, then sound, at the same time."""
        if block.video is not None:
            self.add_video(block.video, time)
        if block.audio:
            self.add_audio(block.audio, time, width_grid)

    def add_reference(self, block: Block, origin: float, target_width_grid: torch.Tensor) -> None:
        """Sound, then pictures; a soundtrack lies at the ends of its own pictures' width."""
        width_grid = target_width_grid
        if block.video is not None:
            _, width_grid = _frame_position_grid(*block.video[1:], self._patch, self._patch)
        if block.audio:
            self.add_audio(block.audio, origin, width_grid)
        if block.video is not None:
            self.add_video(block.video, origin)

    def add_video(self, size: tuple[int, int, int], time: float) -> None:
        """Add latent frames of (frames, height, width) from ``time`` on."""
        frames, height, width = size
        frame_grid, _ = _frame_position_grid(height, width, self._patch, self._patch)
        positions = torch.empty((frames * frame_grid.shape[0], 3), dtype=torch.float64)
        positions[:, 0] = _temporal_position_grid(frames, time).repeat_interleave(frame_grid.shape[0])
        positions[:, 1:] = frame_grid.repeat(frames, 1)
        self._add(positions, MINIMAX_H3_VIDEO_TAG, self.video)

    def add_audio(self, length: int, time: float, width_grid: torch.Tensor) -> None:
        """Add ``length`` latents of each channel from ``time`` on."""
        positions = torch.zeros((geometry.AUDIO_CHANNELS * length, 3), dtype=torch.float64)
        _fill_audio_positions(positions, slice(0, len(positions)), length, time, width_grid, geometry.AUDIO_CHANNELS)
        self._add(positions, MINIMAX_H3_AUDIO_TAG, self.audio)

    def _add(self, positions: torch.Tensor, tag: int, rows: _Rows) -> None:
        start, self._length = self._length, self._length + len(positions)
        rows.add(start, self._length)
        self._positions.append(positions)
        self._tags.append(torch.full((len(positions),), tag, dtype=torch.long))

    def finish(self, condition_video_rows: int, condition_audio_rows: int) -> PackedLayout:
        """Return the layout of what was added."""
        return PackedLayout(
            position_ids=torch.cat(self._positions),
            token_tags=torch.cat(self._tags),
            video_indices=self.video.indices,
            audio_indices=self.audio.indices,
            text_indices=torch.arange(self._text),
            condition_video_rows=condition_video_rows,
            condition_audio_rows=condition_audio_rows,
        )


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


def pack_audio(audio: torch.Tensor) -> torch.Tensor:
    """Return the channel-major rows [2A, Ca] of audio latents [1, Ca, 2, A]: the inverse of `unpack_audio`."""
    return audio[0].permute(1, 2, 0).reshape(-1, audio.shape[1])


def unpack_audio(rows: torch.Tensor, grid: LatentGrid) -> torch.Tensor:
    """Return the audio latents [1, Ca, 2, A] of channel-major ``rows`` [2A, Ca]."""
    channels = rows.reshape(geometry.AUDIO_CHANNELS, grid.audio_length, grid.audio_channels)
    return channels.permute(2, 0, 1)[None].contiguous()
