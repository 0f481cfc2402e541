"""The collectives that move tensors and JSON between ranks.

Promise: every rank passes the same shapes, since a mismatch ends a gloo process: receivers learn shapes and types from
a JSON announcement first. Nothing is pickled. Raises `DataGroupError` when the data group fails (a peer left, died or
timed out); the group is then poisoned until the mesh rebuilds it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from .mesh import Mesh

_SOURCE = 0


class DataGroupError(RuntimeError):
    """A data collective failed on this rank; another rank most likely knows why."""


@contextmanager
def data_collective(mesh: Mesh) -> Iterator[dist.ProcessGroup]:
    """Enter the data group, and turn its failures into `DataGroupError`."""
    mesh.dirty = True
    try:
        yield mesh.data
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise DataGroupError(str(error)) from error


def all_to_all(x: torch.Tensor, mesh: Mesh) -> torch.Tensor:
    """Exchange the slices of ``x`` along dim 0 (one per rank, equal shapes); slice r of the result is rank r's."""
    out = torch.empty_like(x)
    with data_collective(mesh) as group:
        dist.all_to_all_single(out, x, group=group)
    return out


def all_gather(x: torch.Tensor, mesh: Mesh) -> torch.Tensor:
    """Return [world_size, *x.shape]: every rank's ``x``, in rank order."""
    out = x.new_empty((mesh.layout.world_size, *x.shape))
    with data_collective(mesh) as group:
        # gloo joins along dim 0 only.
        dist.all_gather_single(out.flatten(0, 1), x, group=group)
    return out


def share_json(value: Any, mesh: Mesh) -> Any:
    """Return rank 0's ``value`` on every rank, as JSON over the control group."""
    if mesh.layout.world_size == 1:
        return value
    sender = mesh.layout.rank == _SOURCE
    body = json.dumps(value).encode() if sender else b""
    length = torch.tensor([len(body)])
    dist.broadcast(length, src=_SOURCE)
    data = _to_bytes(body, int(length))
    dist.broadcast(data, src=_SOURCE)
    return json.loads(_from_bytes(data))


def collect_json(value: Any, mesh: Mesh) -> list[Any]:
    """Return every rank's ``value``, in rank order, as JSON over the control group."""
    if mesh.layout.world_size == 1:
        return [value]
    body = json.dumps(value).encode()
    length = torch.tensor([len(body)])
    dist.all_reduce(length, op=dist.ReduceOp.MAX)
    # Spaces pad JSON without changing it.
    mine = _to_bytes(body, int(length))
    rows = [torch.empty_like(mine) for _ in range(mesh.layout.world_size)]
    dist.all_gather(rows, mine)
    return [json.loads(_from_bytes(row)) for row in rows]


def share_tensors(tensors: Mapping[str, torch.Tensor] | None, mesh: Mesh) -> dict[str, torch.Tensor]:
    """Return rank 0's ``tensors`` on every rank's device; the other ranks pass None."""
    device = mesh.device
    sender = mesh.layout.rank == _SOURCE
    assert sender == (tensors is not None), "rank 0 alone brings the tensors"
    given = {name: tensor.to(device).contiguous() for name, tensor in (tensors or {}).items()}
    if mesh.layout.world_size == 1:
        return given
    table = share_json([[n, str(t.dtype).removeprefix("torch."), list(t.shape)] for n, t in given.items()], mesh)
    for name, dtype, shape in table:
        tensor = given[name] if sender else torch.empty(shape, dtype=getattr(torch, dtype), device=device)
        with data_collective(mesh) as group:
            dist.broadcast(tensor, src=_SOURCE, group=group)
        given[name] = tensor
    return given


def _to_bytes(body: bytes, length: int) -> torch.Tensor:
    """[length] uint8 on the CPU."""
    return torch.frombuffer(bytearray(body.ljust(length)), dtype=torch.uint8)


def _from_bytes(data: torch.Tensor) -> bytes:
    return data.numpy().tobytes()
