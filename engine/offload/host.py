"""Host copies of which the ranks of one host share one for each distinct part of a component (``--host-copies``).

The first of the ranks that hold the same tensors makes the copy, in shared memory that its device can read on its own
where torch can arrange that (CUDA: registered as pinned by every rank); the others map it and never read those weights.
So the ranks take their copies in two turns with a meeting after each:

1. those that make copies (all but `HostCopies.waits`) take theirs, which fills them, then all call `HostCopies.tell`;
2. the others take theirs, then all meet and call `HostCopies.close`: nobody can open the memory any more.

Ranks that share nothing take memory of their own in either turn. A rank that dies at any time leaves nothing behind,
since the memory has no name (`shared_memory`). Raises `ConfigError` ``start_failed`` when a copy cannot be mapped.
"""

from __future__ import annotations

import logging
import mmap
from collections.abc import Iterable, Mapping

import torch

from ..contract.errors import ConfigError
from ..parallel.collectives import collect_json
from ..parallel.mesh import Mesh
from ..placement import holders, is_copied
from ..placement_modulation import keeps_modulation_apart
from ..rank_options import RankOptions
from ..shared_memory import SharedFile
from .source import OwnMemory, register

logger = logging.getLogger(__name__)


class HostCopies:
    """Where the host copies of one rank lie; a `source.HostMemory`.

    Attributes:
        waits: whether this rank maps copies that another makes, and so takes its copies in the second turn.
    """

    def __init__(self, makers: Mapping[str, int], *, rank: int, device: torch.device) -> None:
        """Share the copies of the components ``makers``, each made by the rank it names; none of the others."""
        self._makers = makers
        self._rank = rank
        self._device = device
        self._own = OwnMemory(device)
        self._file: SharedFile | None = None
        self._made: dict[str, tuple[int, int]] = {}
        self._others: dict[int, tuple[SharedFile, Mapping[str, list[int]]]] = {}
        self.waits = any(maker != rank for maker in makers.values())

    def made_elsewhere(self, component: str) -> bool:
        """Whether another rank makes the copies of ``component``."""
        return self._makers.get(component, self._rank) != self._rank

    def take(self, name: str, size: int) -> tuple[torch.Tensor, bool]:
        """See `source.HostMemory`; ``name`` begins with the component and a slash.

        Raises:
            ConfigError: ``start_failed``.
        """
        component = name.partition("/")[0]
        if component not in self._makers:
            return self._own.take(name, size)
        try:
            if not self.made_elsewhere(component):
                return self._pinned(self._append(name, size)), False
            file, made = self._others[self._makers[component]]
            offset, there = made[name]
            assert there == size, (name, there, size)
            return self._pinned(file.map(offset, size)), True
        except OSError as error:
            raise _cannot_share(str(error)) from error

    def _append(self, name: str, size: int) -> mmap.mmap:
        if self._file is None:
            self._file = SharedFile()
        offset, memory = self._file.append(size)
        self._made[name] = (offset, size)
        return memory

    def tell(self, mesh: Mesh) -> None:
        """Learn where the others' copies are; all ranks call it after the first turn.

        Raises:
            ConfigError: ``start_failed``.
        """
        address = None if self._file is None else self._file.address
        told = collect_json([address, self._made], mesh)
        makers = {maker for maker in self._makers.values() if maker != self._rank}
        try:
            self._others = {maker: (SharedFile.of(tuple(told[maker][0])), told[maker][1]) for maker in makers}
        except OSError as error:
            raise _cannot_share(str(error)) from error

    def close(self) -> None:
        """Close the files; what was taken stays. Called once all ranks have taken their copies."""
        own = [] if self._file is None else [self._file]
        for file in (*own, *(file for file, _ in self._others.values())):
            file.close()
        self._file, self._others = None, {}

    def _pinned(self, memory: mmap.mmap) -> torch.Tensor:
        """Return ``memory`` as [bytes] uint8, registered with the device where that can be done."""
        flat = torch.frombuffer(memory, dtype=torch.uint8)
        if self._device.type == "cuda":
            try:
                return register(flat)
            except RuntimeError as error:
                raise _cannot_share(f"CUDA cannot pin them: {error}") from error
        return flat


def share_host_copies(
    options: RankOptions, components: Iterable[str], *, rank: int, device: torch.device
) -> HostCopies:
    """Return where the host copies of this rank lie, which holds ``components``."""
    makers: dict[str, int] = {}
    for component in components if options.host_copies == "shared" else ():
        group = next((group for group in holders(component, options) if rank in group), ())
        if len(group) > 1:
            makers[component] = group[0]
    if makers and device.type not in ("cpu", "cuda"):
        logger.warning("shared host copies cannot be pinned for %s: --host-copies own is faster there", device.type)
    return HostCopies(makers, rank=rank, device=device)


def read_elsewhere(copies: HostCopies, options: RankOptions, component: str, tensor: str) -> bool:
    """Whether this rank does not read the ``tensor`` of ``component``, since it maps another rank's copy of it."""
    apart = keeps_modulation_apart(
        modulation_tables_mb=options.modulation_tables_mb, shard_weights=options.shard_weights
    )
    return copies.made_elsewhere(component) and is_copied(
        component, tensor, offload=options.offload, modulation_apart=apart
    )


def _cannot_share(reason: str) -> ConfigError:
    return ConfigError(
        "start_failed",
        f"The ranks cannot share the host copies of their weights: {reason}",
        field="host_copies",
        value="shared",
        remedy="Use --host-copies own: each rank then keeps a copy of its own.",
    )
