"""Bytes that are alive while code runs, counted at every operation: tensors of any device, the meta device too."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Counts the memory of tensors that operations make inside the block.

    Attributes:
        live, peak: bytes now, and the most. where: the operation of the peak.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = 0
        self.peak = 0
        self.where = ""
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and count what is new."""
        known_before = {_key(x) for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and _key(tensor) not in known_before:
                self._count(tensor, str(func))
        return out

    def _count(self, tensor: torch.Tensor, where: str) -> None:
        if type(tensor) is not torch.Tensor and hasattr(tensor, "__tensor_flatten__"):
            # A divided tensor, or one that still travels, has no memory of its own but its parts'.
            parts = (getattr(tensor, name) for name in tensor.__tensor_flatten__()[0])
            for part in parts:
                if isinstance(part, torch.Tensor):
                    self._count(part, where)
            return
        storage = tensor.untyped_storage()
        if id(storage) in self._known:
            return
        size = storage.nbytes()
        self._known.add(id(storage))
        weakref.finalize(storage, self._release, id(storage), size)
        self.live += size
        if self.live > self.peak:
            self.peak, self.where = self.live, where

    def _release(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size


def _key(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


class FusedAttention(TorchFunctionMode):
    """Attention by the flash kernel on any device, as GPUs have it; the meta device alone would make all scores."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replace torch's choice of a kernel."""
        kwargs = kwargs or {}
        if func is not torch.nn.functional.scaled_dot_product_attention:
            return func(*args, **kwargs)
        named = dict(zip(("query", "key", "value"), args, strict=False)) | kwargs
        query, key, value = named["query"], named["key"], named["value"]
        assert kwargs.get("attn_mask") is None
        if kwargs.get("enable_gqa"):  # the kernel shares keys among heads without copying them
            key, value = (x[:, :1].expand(-1, query.shape[1], -1, -1) for x in (key, value))
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        return kernel(query, key, value, 0.0, bool(kwargs.get("is_causal")), scale=kwargs.get("scale"))[0]
