"""The most memory that each stage of a job took on this rank: of its device, or on a CPU of the whole process.

Counted by torch's allocator on an accelerator, by the kernel (the process' resident memory) on a CPU; where neither
tells, nothing is counted. Raises nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

DEVICE, PROCESS = "device", "process"
_RESET = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")
_RESET_PEAK = "5"
"""What, written to `_RESET`, lets the kernel's peak start again."""


class StagePeaks:
    """Peaks by stage, bytes; of a stage that ran several times the highest.

    Attributes:
        kind: `DEVICE` or `PROCESS`. bytes: by stage.
    """

    def __init__(self, device: torch.device) -> None:
        self.kind = PROCESS if device.type == "cpu" else DEVICE
        self.bytes: dict[str, int] = {}
        self._device = device

    @contextmanager
    def counting(self, stage: str) -> Iterator[None]:
        """Count what is taken inside the block towards ``stage``; one that fails is not counted."""
        told = self._reset()
        yield
        if told:
            self.bytes[stage] = max(self.bytes.get(stage, 0), self._peak())

    def _reset(self) -> bool:
        """Let the peak start again; whether there is one."""
        try:
            if self.kind == DEVICE:
                torch.accelerator.reset_peak_memory_stats(self._device)
            else:
                _RESET.write_text(_RESET_PEAK)
        except (OSError, RuntimeError, NotImplementedError):
            return False
        return True

    def _peak(self) -> int:
        if self.kind == DEVICE:
            return torch.accelerator.max_memory_allocated(self._device)
        found = re.search(r"^VmHWM:\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
        return int(found[1]) * 1024 if found else 0
