"""Self-attention of the transformer's blocks, under whichever strategy is active: one processor for all.

Promise: without a strategy that divides the rows and without padding it is diffusers' own processor, bit for bit. Else
each rank projects its own rows, used rows alone take part in the attention (padding is neither a key nor a query and
comes out as zeros), and in fp32 the result equals one rank's to 1e-5. Raises `DataGroupError`, and `ValueError` for
causal attention over a padded sequence, where the two would disagree on what a row may see.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.models.transformers.transformer_minimax_h3 import MiniMaxH3AttnProcessor, _apply_rotary_emb

from .mesh import Mesh
from .ring import ring_attention
from .strategy import Shard
from .ulysses import KIND_IN, heads_to_rows, rows_to_heads


class ActiveShard(Protocol):
    """Whoever knows how the rows of the forward that runs are divided."""

    mesh: Mesh
    shard: Shard | None


def sequence_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    shard: Shard,
    mesh: Mesh,
    causal: bool = False,
    backend: Any = None,
) -> torch.Tensor:
    """Attend over the used rows of the whole sequence.

    Args:
        query, key, value: [B, R, H, D], this rank's rows, padding included.
        causal: a row sees those before it and itself. backend: diffusers' name of the kernel for whole sequences.

    Returns:
        [B, R, H, D], this rank's rows of the result; zeros for padding.

    Raises:
        ValueError: ``causal`` with padding.
    """
    if causal and shard.rows.used < shard.rows.total:
        raise ValueError("causal attention cannot be combined with a valid length")
    strategy = shard.strategy
    q, k, v = (x[:, : shard.valid] for x in (query, key, value))
    heads = strategy.heads(q.shape[2])
    if strategy.ulysses_degree > 1:
        q, k, v = rows_to_heads((q, k, v), rows=shard.ulysses_rows, heads=heads, mesh=mesh)
        remote = 2 * k[:, : k.shape[1] - shard.valid].numel() * k.element_size()
        mesh.account.hold(KIND_IN, remote)
    if strategy.ring_degree > 1:
        attended = ring_attention(q, k, v, blocks=shard.ring_blocks, mesh=mesh, causal=causal)
    elif q.numel():
        attended = dispatch_attention_fn(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=causal, backend=backend)
    else:
        attended = torch.zeros_like(q)
    if strategy.ulysses_degree > 1:
        del q, k, v
        mesh.account.release(KIND_IN, remote)
        attended = heads_to_rows(attended, rows=shard.ulysses_rows, heads=heads, mesh=mesh)
    padding = query.shape[1] - shard.valid
    return torch.nn.functional.pad(attended, (0, 0, 0, 0, 0, padding)) if padding else attended


class SequenceAttnProcessor(MiniMaxH3AttnProcessor):  # type: ignore[misc]
    """The attention processor of the blocks of a transformer whose rows may be divided.

    Attributes:
        compiled: whether it is part of a compiled region, which must not ask how the rows are divided: it would be
            compiled anew for each number of used rows.
    """

    compiled = False

    def __init__(self, active: ActiveShard) -> None:
        self._active = active

    def __call__(
        self,
        attn: Any,
        hidden_states: torch.Tensor,
        rotary_emb: tuple[torch.Tensor, torch.Tensor] | None = None,
        attention_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Project, normalise and rotate this rank's rows [B, R, C], attend, project back [B, R, C]."""
        if not self.compiled and (self._active.shard is None or self._active.shard.plain):
            whole: torch.Tensor = super().__call__(attn, hidden_states, rotary_emb, attention_mask)
            return whole
        assert attention_mask is None, "the packed sequence is one document without a mask"
        query, key, value = (torch.unflatten(x, -1, (attn.heads, -1)) for x in _project(attn, hidden_states))
        query, key = attn.norm_q(query), attn.norm_k(key)
        if rotary_emb is not None:
            query, key = _apply_rotary_emb(query, *rotary_emb), _apply_rotary_emb(key, *rotary_emb)
        attended: torch.Tensor = self._attend(query, key, value).flatten(2, 3).type_as(query)
        for layer in attn.to_out:
            attended = layer(attended)
        return attended

    # Collectives and the valid length stay out of compiled regions, which would specialise on them.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        shard = self._active.shard
        assert shard is not None
        return sequence_attention(
            query, key, value, shard=shard, mesh=self._active.mesh, backend=self._attention_backend
        )


def _project(attn: Any, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    if attn.fused_projections:
        query, key, value = attn.to_qkv(hidden_states).chunk(3, dim=-1)
        return query, key, value
    return attn.to_q(hidden_states), attn.to_k(hidden_states), attn.to_v(hidden_states)
