"""Running a function on a few bare ranks (gloo over a file, no fleet), each in its own process.

The function is named, not passed, so that each rank imports it afresh. Raises AssertionError with the rank's output.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run_on_ranks(function: str, *, ranks: int, folder: Path, timeout: float = 120) -> None:
    """Call ``module:function(mesh, folder)`` on every rank of a new group and wait for all."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.support.rank_group", function, str(rank), str(ranks), str(folder)],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        outputs = [process.communicate(timeout=timeout)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output[-4000:]


def main(function: str, rank: int, ranks: int, folder: Path) -> None:
    """Be one rank."""
    import torch
    from torch.distributed import FileStore

    from engine.parallel.layout import Layout
    from engine.parallel.mesh import Mesh

    torch.set_num_threads(1)
    mesh = Mesh(Layout(rank, ranks, ranks), FileStore(str(folder / "store"), ranks))
    mesh.open_data(torch.device("cpu"), timeout=60)
    module, _, name = function.partition(":")
    getattr(import_module(module), name)(mesh, folder)
    mesh.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
