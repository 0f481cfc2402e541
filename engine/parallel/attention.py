"""Ulysses attention as a processor on diffusers' MiniMax-H3 transformer.

Each rank holds a slice of the packed sequence's rows and all heads; two all-to-alls trade rows for heads, so that each
rank attends over the whole sequence with some of the heads. Any length and any head count: rows are padded at the tail
of the sequence (`SequenceShard`) and cut off before attention, heads are padded with zeros for the exchange alone.
Promise: in fp32 the result equals one rank's to 1e-5. Raises `DataGroupError`.
"""

from __future__ import annotations

from typing import Any

import torch
from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.models.transformers.transformer_minimax_h3 import _apply_rotary_emb
from torch.nn.functional import pad

from .collectives import all_to_all
from .mesh import Mesh


class SequenceShard:
    """How the current forward's packed sequence is divided among the ranks.

    Attributes:
        length: rows of the whole sequence in the forward that runs, S.
    """

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.length = 0

    @property
    def rows(self) -> int:
        """Rows that each rank holds, R: the padded length divided by the ranks."""
        return -(-self.length // self.mesh.layout.ulysses_degree)

    def take(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        """Return this rank's R rows of ``x``, which has S rows along ``dim``; rows past the end are zeros."""
        assert x.shape[dim] == self.length, (tuple(x.shape), dim, self.length)
        start = self.mesh.layout.rank * self.rows
        count = min(max(self.length - start, 0), self.rows)
        mine = x.narrow(dim, min(start, self.length), count)
        if count == self.rows:
            return mine
        shape = list(x.shape)
        shape[dim] = self.rows - count
        return torch.cat([mine, x.new_zeros(shape)], dim)


def ulysses_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, shard: SequenceShard
) -> torch.Tensor:
    """Attend over the whole sequence.

    Args:
        query, key, value: [B, R, H, D], this rank's rows.

    Returns:
        [B, R, H, D], this rank's rows of the result.
    """
    heads, valid = query.shape[2], shard.length
    # [B, R, H, D] x3 -> [3, B, R, H, D]: one exchange for all three.
    mine = torch.stack((query, key, value))
    q, k, v = _rows_to_heads(mine, shard.mesh)[:, :, :valid]  # each [B, S, h, D]
    attended = dispatch_attention_fn(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False)
    tail = shard.rows * shard.mesh.layout.ulysses_degree - valid
    return _heads_to_rows(pad(attended, (0, 0, 0, 0, 0, tail)), shard.mesh)[:, :, :heads]


def _rows_to_heads(x: torch.Tensor, mesh: Mesh) -> torch.Tensor:
    """[3, B, R, H, D] -> [3, B, U*R, ceil(H/U), D]: all rows of this rank's heads."""
    degree = mesh.layout.ulysses_degree
    x = pad(x, (0, 0, 0, -x.shape[3] % degree))
    parts = torch.unflatten(x, 3, (degree, -1)).permute(3, 0, 1, 2, 4, 5).contiguous()  # [U, 3, B, R, h, D]
    return all_to_all(parts, mesh).permute(1, 2, 0, 3, 4, 5).flatten(2, 3)


def _heads_to_rows(x: torch.Tensor, mesh: Mesh) -> torch.Tensor:
    """[B, U*R, h, D] -> [B, R, U*h, D]: all heads of this rank's rows."""
    parts = torch.unflatten(x, 1, (mesh.layout.ulysses_degree, -1)).transpose(0, 1).contiguous()  # [U, B, R, h, D]
    return all_to_all(parts, mesh).permute(1, 2, 0, 3, 4).flatten(2, 3)


class UlyssesAttnProcessor:
    """The attention processor of a block whose rows are divided among ranks."""

    def __init__(self, shard: SequenceShard) -> None:
        self._shard = shard

    def __call__(
        self,
        attn: Any,
        hidden_states: torch.Tensor,
        rotary_emb: tuple[torch.Tensor, torch.Tensor] | None = None,
        attention_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Project, normalise and rotate this rank's rows [B, R, C], attend over all, project back [B, R, C]."""
        assert attention_mask is None, "the packed sequence is one document without a mask"
        heads = (attn.heads, -1)
        query = attn.norm_q(attn.to_q(hidden_states).unflatten(-1, heads))
        key = attn.norm_k(attn.to_k(hidden_states).unflatten(-1, heads))
        value = attn.to_v(hidden_states).unflatten(-1, heads)
        if rotary_emb is not None:
            query, key = _apply_rotary_emb(query, *rotary_emb), _apply_rotary_emb(key, *rotary_emb)
        attended = ulysses_attention(query, key, value, shard=self._shard).flatten(2, 3).type_as(query)
        for layer in attn.to_out:
            attended = layer(attended)
        return attended
