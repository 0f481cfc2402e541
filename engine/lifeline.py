"""How a process of the engine ends: with the one that started it, or by itself, at once.

Linux only; standard library alone. `die_with` raises OSError when the kernel will not have it.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
from typing import NoReturn

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


def leave(status: int) -> NoReturn:
    """End this process with ``status``, its log written, without the interpreter's own end. Clean up before.

    That end walks all that torch and diffusers made, several times: more than a second of a core in a rank, ten and
    more on a busy machine, while the server waits. After a collective that broke it may never come at all. The kernel
    takes back memory, sockets and devices either way.
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)
