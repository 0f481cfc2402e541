"""Dividing the transformer's packed sequence among ranks, from outside the model.

`apply_sequence_parallel` hangs hooks on diffusers' transformer and puts `SequenceAttnProcessor` on its blocks; every
rank of the active strategy then calls the transformer with the same, whole inputs and gets the same, whole outputs,
while the model itself sees this rank's rows only. The text refiner runs whole on each rank. The wrapped transformer
takes three more arguments: ``valid_kv_length``, how many rows are used when the sequence is padded at its end;
``condition_video_rows`` and ``condition_audio_rows``, how many leading rows of each modality are conditions, whose
outputs come back as zeros. On one rank without padding nothing changes, bit for bit. Promise: `SequenceParallel.remove`
undoes it all. Raises `ValueError` for a strategy that cannot be used, `DataGroupError` in a forward.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from diffusers.models.transformers.transformer_minimax_h3 import MINIMAX_H3_MODALITY_NUM
from torch import nn

from .attention import SequenceAttnProcessor
from .mesh import Mesh
from .split import Split, gather_rows, take_rows
from .strategy import Shard, Strategy, build_strategy, full_strategy

_BLOCKS = "transformer_blocks."
_MARK = "sequence_parallel"
_EXTRAS = ("valid_kv_length", "condition_video_rows", "condition_audio_rows")
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class SequenceParallel:
    """What `apply_sequence_parallel` did to a transformer: the active strategy, and how to undo it.

    Attributes:
        mesh: the ranks.
        strategy: the active one; decides how the next forward is divided.
        shard: the rows of the forward that runs; None between forwards.
    """

    def __init__(
        self,
        transformer: Any,
        mesh: Mesh,
        *,
        rank_weights: Sequence[float] | None = None,
        weights_axis: str | None = None,
    ) -> None:
        self.mesh = mesh
        self.shard: Shard | None = None
        self._transformer = transformer
        self._rank_weights = rank_weights
        self._weights_axis = weights_axis
        self.strategy = self.build(full_strategy(mesh.layout))
        self._signature = inspect.signature(transformer.forward)
        self._inputs: dict[str, Any] = {}
        self._split: Split | None = None
        self._last_split: Split | None = None
        self._split_key: tuple[Any, ...] = ()
        self._processors = transformer.attn_processors
        transformer.set_attn_processor(
            {
                name: SequenceAttnProcessor(self) if name.startswith(_BLOCKS) else old
                for name, old in self._processors.items()
            }
        )
        self._handles = [
            transformer.register_forward_pre_hook(self._enter, with_kwargs=True),
            transformer.token_refiner.register_forward_hook(self._own_text),
            transformer.register_forward_hook(self._leave),
            transformer.register_forward_hook(self._forget, always_call=True),
        ]
        setattr(transformer, _MARK, self)

    @property
    def shares_weights(self) -> bool:
        """Whether the transformer's weights are sharded, so that its ranks run every block together."""
        return self._weights_axis is not None

    def build(self, name: str) -> Strategy:
        """Return strategy ``name`` of this layout; see `build_strategy`."""
        return build_strategy(name, self.mesh, rank_weights=self._rank_weights)

    @contextmanager
    def using(
        self, name: str, *, ranks: Sequence[int] | None = None, blocks: Mapping[int, str] | None = None
    ) -> Iterator[None]:
        """Let strategy ``name`` decide for the time of the block.

        Args:
            ranks: the ranks that take part; all of the engine's by default.
            blocks: another strategy for single blocks of the transformer, by their number; every rank of both
                strategies takes part.

        Raises:
            ValueError: the strategy cannot be used, or ``ranks`` are too few for it or for the weights.
        """
        strategy = self.build(name)
        inner = {number: self.build(other) for number, other in (blocks or {}).items()}
        for used in (strategy, *inner.values()):
            self._check_ranks(used, ranks)
        before, self.strategy = self.strategy, strategy
        with ExitStack() as stack:
            for number, other in inner.items():
                stack.enter_context(_OtherBlock(self, self._transformer.transformer_blocks[number], other))
            try:
                yield
            finally:
                self.strategy = before

    def _check_ranks(self, strategy: Strategy, ranks: Sequence[int] | None) -> None:
        if ranks is None:
            return
        needed = {f"strategy {strategy.name!r}": strategy.axis, "tensor-parallel weights": "tp"}
        if self._weights_axis is not None:
            needed["sharded weights"] = self._weights_axis
        for what, axis in needed.items():
            members = self.mesh.layout.ranks_along(axis) if axis is not None else (self.mesh.layout.rank,)
            if not set(members) <= set(ranks):
                raise ValueError(f"the ranks {list(members)} run together ({what}); only {sorted(ranks)} take part")

    def remove(self) -> None:
        """Take off all hooks and put the former attention processors back."""
        for handle in self._handles:
            handle.remove()
        self._transformer.set_attn_processor(self._processors)
        delattr(self._transformer, _MARK)

    def _enter(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """Before the transformer's forward: keep the whole inputs, go on with this rank's."""
        used, condition_video, condition_audio = (kwargs.pop(name, None) for name in _EXTRAS)
        bound = self._signature.bind(*args, **kwargs)
        inputs = self._inputs = bound.arguments
        self.shard = shard = self.strategy.shard(inputs["position_ids"].shape[0], used=used)
        self._split = None
        if shard.strategy.axis is not None:
            self._split = self._plan(inputs, shard, condition_video or 0, condition_audio or 0)
            bound.arguments = self._split.own_inputs(inputs)
        return bound.args, bound.kwargs

    def _plan(self, inputs: dict[str, Any], shard: Shard, condition_video: int, condition_audio: int) -> Split:
        """Return the split of this forward; the steps of one run pass the same index tensors and share it."""
        key = (
            *(inputs[name] for name in ("video_indices", "audio_indices", "text_indices")),
            *(shard, condition_video, condition_audio),
        )
        before = self._split_key
        # Tensors compare by identity here: they are not written to between steps.
        same = len(before) == len(key) and all(
            a is b if isinstance(a, torch.Tensor) else a == b for a, b in zip(key, before, strict=True)
        )
        if self._last_split is None or not same:
            self._split_key = key
            self._last_split = Split.plan(
                inputs, shard, condition_video=condition_video, condition_audio=condition_audio
            )
        return self._last_split

    def _own_text(self, _: nn.Module, __: Any, output: torch.Tensor) -> torch.Tensor:
        """After the text refiner: go on with this rank's rows of the text."""
        return output if self._split is None else output.index_select(1, self._split.text.mine)

    def _leave(self, _: nn.Module, __: Any, output: Any) -> Any:
        """After the transformer's forward: give every rank the whole outputs."""
        if self._split is None:
            return output
        whole = self._split.gather_outputs(output[0], output[1], self.mesh)
        return whole if isinstance(output, tuple) else type(output)(*whole)

    def _forget(self, _: nn.Module, __: Any, ___: Any) -> None:
        """After the transformer's forward, failed or not."""
        self.shard = self._split = None
        self._inputs = {}

    def block_arguments(self, strategy: Strategy) -> tuple[Shard, torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """Return the running forward's shard, modulation indices and rotary table under another strategy."""
        assert self.shard is not None
        shard = strategy.shard(self.shard.rows.total, used=self.shard.rows.used)
        positions, tags, times = (
            take_rows(self._inputs[name], shard, 0) for name in ("position_ids", "token_tags", "timestep_indices")
        )
        return shard, times * MINIMAX_H3_MODALITY_NUM + tags, self._transformer.rope(positions)


class _OtherBlock:
    """One block of the transformer that runs under another strategy than the forward around it."""

    def __init__(self, parallel: SequenceParallel, block: nn.Module, strategy: Strategy) -> None:
        self._parallel = parallel
        self._block = block
        self._strategy = strategy
        self._outer: Shard | None = None
        self._signature = inspect.signature(block.forward)

    def __enter__(self) -> None:
        self._handles = [
            self._block.register_forward_pre_hook(self._before, with_kwargs=True),
            self._block.register_forward_hook(self._after),
        ]

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _before(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        bound = self._signature.bind(*args, **kwargs)
        outer = self._outer = self._parallel.shard
        assert outer is not None
        shard, modulation, rotary = self._parallel.block_arguments(self._strategy)
        hidden = gather_rows(bound.arguments["hidden_states"], outer, self._parallel.mesh)
        bound.arguments |= {
            "hidden_states": take_rows(hidden, shard, 1),
            "adaln_indices": modulation,
            "rotary_emb": rotary,
        }
        self._parallel.shard = shard
        return bound.args, bound.kwargs

    def _after(self, _: nn.Module, __: Any, output: torch.Tensor) -> torch.Tensor:
        inner, outer = self._parallel.shard, self._outer
        assert inner is not None
        assert outer is not None
        self._parallel.shard = outer
        return take_rows(gather_rows(output, inner, self._parallel.mesh), outer, 1)


def apply_sequence_parallel(
    transformer: Any,
    mesh: Mesh,
    *,
    rank_weights: Sequence[float] | None = None,
    weights_axis: str | None = None,
) -> SequenceParallel:
    """Wrap ``transformer`` for the ranks of ``mesh`` (one will do); all of them share the sequence from now on.

    Args:
        rank_weights: see `build_strategy`.
        weights_axis: the axis over which the transformer's weights are sharded, whose ranks run every block together;
            None: they are not.
    """
    return SequenceParallel(transformer, mesh, rank_weights=rank_weights, weights_axis=weights_axis)


def sequence_parallel_of(transformer: Any) -> SequenceParallel | None:
    """Return what `apply_sequence_parallel` made of ``transformer``; None when it was not wrapped."""
    return getattr(transformer, _MARK, None)
