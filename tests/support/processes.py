"""Looking at processes that may end meanwhile."""

from __future__ import annotations

import psutil


def command_of(process: psutil.Process) -> list[str]:
    """Return the command line of ``process``; nothing of one that has ended, waited for or not."""
    try:
        words: list[str] = process.cmdline()
    except psutil.NoSuchProcess:  # what a zombie raises is one of these
        return []
    return words
