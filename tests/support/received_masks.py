"""What the ranks of a test's engine made of each edit, written by ``rank_faults/sitecustomize.py``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file

FAULTS = Path(__file__).resolve().parent / "rank_faults"


def watching(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return ``environment`` of an engine, or of what starts one, whose ranks write to ``folder``."""
    path = ":".join(filter(None, (str(FAULTS), environment.get("PYTHONPATH"))))
    return {**environment, "PYTHONPATH": path, "H3_TEST_MASKS": str(folder)}


def received(folder: Path) -> list[list[dict[str, torch.Tensor]]]:
    """Return of every edit that was made, in order, what each rank had: first rank first.

    ``video`` [T, H/16, W/16] and ``audio`` [2, A], the masks; ``video_rows`` [Nv] and ``audio_rows`` [2A], those of the
    transformer's rows, in 256ths, absent where all of the stream is made anew.
    """
    found: dict[str, list[dict[str, torch.Tensor]]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        found.setdefault(path.name.partition("-")[0], []).append(load_file(path))
    return list(found.values())
