"""What a process holds, from the kernel."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

_T = TypeVar("_T")


def resident_bytes(pid: int | None = None) -> int:
    """Return the resident memory of a process, this one by default."""
    pages = int(Path(f"/proc/{pid or os.getpid()}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def peak_growth(call: Callable[[], _T]) -> tuple[_T, int]:
    """Return what ``call`` returns, and the most memory, bytes, that this process held meanwhile beyond what it had."""
    before = resident_bytes()
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from now
    made = call()
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return made, int(peak.split()[1]) * 1024 - before


def proportional_bytes() -> int:
    """Return the memory of this process, of each page its part: what the processes that share it add up to once."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
