"""The ranks of an engine as one mesh: who this rank is, and the groups it shares with the others.

Two groups over all ranks. *control* (gloo, never times out) carries small CPU tensors: whether the ranks agree. *data*
(the device's own backend, with the operator's timeout) carries the model's tensors; an error inside it poisons it, and
`Mesh.leave_data` and `Mesh.rebuild_data` replace it. With one rank there is no group and no socket.
Raises what torch.distributed raises: a lost peer during set-up is a RuntimeError and ends the rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

NEVER = timedelta(days=3650)


@dataclass(frozen=True)
class Layout:
    """Where a rank stands.

    Attributes:
        rank: 0 … world_size - 1. world_size: ranks of the engine.
        ulysses_degree: ranks among which the packed sequence is split; for now all of them.
    """

    rank: int
    world_size: int
    ulysses_degree: int

    def __post_init__(self) -> None:
        assert self.ulysses_degree == self.world_size, self


class Mesh:
    """The groups of one rank.

    Attributes:
        layout: where this rank stands.
        device: the rank's device, from `open_data` on.
        dirty: whether a data collective may be unfinished on some rank. Whoever knows better (all ranks met, devices
            synchronised) sets it to False.
    """

    def __init__(self, layout: Layout, store: Store) -> None:
        """Meet the other ranks through ``store`` and make the control group."""
        self.layout = layout
        self.device = torch.device("cpu")
        self.dirty = False
        self._data: dist.ProcessGroup | None = None
        self._data_timeout = NEVER
        if layout.world_size > 1:
            dist.init_process_group("gloo", store=store, rank=layout.rank, world_size=layout.world_size, timeout=NEVER)

    def open_data(self, device: torch.device, *, timeout: float) -> None:
        """Make the data group for ``device``; its collectives wait ``timeout`` seconds for a peer. Called together."""
        self.device = device
        self._data_timeout = timedelta(seconds=timeout)
        self.rebuild_data()

    @property
    def backend(self) -> str:
        """The data group's backend: ``gloo`` on CPU, ``nccl`` on CUDA, what torch names elsewhere."""
        return dist.get_default_backend_for_device(self.device)

    @property
    def rebuildable(self) -> bool:
        """Whether a poisoned data group can be replaced in place; otherwise the ranks must restart."""
        return self.backend == "gloo"

    @property
    def data(self) -> dist.ProcessGroup:
        """The data group; only with more than one rank."""
        assert self._data is not None
        return self._data

    def leave_data(self) -> None:
        """Drop out of the data group: with gloo, peers that wait in it get an error at once."""
        if self._data is not None and self.rebuildable:
            group, self._data = self._data, None
            dist.destroy_process_group(group)

    def abort_data(self) -> None:
        """End this rank's unfinished data collectives, from any thread. Nothing to do with gloo: see `leave_data`."""
        if self._data is not None and not self.rebuildable:
            self._data.abort()

    def rebuild_data(self) -> None:
        """Make a new data group; every rank calls it together."""
        self.leave_data()
        self.dirty = False
        if self.layout.world_size > 1:
            self._data = dist.new_group(backend=self.backend, timeout=self._data_timeout)

    def close(self) -> None:
        """Leave all groups."""
        if self.layout.world_size > 1:
            dist.destroy_process_group()
