"""Running a function on a few bare ranks (gloo over a file, no fleet), each in its own process.

The processes are forked from one that has imported torch, diffusers and the engine and has done nothing else: importing
them takes four seconds of a core. The function is named, not passed. Raises AssertionError with the rank's output.
"""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from importlib import import_module
from multiprocessing.context import ForkServerContext
from pathlib import Path

from engine.lifeline import leave

_FORKS: ForkServerContext = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["pytest", "engine.worker"])


def run_on_ranks(function: str, *, ranks: int, folder: Path, timeout: float = 120) -> None:
    """Call ``module:function(mesh, folder)`` on every rank of a new group and wait for all."""
    outputs = [folder / f"output_of_rank_{rank}" for rank in range(ranks)]
    processes = [
        _FORKS.Process(target=_be_rank, args=(function, rank, ranks, folder, output))
        for rank, output in enumerate(outputs)
    ]
    limit = time.monotonic() + timeout
    try:
        for process in processes:
            process.start()
        for process in processes:
            process.join(max(0.0, limit - time.monotonic()))
    finally:
        for process in processes:
            process.kill()
    for process, output in zip(processes, outputs, strict=True):
        process.join()
        text = output.read_text(errors="replace") if output.exists() else ""
        assert process.exitcode == 0, f"exit status {process.exitcode}\n{text[-4000:]}"


def _be_rank(function: str, rank: int, ranks: int, folder: Path, output: Path) -> None:
    """Be one rank, what it writes going to ``output``."""
    written = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(written, stream)
    try:
        _run(function, rank, ranks, folder)
    except BaseException:
        traceback.print_exc()
        leave(1)
    leave(0)


def _run(function: str, rank: int, ranks: int, folder: Path) -> None:
    import torch
    from torch.distributed import FileStore

    from engine.parallel.layout import Layout
    from engine.parallel.mesh import Mesh

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    mesh = Mesh(Layout(rank, ranks, ranks), FileStore(str(folder / "store"), ranks))
    mesh.open_data(torch.device("cpu"), timeout=60)
    module, _, name = function.partition(":")
    getattr(import_module(module), name)(mesh, folder)
    mesh.close()
