"""The ranks of an engine as one mesh: who this rank is, and the groups it shares with the others.

One *control* group over all ranks (gloo, never times out) carries small CPU tensors: whether the ranks agree. A *data*
group for each axis of the layout (the device's own backend, with the operator's timeout) carries the model's tensors;
an error inside one poisons them all, and `Mesh.leave_data` and `Mesh.rebuild_data` replace them together. Axes that
hold the same ranks share a group; an axis of one rank has none. With one rank there is no group and no socket.
Raises what torch.distributed raises: a lost peer during set-up is a RuntimeError and ends the rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from .accounting import Account
from .layout import AXES, Layout

NEVER = timedelta(days=3650)


class Mesh:
    """The groups of one rank.

    Attributes:
        layout: where this rank stands.
        device: the rank's device, from `open_data` on.
        dirty: whether a data collective may be unfinished on some rank. Whoever knows better (all ranks met, devices
            synchronised) sets it to False.
        quiet: whether no rank enters a data collective before all ranks have met again, so that a rank that fails
            keeps nobody waiting in one. Whoever knows what follows sets it, on all ranks alike.
        teams: ranks that share a data group besides those of the axes.
        account: what the data collectives of the transformer moved.
        pinned: whether something (weights spread over ranks) holds on to the data groups as they are, so that they
            cannot be replaced in place.
        on_leave: called before the data groups are left: whoever holds on to them must let go.
    """

    def __init__(self, layout: Layout, store: Store) -> None:
        """Meet the other ranks through ``store`` and make the control group."""
        self.layout = layout
        self.device = torch.device("cpu")
        self.dirty = False
        self.quiet = False
        self.account = Account()
        self.pinned = False
        self.on_leave: list[Callable[[], None]] = []
        self._groups: dict[tuple[int, ...], dist.ProcessGroup] = {}
        self._data_timeout = NEVER
        self._aborted = False
        self.teams: tuple[tuple[int, ...], ...] = ()
        if layout.world_size > 1:
            dist.init_process_group("gloo", store=store, rank=layout.rank, world_size=layout.world_size, timeout=NEVER)

    def open_data(self, device: torch.device, *, timeout: float, teams: Iterable[tuple[int, ...]] = ()) -> None:
        """Make the data groups for ``device``; their collectives wait ``timeout`` seconds for a peer. Called together.

        Args:
            teams: ranks that need a group besides those of the axes; the same on all ranks.
        """
        self.device = device
        self.teams = tuple(teams)
        self._data_timeout = timedelta(seconds=timeout)
        self.rebuild_data()

    @property
    def backend(self) -> str:
        """The data groups' backend: ``gloo`` on CPU, ``nccl`` on CUDA, what torch names elsewhere."""
        return dist.get_default_backend_for_device(self.device)

    @property
    def rebuildable(self) -> bool:
        """Whether poisoned data groups can be replaced in place; otherwise the ranks must restart."""
        return self.backend == "gloo" and not self.pinned

    def group(self, axis: str) -> dist.ProcessGroup:
        """Return the data group of this rank's ``axis`` (one of `AXES`), which has more than one rank.

        Ask anew for each use: a group that was replaced is of no use.
        """
        return self._groups[self.layout.ranks_along(axis)]

    def team(self, ranks: tuple[int, ...]) -> dist.ProcessGroup:
        """Return the data group of one of the ``teams``, which this rank is in and which has more than one rank."""
        return self._groups[ranks]

    def begin_data(self) -> None:
        """Note that this rank enters a data collective."""
        assert not self.quiet, "no data collective was to come before the ranks meet again"
        self.dirty = True

    def end_data(self) -> None:
        """Note that this rank's data collectives are done and that none comes before the ranks meet again.

        Called on all ranks alike; returns when nothing is left to do on this rank's device.
        """
        self.wait_for_device()
        self.dirty, self.quiet = False, True

    def wait_for_device(self) -> None:
        """Return when nothing is left to do on this rank's device."""
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    @property
    def in_data(self) -> bool:
        """Whether this rank's data groups are of use: not after `leave_data` or `abort_data`."""
        return self.layout.world_size == 1 or (bool(self._groups) and not self._aborted)

    def leave_data(self) -> None:
        """Drop out of the data groups: with gloo, peers that wait in one get an error at once."""
        if self.backend == "gloo":
            for let_go in self.on_leave:
                let_go()
            # gloo hangs up on the peers when nobody refers to a group any more, this loop included.
            while self._groups:
                dist.destroy_process_group(self._groups.popitem()[1])

    def abort_data(self) -> None:
        """End this rank's unfinished data collectives, from any thread. Nothing to do with gloo: see `leave_data`."""
        if self.backend != "gloo":
            self._aborted = True
            for group in tuple(self._groups.values()):
                group.abort()

    def rebuild_data(self) -> None:
        """Make new data groups; every rank calls it together."""
        self.leave_data()
        self.dirty = self._aborted = False
        # Whatever a failed collective held is gone with its groups.
        self.account.reset()
        for ranks in self._memberships():
            # Ranks outside a group must call too, and get a placeholder.
            group = dist.new_group(list(ranks), backend=self.backend, timeout=self._data_timeout)
            if self.layout.rank in ranks:
                self._groups[ranks] = group
                if self.backend != "gloo":
                    # NCCL connects a group at its first call, which all must make; a ring's transfers may skip ranks.
                    dist.all_reduce(torch.zeros(1, device=self.device), group=group)

    def _memberships(self) -> list[tuple[int, ...]]:
        """Return the ranks of every group of more than one rank, in an order that is the same on all ranks."""
        layout = self.layout
        places = [Layout(rank, layout.world_size, *layout.degrees) for rank in range(layout.world_size)]
        found = {place.ranks_along(axis): None for axis in AXES for place in places}
        found |= dict.fromkeys(self.teams)
        return [ranks for ranks in found if len(ranks) > 1]

    def close(self) -> None:
        """Leave all groups."""
        if self.layout.world_size > 1:
            dist.destroy_process_group()
