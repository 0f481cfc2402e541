"""How many accelerators this machine has, found without importing torch here.

Device files are looked at first; only when some are there is torch asked, in a short child process. Raises
`ConfigError` when an accelerator was asked for that torch does not see.
"""

from __future__ import annotations

import glob
import json
import os
import subprocess
import sys
from dataclasses import dataclass

from .contract.errors import ConfigError

_DEVICE_FILES = ("/dev/nvidia[0-9]*", "/dev/dri/renderD*", "/dev/davinci[0-9]*", "/dev/kfd")
_PROGRAM = """
import json, torch
accelerator = torch.accelerator.current_accelerator(check_available=True)
count = torch.accelerator.device_count() if accelerator else 0
try:
    memory = min((torch.accelerator.get_memory_info(index)[1] for index in range(count)), default=None)
except (RuntimeError, NotImplementedError):  # a backend that does not tell
    memory = None
print(json.dumps([accelerator.type if accelerator else "cpu", count, memory]))
"""
_TIMEOUT = 180.0


@dataclass(frozen=True)
class Devices:
    """``count`` devices of ``kind`` (``cpu``, ``cuda``, …); a CPU counts as one.

    Attributes:
        memory: bytes of the smallest; None for CPUs, or where nobody tells.
    """

    kind: str
    count: int
    memory: int | None = None


def physical_memory() -> int:
    """Return the bytes of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def find_devices(wanted: str) -> Devices:
    """Return the devices that ``--device wanted`` means.

    Raises:
        ConfigError: ``config_bad_value`` when ``wanted`` names an accelerator that is not there.
    """
    if wanted == "cpu" or (wanted == "auto" and not any(glob.glob(pattern) for pattern in _DEVICE_FILES)):
        return Devices("cpu", 1)
    found = _ask_torch()
    if wanted not in ("auto", found.kind):
        raise ConfigError(
            "config_bad_value",
            f"torch sees no {wanted} device here, only {found.kind}.",
            field="device",
            value=wanted,
            remedy=f"Use --device {found.kind}, or install the torch build for {wanted}.",
        )
    return found


def _ask_torch() -> Devices:
    try:
        answer = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, timeout=_TIMEOUT, check=True)
        kind, count, memory = json.loads(answer.stdout.splitlines()[-1])
    except (subprocess.SubprocessError, OSError, ValueError, IndexError) as error:
        raise ConfigError(
            "config_bad_value",
            f"torch could not be asked for its devices: {error}",
            field="device",
            remedy="Check that this Python can import torch, or use --device cpu.",
        ) from error
    return Devices(str(kind), int(count), memory) if kind != "cpu" else Devices("cpu", 1)
