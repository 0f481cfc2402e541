"""Ulysses: two all-to-alls trade rows for heads, so that each rank attends over all rows with some of the heads.

Promise: queries, keys and values go in one exchange; just the used rows and the heads that exist travel, whatever the
numbers divide by (a rank may have no rows, or no heads). Raises `DataGroupError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch

from .collectives import exchange
from .mesh import Mesh

AXIS = "ulysses"
KIND_IN = "ulysses_qkv"
KIND_OUT = "ulysses_out"
Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def rows_to_heads(tensors: Three, *, rows: Sequence[int], heads: Sequence[int], mesh: Mesh) -> Three:
    """Give every rank all rows of its heads.

    Args:
        tensors: query, key, value [B, rows[u], H, D], this rank's used rows, u its Ulysses index.
        rows: used rows of each rank, sum S. heads: heads of each rank, sum H.

    Returns:
        Query, key, value [B, S, heads[u], D], strided views of one buffer.
    """
    batch, mine, _, width = tensors[0].shape
    own = mesh.layout.ulysses_index
    unit = 3 * batch * width  # values of one row of one head
    send = [mine * count * unit for count in heads]
    outgoing = tensors[0].new_empty(sum(send))
    for part, (first, last) in zip(torch.split(outgoing, send), _spans(heads), strict=True):
        # Rows outside, so that what arrives from all ranks joins along them.
        room = part.view(mine, 3, batch, last - first, width)
        for place, tensor in enumerate(tensors):
            room[:, place].copy_(tensor[:, :, first:last].transpose(0, 1))
    receive = [count * heads[own] * unit for count in rows]
    arrived = exchange(outgoing, send=send, receive=receive, mesh=mesh, axis=AXIS, kind=KIND_IN)
    joined = arrived.view(sum(rows), 3, batch, heads[own], width).permute(1, 2, 0, 3, 4)
    return joined[0], joined[1], joined[2]


def heads_to_rows(attended: torch.Tensor, *, rows: Sequence[int], heads: Sequence[int], mesh: Mesh) -> torch.Tensor:
    """Give every rank all heads of its rows: the way back.

    Args:
        attended: [B, S, heads[u], D].

    Returns:
        [B, rows[u], H, D].
    """
    batch, _, _, width = attended.shape
    own = mesh.layout.ulysses_index
    outgoing = attended.transpose(0, 1).contiguous().flatten()  # [S, B, h, D]
    send = [count * batch * heads[own] * width for count in rows]
    receive = [rows[own] * batch * count * width for count in heads]
    arrived = exchange(outgoing, send=send, receive=receive, mesh=mesh, axis=AXIS, kind=KIND_OUT)
    out = attended.new_empty((batch, rows[own], sum(heads), width))
    for part, (first, last) in zip(torch.split(arrived, receive), _spans(heads), strict=True):
        out[:, :, first:last] = part.view(rows[own], batch, last - first, width).transpose(0, 1)
    return out


def _spans(counts: Sequence[int]) -> list[tuple[int, int]]:
    """Return (first, last + 1) of each run."""
    return list(pairwise(accumulate(counts, initial=0)))
