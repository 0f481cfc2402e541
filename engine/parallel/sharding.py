"""Dividing the transformer's packed sequence among ranks, from outside the model.

The map of what to split and gather where is diffusers' own table on the model (``_cp_plan``); this module hangs plain
torch hooks on the modules that it names and the Ulysses processor on the block stack. The text refiner is left alone:
each rank runs it on the whole text, exactly as one rank does. `apply_sequence_parallel` and
`SequenceParallel.remove` are a pair. Raises `ValueError` when the table is not the kind that this code reads.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from diffusers.models._modeling_parallel import ContextParallelInput, ContextParallelOutput
from torch import nn
from torch.utils.hooks import RemovableHandle

from .attention import SequenceShard, UlyssesAttnProcessor
from .collectives import all_gather
from .mesh import Mesh

_BLOCKS = "transformer_blocks."
_LENGTH_SOURCE = "rope"
"""The module that sees the whole sequence first in every forward: its output's length is the sequence's."""


class SequenceParallel:
    """What `apply_sequence_parallel` did to a transformer, and how to undo it."""

    def __init__(self, transformer: Any, handles: list[RemovableHandle], processors: dict[str, Any]) -> None:
        self._transformer = transformer
        self._handles = handles
        self._processors = processors

    def remove(self) -> None:
        """Take off all hooks and put the former attention processors back."""
        for handle in self._handles:
            handle.remove()
        self._transformer.set_attn_processor(self._processors)


def apply_sequence_parallel(transformer: Any, mesh: Mesh) -> SequenceParallel:
    """Divide ``transformer``'s sequence among the ranks of ``mesh`` (more than one).

    Every rank then calls the transformer with the same, whole inputs and gets the same, whole outputs.
    """
    assert mesh.layout.ulysses_degree > 1
    shard = SequenceShard(mesh)
    before = transformer.attn_processors
    transformer.set_attn_processor(
        {name: UlyssesAttnProcessor(shard) if name.startswith(_BLOCKS) else old for name, old in before.items()}
    )
    handles = [
        handle
        for pattern, entry in transformer._cp_plan.items()
        for name, module in _modules(transformer, pattern)
        for handle in _hook(name, module, entry, shard)
    ]
    return SequenceParallel(transformer, handles, before)


def _modules(root: nn.Module, pattern: str) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules that ``pattern`` names; a last part ``*`` means all children."""
    parent, _, last = pattern.rpartition(".")
    if last == "*":
        for name, child in root.get_submodule(parent).named_children():
            yield f"{parent}.{name}", child
    else:
        yield pattern, root.get_submodule(pattern)


def _hook(name: str, module: nn.Module, entry: Any, shard: SequenceShard) -> Iterator[RemovableHandle]:
    if isinstance(entry, ContextParallelOutput):
        yield module.register_forward_hook(_gather_output(entry, shard))
        return
    outputs = {key: split for key, split in entry.items() if split.split_output}
    inputs = {key: split for key, split in entry.items() if not split.split_output}
    if not all(isinstance(split, ContextParallelInput) for split in entry.values()):
        raise ValueError(f"the transformer's plan for {name} is of an unknown kind: {entry}")
    if inputs:
        yield module.register_forward_pre_hook(_split_inputs(module, inputs, shard), with_kwargs=True)
    if outputs:
        yield module.register_forward_hook(_split_outputs(outputs, shard, sets_length=name == _LENGTH_SOURCE))


def _split_inputs(
    module: nn.Module, plan: dict[str, ContextParallelInput], shard: SequenceShard
) -> Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]:
    signature = inspect.signature(module.forward)

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        bound = signature.bind(*args, **kwargs)
        for name, split in plan.items():
            bound.arguments[name] = _split(bound.arguments[name], split, shard)
        return bound.args, bound.kwargs

    return hook


def _split_outputs(
    plan: dict[int, ContextParallelInput], shard: SequenceShard, *, sets_length: bool
) -> Callable[..., tuple[torch.Tensor, ...]]:
    def hook(_: nn.Module, __: Any, output: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        if sets_length:
            first, split = next(iter(plan.items()))
            shard.length = output[first].shape[split.split_dim]
        return tuple(_split(x, plan[i], shard) if i in plan else x for i, x in enumerate(output))

    return hook


def _split(x: torch.Tensor, split: ContextParallelInput, shard: SequenceShard) -> torch.Tensor:
    assert x.dim() == split.expected_dims, (tuple(x.shape), split)
    return shard.take(x, split.split_dim)


def _gather_output(plan: ContextParallelOutput, shard: SequenceShard) -> Callable[..., torch.Tensor]:
    def hook(_: nn.Module, __: Any, output: torch.Tensor) -> torch.Tensor:
        # [B, R, C] of each rank -> [B, U*R, C] -> [B, S, C]
        dim = plan.gather_dim
        whole = torch.cat(all_gather(output.contiguous(), shard.mesh).unbind(0), dim)
        return whole.narrow(dim, 0, shard.length)

    return hook
