"""Faults for the ranks of a test, and a look at what they received, found by Python at start-up through PYTHONPATH.

The engine knows nothing of it.

The file named by ``H3_TEST_FAULT`` holds ``{"rank", "module", "call", "do"}`` while a fault is planted: in that rank
(or all, without ``rank``), each call of a torch module of that class name (the ``call``-th only, when given) does
``raise``, ``oom``, ``kill``, ``stop``, ``sleep`` (``seconds``) or ``stall`` (for as long as the fault is planted). In
place of ``module`` there may be ``function``, ``package.module:name`` or ``package.module:Class.name``, from the next
call of any torch module on.

Into the folder named by ``H3_TEST_MASKS`` each rank writes what every edit came to there; see `support.received_masks`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any

FAULT = os.environ.get("H3_TEST_FAULT")
MASKS = os.environ.get("H3_TEST_MASKS")


def install(fault_file: Path) -> None:
    from torch.nn.modules.module import register_module_forward_pre_hook

    calls = {"planted": 0.0, "count": 0}
    found: set[str] = set()

    def hook(module: Any, _: Any) -> None:
        visit("module", type(module).__name__)

    def visit(kind: str, name: str) -> None:
        try:
            planted = fault_file.stat().st_mtime
            fault = json.loads(fault_file.read_text())
        except (FileNotFoundError, ValueError):
            return
        if fault.get("function") not in {None, *found}:
            found.add(fault["function"])
            wrap(fault["function"], lambda: visit("function", fault["function"]))
        if name != fault.get(kind) or fault.get("rank", int(os.environ["RANK"])) != int(os.environ["RANK"]):
            return
        calls["count"] = calls["count"] + 1 if calls["planted"] == planted else 0
        calls["planted"] = planted
        if fault.get("call", calls["count"]) != calls["count"]:
            return
        do(fault, fault_file)

    register_module_forward_pre_hook(hook)


def do(fault: dict[str, Any], fault_file: Path) -> None:
    import torch

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


def wrap(function: str, before: Callable[[], None]) -> None:
    """Have ``before`` called before each call of ``function``."""
    name, _, path = function.partition(":")
    *owners, last = path.split(".")
    owner: Any = import_module(name)
    for step in owners:
        owner = getattr(owner, step)
    plain = getattr(owner, last)

    @wraps(plain)
    def wrapped(*args: Any, **options: Any) -> Any:
        before()
        return plain(*args, **options)

    setattr(owner, last, wrapped)


def watch(folder: Path) -> None:
    from safetensors.torch import save_file

    from engine.masking import Edit

    plain, count = Edit.masks, 0

    def noting(edit: Edit, *args: Any, **options: Any) -> Any:
        nonlocal count
        made = plain(edit, *args, **options)
        tensors = {"video": edit.video_mask, "audio": edit.audio_mask}
        for name, mask in (("video_rows", made.video), ("audio_rows", made.audio)):
            if mask is not None:
                tensors[name] = mask.rows
        folder.mkdir(exist_ok=True)
        path = folder / f"{count:04}-{os.environ['RANK']}.safetensors"
        # Whoever sees the file sees all of it.
        save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, path.with_suffix(".part"))
        path.with_suffix(".part").replace(path)
        count += 1
        return made

    Edit.masks = noting  # type: ignore[method-assign]


if "RANK" in os.environ and "-m" in sys.orig_argv:
    if FAULT:
        install(Path(FAULT))
    if MASKS:
        watch(Path(MASKS))
