"""Ring attention: keys and values travel from rank to rank while each attends over the block at hand.

Promise: the transfer of the next block is posted before the attention on the current one starts and is awaited after
it; a rank never holds more than two remote blocks; a block holds the used rows of its owner alone, and an empty one is
neither sent nor attended to. Every rank of the ring runs the same steps, whatever it holds. Raises `DataGroupError`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .collectives import start_transfer
from .lse import Merge, attend_block
from .mesh import Mesh

AXIS = "ring"
KIND = "ring_kv"


def ring_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    blocks: Sequence[int],
    mesh: Mesh,
    causal: bool = False,
) -> torch.Tensor:
    """Attend over the rows of all ranks of the ring.

    Args:
        query, key, value: [B, blocks[r], h, D], the used rows of this rank, r its ring index.
        blocks: used rows of each rank, the same on all.
        causal: a row sees those before it and itself.

    Returns:
        [B, blocks[r], h, D].
    """
    size, own = len(blocks), mesh.layout.ring_index
    current = torch.stack((key, value))  # [2, B, blocks[source], h, D]
    merge = Merge()
    for step in range(size):
        source = (own - step) % size
        remote = current.nbytes if step else 0
        last = step == size - 1
        if not last:
            following = _empty_block(current, blocks[(source - 1) % size])
            mesh.account.hold(KIND, following.nbytes)
            transfer = start_transfer(current, following, mesh=mesh, axis=AXIS, kind=KIND)
        if blocks[own] and blocks[source] and query.shape[2] and not (causal and source > own):
            merge.add(*attend_block(query, current[0], current[1], causal=causal and source == own))
        if not last:
            transfer.wait()
            current = following
        mesh.account.release(KIND, remote)
    return merge.result(query.dtype) if query.numel() else torch.zeros_like(query)


def _empty_block(like: torch.Tensor, rows: int) -> torch.Tensor:
    """Return room for a block of ``rows``: [2, B, rows, h, D]."""
    kinds, batch, _, heads, width = like.shape
    return like.new_empty((kinds, batch, rows, heads, width))
