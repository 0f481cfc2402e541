"""Whose weights lie where: tensor-parallel parts and fully sharded blocks, decided before a byte is read.

`WeightDivision` divides one model on the meta device: first the layers of its `TensorPlan`, then the blocks of its
stacks with torch's `fully_shard`, which gathers a block's weights for the time of its forward. It then tells `loading`
which slices this rank reads. Vectors (norms, biases) and all that lies outside the blocks stay whole.
Promise: a rank reads and holds its own slices alone, and what is gathered for a block is the checkpoint's, bit for bit
(on CPUs a result's last bits still depend on where in memory a weight lies). Every rank of the sharding group must run
every block. Raises what `apply_tensor_parallel` raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from ..models.home import local_bytes, plain_parts, rebuilt
from ..models.pieces import Division, Piece
from ..rank_options import PARTITIONS
from ..stacks_shares import TEXT_ENCODER, TRANSFORMER, Split, TensorPlan, text_encoder_ranks
from .mesh import Mesh
from .tensor import apply_tensor_parallel, blocks_of

_SHARD, _TENSOR = "shard", "tensor"


class WeightDivision:
    """The `Division` of one model."""

    def __init__(self, plan: TensorPlan, *, tensor: DeviceMesh | None = None, shard: DeviceMesh | None = None) -> None:
        """Divide by ``plan`` over the 1-D meshes; None where that kind of division is not asked for.

        Given both, they must be axes of one mesh (`weight_meshes`).
        """
        self._plan = plan
        self._tensor = tensor
        self._shard = shard
        self._splits: dict[str, Split] = {}
        self._parameters: dict[str, DTensor] = {}

    def apply(self, model: Any) -> None:
        """See `Division.apply`."""
        if self._tensor is not None:
            self._splits = apply_tensor_parallel(model, self._plan, self._tensor)
        if self._shard is not None:
            _shard_blocks(model, self._plan.stacks, self._shard)
        self._parameters = {name: p for name, p in model.named_parameters() if isinstance(p, DTensor)}

    def piece(self, name: str, shape: Sequence[int]) -> Piece | None:
        """See `Division.piece`."""
        parameter = self._parameters.get(name)
        if parameter is None:
            return None
        piece = Piece.whole(shape)
        split = self._splits.get(name)
        if split is not None:
            assert self._tensor is not None
            part, parts = self._tensor.get_local_rank(), self._tensor.size()
            by_rows = split.dim == 0
            piece = (
                piece.part_of_blocks(part, parts, blocks=split.blocks)
                if by_rows
                else piece.part_of_columns(part, parts)
            )
        if self._shard is not None and _SHARD in (parameter.device_mesh.mesh_dim_names or ()):
            piece = piece.chunk(self._shard.get_local_rank(), self._shard.size())
        return piece

    def wrap(self, name: str, local: torch.Tensor) -> torch.Tensor:
        """See `Division.wrap`."""
        like = self._parameters.get(name)
        if like is None:
            return local
        assert like.to_local().shape == local.shape, (name, like.to_local().shape, local.shape)
        local = local.contiguous()
        # torch would move it to the mesh's device; it may rest on the host, and come to the device in parts.
        empty = DTensor.from_local(
            torch.empty_like(local, device="meta"),
            like.device_mesh,
            like.placements,
            run_check=False,
            shape=like.shape,
            stride=like.stride(),
        )
        return rebuilt(empty, dict.fromkeys((name for name, _ in plain_parts(empty)), local))


def _shard_blocks(model: nn.Module, stacks: tuple[str, ...], mesh: DeviceMesh) -> None:
    for _, block in blocks_of(model, stacks):
        fully_shard(block, mesh=mesh, reshard_after_forward=True, ignored_params=_vectors(block))
    # The model itself holds no shard: it is the root, so that the next block's weights come while one computes.
    inside = {parameter for _, block in blocks_of(model, stacks) for parameter in block.parameters()}
    fully_shard(model, mesh=mesh, ignored_params={p for p in model.parameters() if p not in inside} | _vectors(model))


def _vectors(module: nn.Module) -> set[nn.Parameter]:
    return {parameter for parameter in module.parameters() if parameter.dim() < 2}


def plan_divisions(
    mesh: Mesh, *, served: frozenset[str], text_encoder_degree: int, shard_weights: bool
) -> dict[str, Division]:
    """Return how the components of this rank are divided, by component; those that it holds whole are not named.

    torch keeps the groups inside a divided model, so that the mesh is pinned (on all ranks alike) when there is one:
    after a failure in the middle of a forward the ranks restart.

    Args:
        served: the components that the engine loads, be it on this rank or another; no other is divided.
        text_encoder_degree: ranks among which the text encoder is split; above 1 their group is a team of ``mesh``.
        shard_weights: whether the ranks of the sequence share the weights of the transformers' blocks.
    """
    layout, device = mesh.layout, mesh.device
    divisions: dict[str, Division] = {}
    if served.intersection(PARTITIONS) and (layout.tp_degree > 1 or shard_weights):
        tensor, shard = weight_meshes(
            device,
            tensor=mesh.group("tp") if layout.tp_degree > 1 else None,
            shard=mesh.group("sequence") if shard_weights else None,
        )
        divisions |= {
            name: WeightDivision(TRANSFORMER, tensor=tensor, shard=shard) for name in PARTITIONS if name in served
        }
    team = text_encoder_ranks(text_encoder_degree if "text_encoder" in served else 1)
    mesh.pinned = bool(divisions) or len(team) > 1
    if len(team) > 1 and layout.rank in team:
        tensor, _ = weight_meshes(device, tensor=mesh.team(team), shard=None)
        divisions["text_encoder"] = WeightDivision(TEXT_ENCODER, tensor=tensor)
    return divisions


def weight_meshes(
    device: torch.device, *, tensor: ProcessGroup | None, shard: ProcessGroup | None
) -> tuple[DeviceMesh | None, DeviceMesh | None]:
    """Return torch's 1-D meshes over existing groups, as axes of one mesh when both are given.

    Args:
        tensor: the ranks that share heads, next to each other. shard: the ranks that share blocks, one of each
            ``tensor`` group: in all every rank of the engine.
    """
    if tensor is None or shard is None:
        return (
            None if tensor is None else DeviceMesh.from_group(tensor, device.type, mesh_dim_names=(_TENSOR,)),
            None if shard is None else DeviceMesh.from_group(shard, device.type, mesh_dim_names=(_SHARD,)),
        )
    ranks = torch.arange(shard.size() * tensor.size()).view(shard.size(), tensor.size())
    both = DeviceMesh.from_group([shard, tensor], device.type, mesh=ranks, mesh_dim_names=(_SHARD, _TENSOR))
    return both[_TENSOR], both[_SHARD]


def held_bytes(model: nn.Module) -> int:
    """Return the bytes of weights that this rank holds between forwards."""
    return sum(local_bytes(parameter) for parameter in model.parameters())
