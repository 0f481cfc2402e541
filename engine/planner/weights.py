"""The weights of one rank, tensor by tensor, from configurations and options alone.

Promise: what the ranks hold, since both read the same tables: which components (`stacks_shares.kept_components`), which
halves of the VAEs (`stacks_shares.encodes_media`, `checkpoint.left_out_children`), which part of a layer
(`stacks_shares.Split`), which type (`placement.stored`), and `placement.component_weights` sorts them. Torch-free;
raises nothing: the layout was checked (`config_layout.check_layout`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from ..checkpoint import Checkpoint, left_out_children, needed_components
from ..contract.limits import ModelFacts
from ..contract.requests import STAGES
from ..layout import Layout
from ..placement import ITEM_BYTES, ComponentWeights, Held, component_weights, compute_dtype, is_reduced, stored
from ..placement_modulation import keeps_modulation_apart
from ..rank_options import PARTITIONS, OffloadOptions, ParallelOptions, VaeOptions
from ..stacks import STACKS
from ..stacks_shares import TEXT_ENCODER, TRANSFORMER, Split, TensorPlan, encodes_media, kept_components
from .shapes import component_shapes, is_computed
from .shapes_layers import Shape
from .sizes import Config

_PLANS: Mapping[str, TensorPlan] = {**dict.fromkeys(PARTITIONS, TRANSFORMER), "text_encoder": TEXT_ENCODER}


@dataclass(frozen=True, eq=False)
class ServedModel:
    """What is loaded of a checkpoint; compared by identity.

    Attributes:
        configs: the ``config.json`` of each component with weights, by name.
        left_out: children of a component that no served stage needs.
        facts: see `ModelFacts`.
    """

    configs: Mapping[str, Config]
    left_out: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    facts: ModelFacts = field(default_factory=ModelFacts)

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> ServedModel:
        """Read what was opened for some stages."""
        components = checkpoint.components.items()
        return cls(
            {name: component.config for name, component in components},
            {name: component.left_out for name, component in components},
            checkpoint.facts,
        )

    def transformer(self, *, references: bool) -> str:
        """Return the name of the partition that runs a request; of one alone, that one."""
        wanted, other = PARTITIONS[::-1] if references else PARTITIONS
        return other if wanted not in self.configs and other in self.configs else wanted

    @cached_property
    def shapes(self) -> Mapping[str, Mapping[str, Shape]]:
        """The shapes of all tensors of each component."""
        return {
            name: component_shapes(name, config, left_out=self.left_out.get(name, ()))
            for name, config in self.configs.items()
        }

    @cached_property
    def without_encoders(self) -> ServedModel:
        """The same without the halves of the VAEs that encode, as `Checkpoint.without` leaves it."""
        others = [stage for stage in STAGES if stage != "encode_media"]
        left_out = {name: (*self.left_out.get(name, ()), *left_out_children(name, others)) for name in self.configs}
        less = dataclasses.replace(self, left_out=left_out)
        return dataclasses.replace(
            less, configs={name: self.configs[name] for name in self.configs if less.shapes[name]}
        )


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How an engine would run.

    Attributes:
        parallel, vae, offload: as the ranks are told.
        dtype: compute type, ``bf16`` or ``fp32``.
        accelerator: whether the ranks have devices of their own; on CPUs a VAE decodes one tile at a time.
        stages: those that are served.
    """

    parallel: ParallelOptions
    vae: VaeOptions = field(default_factory=VaeOptions)
    offload: OffloadOptions = field(default_factory=OffloadOptions)
    dtype: str = "bf16"
    accelerator: bool = True
    stages: tuple[str, ...] = STAGES

    def layout(self, rank: int) -> Layout:
        """Return where ``rank`` stands."""
        degrees = self.parallel.ulysses_degree, self.parallel.ring_degree, self.parallel.tp_degree
        return Layout(rank, self.parallel.world_size, *degrees)

    def components(self, model: ServedModel, rank: int) -> tuple[str, ...]:
        """Return the components with weights that ``rank`` holds, or has a part of, of what it loads of ``model``."""
        kept = kept_components(
            needed_components(self.stages),
            rank=rank,
            text_encoder_ranks=self.parallel.text_encoder_tp_degree,
            vae_on_one_rank=self.vae.vae_on_one_rank,
        )
        return tuple(name for name in model.configs if name in kept)

    def tensor_ranks(self, component: str) -> int:
        """Return among how many ranks the layers of ``component`` are divided."""
        degrees = {"text_encoder": self.parallel.text_encoder_tp_degree} | dict.fromkeys(
            PARTITIONS, self.parallel.tp_degree
        )
        return degrees.get(component, 1)

    def shard_ranks(self, component: str) -> int:
        """Return among how many ranks the blocks of ``component`` are shared out."""
        shared = self.parallel.shard_weights and component in PARTITIONS
        return self.parallel.sequence_degree if shared else 1


@dataclass(frozen=True)
class _Share:
    """A rank's part of a component: among how many ranks layers are divided and blocks shared out, and types."""

    divided: int
    shared: int
    dtype: str
    storage: str
    apart: bool


def _share(setup: Setup, component: str) -> _Share:
    return _Share(
        setup.tensor_ranks(component),
        setup.shard_ranks(component),
        setup.dtype,
        setup.offload.block_storage,
        keeps_modulation_apart(
            modulation_tables_mb=setup.offload.modulation_tables_mb, shard_weights=setup.parallel.shard_weights
        ),
    )


def rank_tensors(model: ServedModel, setup: Setup, component: str) -> Mapping[str, Held]:
    """Return what a rank that holds ``component``, or a part of it, holds of each tensor; alike on all those ranks.

    Of a weight in reduced precision, its scales are named after it.
    """
    return _tensors(model, component, _share(setup, component))


def rank_weights(model: ServedModel, setup: Setup, rank: int) -> dict[str, ComponentWeights]:
    """Return the weights of each component that ``rank`` holds; of the VAEs all is outside stacks."""
    loaded = model if encodes_media(rank, media_encode=setup.vae.media_encode) else model.without_encoders
    return {name: _weights(loaded, name, _share(setup, name)) for name in setup.components(loaded, rank)}


def gathered_bytes(model: ServedModel, setup: Setup, component: str) -> int:
    """Return the bytes that gathering takes of a block whose weights are shared out; 0 where none is.

    torch's `fully_shard` holds the largest block's matrices twice: as they arrived from all ranks, and put together.
    """
    share = _share(setup, component)
    if share.shared == 1:
        return 0
    blocks: dict[str, int] = {}
    for name, held in _tensors(model, component, dataclasses.replace(share, shared=1)).items():
        stack = _stack(component, name)
        if stack is not None and len(held.shape) > 1:
            block = f"{stack}.{name[len(stack) + 1 :].partition('.')[0]}"
            padded = -(-held.shape[0] // share.shared) * share.shared * held.bytes // held.shape[0]
            blocks[block] = blocks.get(block, 0) + padded
    return 2 * max(blocks.values())


def unpacked_bytes(model: ServedModel, setup: Setup, component: str) -> int:
    """Return the bytes of the largest weight that is kept in fewer bits, in the compute type; 0 where there is none.

    Such a copy of one layer's weight is there for the time of its product (`models.storage`).
    """
    if setup.offload.block_storage == "full":
        return 0
    item = ITEM_BYTES[setup.dtype]
    tensors = rank_tensors(model, setup, component).items()
    return max(math.prod(held.shape) * item for name, held in tensors if is_reduced(component, name, held.shape))


def held_bytes(tensors: Mapping[str, Held]) -> int:
    """Return the bytes of all ``tensors``."""
    return sum(held.bytes for held in tensors.values())


# A search tries hundreds of configurations, whose shares of a component are few.
@lru_cache(maxsize=128)
def _weights(model: ServedModel, component: str, share: _Share) -> ComponentWeights:
    return component_weights(component, _tensors(model, component, share), modulation_apart=share.apart)


@lru_cache(maxsize=128)
def _tensors(model: ServedModel, component: str, share: _Share) -> Mapping[str, Held]:
    found: dict[str, Held] = {}
    for name, shape in model.shapes[component].items():
        dtype = "fp32" if is_computed(name) else compute_dtype(component, name, share.dtype)
        first, *scales = stored(component, name, _part(component, share, name, shape), dtype, share.storage)
        found[name] = first
        found |= {f"{name}.{number}": scale for number, scale in enumerate(scales)}
    return found


def _part(component: str, share: _Share, name: str, shape: Shape) -> Shape:
    """Return the shape of a rank's part of a tensor; of shares in the order of rows, the longest."""
    plan, stack = _PLANS.get(component), _stack(component, name)
    if plan is None or stack is None:
        return shape
    split = _split(plan, stack, name)
    if split is not None and share.divided > 1:
        shape = _divide(shape, split.dim, share.divided)
    return (-(-shape[0] // share.shared), *shape[1:]) if share.shared > 1 and len(shape) > 1 else shape


def _stack(component: str, name: str) -> str | None:
    """Return the stack that the tensor ``name`` belongs to."""
    return next((stack for stack in STACKS.get(component, ()) if name.startswith(f"{stack}.")), None)


def _split(plan: TensorPlan, stack: str, name: str) -> Split | None:
    """Return how the layer of the tensor ``name`` in ``stack`` is divided."""
    if stack not in plan.stacks:
        return None
    layer = name[len(stack) + 1 :].partition(".")[2].rpartition(".")[0]
    return plan.layers.get(layer)


def _divide(shape: Shape, dim: int, ranks: int) -> Shape:
    """Divide a matrix along ``dim``; a bias has the outputs alone, and is whole where the inputs are divided."""
    if dim >= len(shape):
        return shape
    return (*shape[:dim], shape[dim] // ranks, *shape[dim + 1 :])
