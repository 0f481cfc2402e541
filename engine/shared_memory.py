"""Memory that processes of one host share: a file without a name, which the kernel frees with its last user.

It counts as memory of the host (and of its container) whatever the size of ``/dev/shm`` is, which in containers is
64 MB and elsewhere often half of the memory. A process that dies leaves nothing behind. Others of the same user open
the file by the process that made it, as long as that keeps it open. Raises `OSError`. Torch-free.
"""

from __future__ import annotations

import mmap
import os


class SharedFile:
    """Parts of a nameless file in memory; a part stays mapped for as long as anything refers to it."""

    def __init__(self, descriptor: int | None = None) -> None:
        """Make a new one, or take over one that is open."""
        if descriptor is None:
            descriptor = os.memfd_create("h3-engine", os.MFD_CLOEXEC)
            os.fchmod(descriptor, 0o600)
        self._descriptor = descriptor

    @classmethod
    def of(cls, address: tuple[int, int]) -> SharedFile:
        """Open the file that another process has at this `address`."""
        process, descriptor = address
        return cls(os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC))

    @property
    def address(self) -> tuple[int, int]:
        """Where other processes find it: this process and its descriptor."""
        return os.getpid(), self._descriptor

    def append(self, size: int) -> tuple[int, mmap.mmap]:
        """Return a new part of ``size`` zeroed bytes (1 or more) and its offset, a whole number of pages."""
        offset = os.fstat(self._descriptor).st_size
        os.ftruncate(self._descriptor, offset + -(-size // mmap.PAGESIZE) * mmap.PAGESIZE)
        return offset, self.map(offset, size)

    def map(self, offset: int, size: int) -> mmap.mmap:
        """Return the part of ``size`` bytes at ``offset``."""
        return mmap.mmap(self._descriptor, size, offset=offset)

    def close(self) -> None:
        """Close the file: nobody can open it by this process any more; what is mapped stays."""
        os.close(self._descriptor)


def why_not_shared() -> str | None:
    """Return why processes of this host cannot share memory; None when they can."""
    try:
        file = SharedFile()
        try:
            SharedFile.of(file.address).close()
        finally:
            file.close()
    except (OSError, AttributeError) as error:  # a kernel or a Python without such files, a /proc that is closed
        return str(error)
    return None
