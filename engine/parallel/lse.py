"""Attention over one block of keys and values, with what is needed to merge it with other blocks.

`attend_block` returns the block's result and the logarithm of the sum of its exponentials (LSE); `Merge` combines the
blocks of one set of queries in fp32. Promise: the fused kernels that return the LSE are used where torch has one for
the device and type (CPU: flash; CUDA: flash, cuDNN, memory-efficient); elsewhere plain torch in fp32, in pieces of
bounded memory. Inference only. Raises what the kernels raise.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

PIECE_BYTES = 64 * 2**20
"""Scores that the plain implementation holds at once."""
_FUSED_HEAD_DIM = 8
"""The GPU kernels take head dims that are multiples of it."""

Kernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, bool], tuple[torch.Tensor, torch.Tensor]]


def attend_block(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, causal: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend over one block.

    Args:
        query: [B, n, h, D], n > 0. key, value: [B, m, h, D], m > 0. causal: query i sees keys 0 … i (n = m).

    Returns:
        Result [B, n, h, D] in the queries' type and LSE [B, n, h, 1] in fp32.
    """
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    out, lse = _kernel(q, k, v, causal)(q, k, v, causal)
    # The memory-efficient kernel pads its LSE, cuDNN gives it a last dim.
    lse = lse.reshape(*lse.shape[:2], -1)[:, :, : query.shape[1]]
    return out.transpose(1, 2), lse.float().transpose(1, 2)[..., None]


def _kernel(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> Kernel:
    """Return what computes [B, h, n, D] on this device in this type."""
    if q.device.type == "cpu":
        return _flash_cpu
    if q.device.type == "cuda" and q.shape[-1] % _FUSED_HEAD_DIM == 0:
        from torch.backends import cuda

        params = cuda.SDPAParams(q, k, v, None, 0.0, causal, False)
        choices: tuple[tuple[Callable[[cuda.SDPAParams], bool], Kernel], ...] = (
            (cuda.can_use_flash_attention, _flash_cuda),
            (cuda.can_use_cudnn_attention, _cudnn),
            (cuda.can_use_efficient_attention, _efficient),
        )
        for usable, kernel in choices:
            if usable(params):
                return kernel
    return plain_attention


def _flash_cpu(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)
    return out, lse


def _flash_cuda(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)
    return out, lse


def _cudnn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal)
    return out, lse


def _efficient(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, causal)
    return out, lse


def plain_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The reference, in fp32 and in pieces of queries whose scores fit `PIECE_BYTES`.

    Args:
        q: [B, h, n, D]. k, v: [B, h, m, D].

    Returns:
        [B, h, n, D] in the type of ``q``, LSE [B, h, n] in fp32.
    """
    keys, values = k.float().transpose(-1, -2), v.float()
    rows = max(1, PIECE_BYTES // (4 * q.shape[0] * q.shape[1] * k.shape[2]))
    outs, lses = [], []
    for start in range(0, q.shape[2], rows):
        piece = q[:, :, start : start + rows].float()
        scores = piece @ keys / math.sqrt(q.shape[-1])  # [B, h, rows, m]
        if causal:
            later = torch.ones(piece.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(start + 1)
            scores.masked_fill_(later, -math.inf)
        lse = scores.logsumexp(-1)
        outs.append((scores - lse[..., None]).exp() @ values)
        lses.append(lse)
    return torch.cat(outs, 2).to(q.dtype), torch.cat(lses, 2)


class Merge:
    """The blocks of one set of queries, merged as they come."""

    def __init__(self) -> None:
        self._out: torch.Tensor | None = None
        self._lse: torch.Tensor | None = None

    def add(self, out: torch.Tensor, lse: torch.Tensor) -> None:
        """Add a block's result [B, n, h, D] and LSE [B, n, h, 1]."""
        if self._out is None or self._lse is None:
            self._out, self._lse = out.float(), lse
            return
        whole = torch.logaddexp(self._lse, lse)
        self._out = self._out * (self._lse - whole).exp() + out.float() * (lse - whole).exp()
        self._lse = whole

    def result(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the merged [B, n, h, D]; at least one block was added."""
        assert self._out is not None
        return self._out.to(dtype)
