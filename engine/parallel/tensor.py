"""Tensor parallelism: which linear layers are divided among ranks, and how.

A plan names the layers of one repeated block. Attention's projections are divided by heads, the feed-forward by inner
channels: column-wise in, row-wise out, one all-reduce each. The AdaLN projections (two fifths of the released
transformer) are divided too: their output, one small table of modulation rows per step, is gathered. Norms, embeddings,
patch projections, heads and the vision tower stay whole: together a few percent. The text refiner's blocks are divided
as the others are; every rank of the axis sees the same text. torch's `parallelize_module` does the communication.

Promise: in fp32 the result equals one rank's to 1e-5 (sums in another order). Raises `ConfigError` for layers that the
ranks cannot share evenly and whose size no ``config.json`` tells; the others were checked by the configuration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from ..contract.errors import ConfigError


@dataclass(frozen=True)
class Split:
    """How one linear layer is divided.

    Attributes:
        dim: of the weight; 0 divides what comes out, 1 what goes in (outputs are then summed over ranks).
        blocks: equal projections that lie behind each other along dim 0; each is divided by itself.
        gather: whether every rank needs the whole output.
    """

    dim: int
    blocks: int = 1
    gather: bool = False

    def style(self) -> ParallelStyle:
        """torch's style for it. Blocks make no difference to torch: only to which rows a rank holds."""
        if self.dim == 1:
            return RowwiseParallel()
        return ColwiseParallel(output_layouts=Replicate()) if self.gather else ColwiseParallel()


_OUT, _IN = Split(0), Split(1)


@dataclass(frozen=True)
class TensorPlan:
    """The plan of one model.

    Attributes:
        stacks: names of the lists of blocks that are divided.
        layers: the layers of a block, by their name in it. A block may lack some.
        attention: the name of a block's attention, whose ``heads`` are then a rank's own; None where the
            library derives them from the shapes.
        option: the option that sets the number of ranks.
    """

    stacks: tuple[str, ...]
    layers: Mapping[str, Split]
    attention: str | None = None
    option: str = "tp_degree"


TRANSFORMER = TensorPlan(
    stacks=("token_refiner.refiner_blocks", "transformer_blocks"),
    layers={
        "attn.to_q": _OUT,
        "attn.to_k": _OUT,
        "attn.to_v": _OUT,
        "attn.to_out.0": _IN,
        # SwiGLU: values and gates in one layer, paired by index.
        "ff.net.0.proj": Split(0, blocks=2),
        "ff.net.2": _IN,
        "adaln_proj.linear": Split(0, gather=True),
    },
    attention="attn",
)
TEXT_ENCODER = TensorPlan(
    stacks=("language_model.layers",),
    layers={
        "self_attn.q_proj": _OUT,
        "self_attn.k_proj": _OUT,
        "self_attn.v_proj": _OUT,
        "self_attn.o_proj": _IN,
        "mlp.gate_proj": _OUT,
        "mlp.up_proj": _OUT,
        "mlp.down_proj": _IN,
    },
    option="text_encoder_tp_degree",
)


def apply_tensor_parallel(model: Any, plan: TensorPlan, mesh: DeviceMesh) -> dict[str, Split]:
    """Divide the layers of ``model``, whose weights are on the meta device, among the ranks of the 1-D ``mesh``.

    Returns:
        The split of each parameter that is now divided (a DTensor), by its name in the model.

    Raises:
        ConfigError: ``config_conflict`` for a layer that cannot be divided evenly.
    """
    divided: dict[str, Split] = {}
    for prefix, block in blocks_of(model, plan.stacks):
        found = {name: split for name, split in plan.layers.items() if _has(block, name)}
        for name, split in found.items():
            _check(plan.option, f"{prefix}.{name}", block.get_submodule(name), split, mesh.size())
        # Each rank fills its own part from the checkpoint: nothing is sent.
        parallelize_module(block, mesh, {name: split.style() for name, split in found.items()}, src_data_rank=None)
        for name, split in found.items():
            divided |= {f"{prefix}.{name}.{p}": split for p, _ in block.get_submodule(name).named_parameters()}
        if plan.attention is not None:
            attention: Any = block.get_submodule(plan.attention)
            assert attention.heads % mesh.size() == 0, "the configuration was checked"
            attention.heads //= mesh.size()
    return divided


def blocks_of(model: nn.Module, stacks: tuple[str, ...]) -> Iterator[tuple[str, nn.Module]]:
    """Yield the blocks of the named lists with their names."""
    for stack in stacks:
        for name, block in model.get_submodule(stack).named_children():
            yield f"{stack}.{name}", block


def _check(field: str, name: str, layer: Any, split: Split, degree: int) -> None:
    size = layer.weight.shape[split.dim]
    if size % (degree * split.blocks):
        raise ConfigError(
            "config_conflict",
            f"{name} of this checkpoint has {size} channels, which {degree} ranks cannot share evenly.",
            field=field,
            value=degree,
            remedy=f"Use a lower --{field.replace('_', '-')}.",
        )


def _has(block: nn.Module, name: str) -> bool:
    try:
        block.get_submodule(name)
    except AttributeError:
        return False
    return True
