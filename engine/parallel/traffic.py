"""Counting the collectives that torch itself issues inside divided models.

Tensor parallelism and sharded weights communicate from within a forward, where no code of this package is called.
`TorchTraffic` watches torch's dispatcher and enters what passes there into an `Account`: ``tensor_sum`` and
``tensor_gather`` of tensor parallelism, ``weights`` of sharded weights. Watching costs time on every operation, so that
it is done where somebody asks for the numbers. Promise: bytes are read off the tensors and groups that torch hands to
the backend. Only models that are not compiled can be watched. Raises nothing of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._C._distributed_c10d import _resolve_process_group
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from .accounting import Account, gather_bytes, sum_bytes

_FUNCTIONAL, _PLAIN = torch.ops._c10d_functional, torch.ops.c10d


class TorchTraffic(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While this context is entered, torch's collectives of this thread are counted."""

    def __init__(self, account: Account) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._account = account

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run ``func``, and count it when it is a collective."""
        if any(issubclass(kind, DTensor) for kind in types):
            # The operations that it stands for come by afterwards.
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        operation = getattr(func, "overloadpacket", None)
        if operation is _FUNCTIONAL.all_reduce:
            summed, _, group = args
            self._count("tensor_sum", sum_bytes(summed.nbytes, _resolve_process_group(group).size()))
        elif operation is _FUNCTIONAL.all_gather_into_tensor:
            part, ranks, _ = args
            self._count("tensor_gather", gather_bytes(part.nbytes, ranks))
        elif operation is _PLAIN._allgather_base_:
            whole, part = args[:2]
            self._count("weights", gather_bytes(part.nbytes, whole.numel() // part.numel()))
        return result

    def _count(self, kind: str, size: int) -> None:
        self._account.moved(kind, sent=size, received=size)
