"""Starting programs that heed Ctrl-C, whatever this process inherited."""

from __future__ import annotations

import signal


def heed_interrupts() -> None:
    """Undo an ignored SIGINT, which what a script runs in the background inherits; for ``preexec_fn``."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
