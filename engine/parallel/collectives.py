"""The collectives that move tensors and JSON between ranks.

Promise: every rank passes the same shapes, since a mismatch ends a gloo process: receivers learn shapes and types from
a JSON announcement first. Nothing is pickled. Raises `DataGroupError` when the data group fails (a peer left, died or
timed out); the group is then poisoned until the mesh rebuilds it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from .mesh import Mesh

_SOURCE = 0


class DataGroupError(RuntimeError):
    """A data collective failed on this rank; another rank most likely knows why."""


@contextmanager
def data_collective(mesh: Mesh, axis: str = "world") -> Iterator[dist.ProcessGroup]:
    """Enter the data group of ``axis``, and turn its failures into `DataGroupError`."""
    mesh.begin_data()
    try:
        yield mesh.group(axis)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise DataGroupError(str(error)) from error


def exchange(
    x: torch.Tensor, *, send: Sequence[int], receive: Sequence[int], mesh: Mesh, axis: str, kind: str
) -> torch.Tensor:
    """Send each rank of ``axis`` its slice of ``x`` and return what they sent, joined in their order: one all-to-all.

    Args:
        x: [sum(send)], contiguous. send: values for each rank. receive: values from each rank; all ranks agree.
        kind: what the bytes count as in the mesh's account.
    """
    out = x.new_empty(sum(receive))
    with data_collective(mesh, axis) as group:
        dist.all_to_all_single(out, x, list(receive), list(send), group=group)
        own = group.rank()
    size = x.element_size()
    mesh.account.moved(kind, sent=(sum(send) - send[own]) * size, received=(sum(receive) - receive[own]) * size)
    return out


def gather_uneven(x: torch.Tensor, counts: Sequence[int], *, mesh: Mesh, axis: str, kind: str) -> list[torch.Tensor]:
    """Return the [counts[i]] values of each rank of ``axis``; this rank's are ``x`` itself, which does not travel."""
    with data_collective(mesh, axis) as group:
        own = group.rank()
    others = [0 if rank == own else count for rank, count in enumerate(counts)]
    send = [0 if rank == own else x.numel() for rank in range(len(counts))]
    # The slices of an all-to-all are separate memory, so the values are repeated, one copy a receiver.
    joined = exchange(x.repeat(len(counts) - 1), send=send, receive=others, mesh=mesh, axis=axis, kind=kind)
    parts = list(torch.split(joined, others))
    parts[own] = x
    return parts


class Transfer:
    """Sends and receptions between neighbours that are under way; `wait` before using or freeing their tensors."""

    def __init__(self, works: Sequence[dist.Work], mesh: Mesh, axis: str) -> None:
        self._works = works
        self._mesh = mesh
        self._axis = axis

    def wait(self) -> None:
        """Return when what was sent may be freed and what was received may be read (on a GPU: by the next kernel)."""
        with data_collective(self._mesh, self._axis):
            for work in self._works:
                work.wait()
        # A finished work keeps its tensor in memory.
        self._works = ()


def start_transfer(sent: torch.Tensor, received: torch.Tensor, *, mesh: Mesh, axis: str, kind: str) -> Transfer:
    """Begin to send ``sent`` to the next rank of ``axis`` and to fill ``received`` from the previous one.

    Returns at once. An empty tensor is not transferred: both ends know its size.
    """
    with data_collective(mesh, axis) as group:
        size, own = group.size(), group.rank()
        operations = [
            dist.P2POp(call, tensor, group=group, group_peer=peer % size)
            for call, tensor, peer in ((dist.isend, sent, own + 1), (dist.irecv, received, own - 1))
            if tensor.numel()
        ]
        works = dist.batch_isend_irecv(operations) if operations else []
    mesh.account.moved(kind, sent=sent.nbytes, received=received.nbytes)
    return Transfer(works, mesh, axis)


def bring_to_first(
    sent: Sequence[torch.Tensor], arriving: Mapping[int, Sequence[torch.Tensor]], *, mesh: Mesh, kind: str
) -> None:
    """Send ``sent`` to rank 0, which passes what it fills with the tensors of each other rank; return when all is here.

    Ranks that send nothing need not call. Tensors are contiguous; both sides agree on their number, types and shapes.
    """
    with data_collective(mesh) as group:
        operations = [dist.P2POp(dist.isend, tensor, group=group, group_peer=_SOURCE) for tensor in sent]
        for rank, tensors in arriving.items():
            operations += [dist.P2POp(dist.irecv, tensor, group=group, group_peer=rank) for tensor in tensors]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
    received = sum(tensor.nbytes for tensors in arriving.values() for tensor in tensors)
    mesh.account.moved(kind, sent=sum(tensor.nbytes for tensor in sent), received=received)


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
