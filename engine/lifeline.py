"""A child process that must not outlive the process that started it. Linux only; standard library alone."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ``parent`` dies: no thread of a stopped process would see it.

    Raises:
        OSError: the kernel refuses. ProcessLookupError: the parent is gone already.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    if os.getppid() != parent:
        raise ProcessLookupError(f"the parent (pid {parent}) is gone")
