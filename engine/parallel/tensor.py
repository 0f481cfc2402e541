"""Tensor parallelism: which linear layers are divided among ranks, and how.

A plan (`stacks_shares`, which the planner reads too) names the layers of one repeated block. torch's
`parallelize_module` does the communication.

Promise: in fp32 the result equals one rank's to 1e-5 (sums in another order). Raises `ConfigError` for layers that the
ranks cannot share evenly and whose size no ``config.json`` tells; the others were checked by the configuration.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from ..contract.errors import ConfigError
from ..stacks_shares import Split, TensorPlan


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
        parallelize_module(block, mesh, {name: _style(split) for name, split in found.items()}, src_data_rank=None)
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


def _style(split: Split) -> ParallelStyle:
    """Return torch's style. Blocks make no difference to torch: only to which rows a rank holds."""
    if split.dim == 1:
        return RowwiseParallel()
    return ColwiseParallel(output_layouts=Replicate()) if split.gather else ColwiseParallel()


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
