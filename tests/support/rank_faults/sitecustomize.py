"""Faults for the ranks of a test, found by Python at start-up through PYTHONPATH; the engine knows nothing of it.

The file named by ``H3_TEST_FAULT`` holds ``{"rank", "module", "call", "do"}`` while a fault is planted: in that rank
(or all, without ``rank``), each call of a torch module of that class name (the ``call``-th only, when given) does
``raise``, ``oom``, ``kill``, ``stop``, ``sleep`` (``seconds``) or ``stall`` (for as long as the fault is planted).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

FAULT = os.environ.get("H3_TEST_FAULT")


def install(fault_file: Path) -> None:
    import torch
    from torch.nn.modules.module import register_module_forward_pre_hook

    calls = {"planted": 0.0, "count": 0}

    def hook(module: Any, _: Any) -> None:
        try:
            planted = fault_file.stat().st_mtime
            fault = json.loads(fault_file.read_text())
        except (FileNotFoundError, ValueError):
            return
        if type(module).__name__ != fault["module"] or fault.get("rank", int(os.environ["RANK"])) != int(
            os.environ["RANK"]
        ):
            return
        calls["count"] = calls["count"] + 1 if calls["planted"] == planted else 0
        calls["planted"] = planted
        if fault.get("call", calls["count"]) != calls["count"]:
            return
        if fault["do"] == "raise":
            raise ValueError("planted fault")
        if fault["do"] == "oom":
            raise torch.OutOfMemoryError("planted")
        if fault["do"] == "stall":
            while fault_file.exists():
                time.sleep(0.02)
        elif fault["do"] == "sleep":
            time.sleep(fault["seconds"])
        else:
            os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[fault["do"]])

    register_module_forward_pre_hook(hook)


if FAULT and "RANK" in os.environ and "-m" in sys.orig_argv:
    install(Path(FAULT))
