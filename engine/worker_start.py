"""How a rank begins (``python -m engine.worker_start``, started by the fleet): it imports `worker`, runs it and leaves.

Raises nothing; the exit status is that of `worker.main`.
"""

from __future__ import annotations

import gc

from .lifeline import leave


def main() -> int:
    """Run one rank; return the exit status."""
    # torch and diffusers make half a million objects and no garbage; looking for some takes a fifth of a rank's start.
    gc.disable()
    from .worker import main as work

    # They stay to the end: later collections need not walk them either.
    gc.freeze()
    gc.enable()
    return work()


if __name__ == "__main__":
    leave(main())
