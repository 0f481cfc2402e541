"""From one forward's whole inputs to a rank's own, and from the ranks' own outputs to whole ones.

The transformer's forward is a function of its packed rows, so a rank calls it with its own rows only: their latents,
positions, tags, times, and indices counted from its first row. Patch projections, rotary tables, modulation and output
heads then run for these rows and no others. What comes back to everybody is the target rows alone. Promise: nothing
of the order or number of rows is assumed beyond what the index tensors say. Raises `DataGroupError`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .collectives import gather_uneven
from .mesh import Mesh
from .strategy import Shard

KIND_HEADS = "heads"
KIND_BLOCK = "block"
_PER_ROW = ("position_ids", "token_tags", "timestep_indices")


@dataclass(frozen=True)
class Modality:
    """The rows of one modality in one forward.

    Attributes:
        total: rows of the modality, N.
        mine: [k] places among the N of this rank's rows.
        local: [k] where those stand in this rank's run of the packed sequence.
        targets: for each rank of the strategy, [g] places among the N of the rows whose output is wanted.
        my_targets: [g] places among the k of this rank's rows whose output is wanted.
    """

    total: int
    mine: torch.Tensor
    local: torch.Tensor
    targets: tuple[torch.Tensor, ...]
    my_targets: torch.Tensor

    @classmethod
    def divide(cls, indices: torch.Tensor, shard: Shard, *, conditions: int) -> Modality:
        """Divide rows that stand at ``indices`` [N] of the packed sequence; the first ``conditions`` are unwanted."""
        places, device = indices.cpu(), indices.device

        def held(bounds: tuple[int, int]) -> torch.Tensor:
            return ((places >= bounds[0]) & (places < bounds[1])).nonzero().flatten()

        mine = held(shard.bounds)
        everywhere = (held(shard.rows.bounds(index)) for index in range(len(shard.rows.counts)))
        return cls(
            total=len(places),
            mine=mine.to(device),
            local=(places[mine] - shard.bounds[0]).to(device),
            targets=tuple(rows[rows >= conditions].to(device) for rows in everywhere),
            my_targets=(mine >= conditions).nonzero().flatten().to(device),
        )


@dataclass(frozen=True)
class Split:
    """How the rows of one forward are divided, by modality; see `Modality`."""

    shard: Shard
    video: Modality
    audio: Modality
    text: Modality

    @classmethod
    def plan(cls, inputs: dict[str, Any], shard: Shard, *, condition_video: int, condition_audio: int) -> Split:
        """Read the index tensors of a forward."""
        return cls(
            shard,
            Modality.divide(inputs["video_indices"], shard, conditions=condition_video),
            Modality.divide(inputs["audio_indices"], shard, conditions=condition_audio),
            Modality.divide(inputs["text_indices"], shard, conditions=0),
        )

    def own_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return the forward's arguments for this rank's rows; the text stays whole, its refiner needs all of it."""
        start, stop = self.shard.bounds
        own = {name: inputs[name][start:stop] for name in _PER_ROW}
        return {
            **inputs,
            **own,
            "hidden_states": inputs["hidden_states"].index_select(1, self.video.mine),
            "audio_hidden_states": inputs["audio_hidden_states"].index_select(1, self.audio.mine),
            "video_indices": self.video.local,
            "audio_indices": self.audio.local,
            "text_indices": self.text.local,
        }

    def gather_outputs(self, video: torch.Tensor, audio: torch.Tensor, mesh: Mesh) -> tuple[torch.Tensor, torch.Tensor]:
        """Return both outputs [B, N, C] on every rank from each rank's own [B, k, C]; condition rows are zeros.

        Both heads' rows travel in one exchange.
        """
        axis = self.shard.strategy.axis
        assert axis is not None
        assert video.dtype == audio.dtype, "both output heads are of one type"
        heads = ((video, self.video), (audio, self.audio))
        sizes = [[x.shape[0] * len(rows) * x.shape[2] for rows in modality.targets] for x, modality in heads]
        mine = torch.cat([x.index_select(1, modality.my_targets).flatten() for x, modality in heads])
        counts = [sum(pair) for pair in zip(*sizes, strict=True)]
        parts = gather_uneven(mine, counts, mesh=mesh, axis=axis, kind=KIND_HEADS)
        wholes = [x.new_zeros((x.shape[0], modality.total, x.shape[2])) for x, modality in heads]
        for rank, part in enumerate(parts):
            pieces = torch.split(part, [size[rank] for size in sizes])
            for whole, piece, (x, modality) in zip(wholes, pieces, heads, strict=True):
                rows = modality.targets[rank]
                whole[:, rows] = piece.view(x.shape[0], len(rows), x.shape[2])
        return wholes[0], wholes[1]


def gather_rows(x: torch.Tensor, shard: Shard, mesh: Mesh) -> torch.Tensor:
    """Return all P rows [B, P, C] of a packed tensor of which each rank has its own run [B, R, C]."""
    axis = shard.strategy.axis
    if axis is None:
        return x
    width = x.shape[0] * x.shape[2]
    counts = [rows * width for rows in shard.rows.counts]
    parts = gather_uneven(x.contiguous().flatten(), counts, mesh=mesh, axis=axis, kind=KIND_BLOCK)
    return torch.cat([part.view(x.shape[0], -1, x.shape[2]) for part in parts], 1)


def take_rows(x: torch.Tensor, shard: Shard, dim: int) -> torch.Tensor:
    """Return this rank's run of ``x``, which has all P rows along ``dim``."""
    start, stop = shard.bounds
    return x.narrow(dim, start, stop - start)
