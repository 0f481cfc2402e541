"""Collectives that torch issues inside a model, seen as what they are.

Tensor parallelism and sharded weights communicate from within a forward, past this package's own collectives.
`guard_collectives` makes a model tell of them as those do: the mesh is dirty as soon as a forward begins, and a lost
or aborted group is a `DataGroupError`, not the model's own fault. A rank that leaves the mesh after a failure makes the
model let go of the groups, and with that cannot use it again. Raises what the model raises.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from .collectives import DataGroupError
from .mesh import Mesh

_GLOO = "gloo/"
"""Stands in every message of gloo's (a source file); it raises plain RuntimeErrors."""


@contextmanager
def torch_collectives(mesh: Mesh) -> Iterator[None]:
    """Enter what communicates over groups of ``mesh`` by itself, and turn a group's failures into `DataGroupError`."""
    mesh.begin_data()
    try:
        yield
    except DataGroupError:
        raise
    except RuntimeError as error:
        if isinstance(error, dist.DistError) or _GLOO in str(error):
            raise DataGroupError(str(error)) from error
        raise


def guard_collectives(model: Any, mesh: Mesh) -> None:
    """Guard the forward of ``model``, whose layers communicate over groups of ``mesh``."""
    inner = model.forward
    mesh.on_leave.append(functools.partial(_let_go, model))

    @functools.wraps(inner)
    def forward(*args: Any, **kwargs: Any) -> Any:
        with torch_collectives(mesh):
            return inner(*args, **kwargs)

    model.forward = forward


def _let_go(model: nn.Module) -> None:
    """Drop torch's references to the groups of the weights of ``model``."""
    for parameter in model.parameters():
        if isinstance(parameter, DTensor):
            mesh = parameter.device_mesh
            for known in (mesh, mesh._get_root_mesh()):
                known._pg_registry.clear()
    for module in model.modules():
        if isinstance(module, FSDPModule):
            for shared in module._get_fsdp_state()._fsdp_param_groups:
                info: Any = shared.mesh_info
                info.shard_process_group = None
