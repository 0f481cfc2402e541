"""Which accelerators this machine has and what is free on them, found without importing torch here.

Device files are looked at first; only when some are there is torch asked, in a short child process. What that process
itself takes of a device counts as taken. Raises `ConfigError` when an accelerator was asked for that torch does not
see.
"""

from __future__ import annotations

import glob
import json
import logging
import os
import subprocess
import sys
from dataclasses import dataclass

from .contract.errors import ConfigError
from .contract.words import bytes_in_words

logger = logging.getLogger(__name__)

_DEVICE_FILES = ("/dev/nvidia[0-9]*", "/dev/dri/renderD*", "/dev/davinci[0-9]*", "/dev/kfd")
_PROGRAM = """
import json, torch
accelerator = torch.accelerator.current_accelerator(check_available=True)
count = torch.accelerator.device_count() if accelerator else 0
try:
    memory = [torch.accelerator.get_memory_info(index) for index in range(count)]
except (RuntimeError, NotImplementedError):  # a backend that does not tell
    memory = []
print(json.dumps([accelerator.type if accelerator else "cpu", count, memory]))
"""
_TIMEOUT = 180.0
_OTHERS = 0.1
"""What part of a device others may hold without a word: its driver, a desktop."""


@dataclass(frozen=True)
class Devices:
    """``count`` devices of ``kind`` (``cpu``, ``cuda``, …); a CPU counts as one.

    Attributes:
        memory: bytes of each that are free, and all of them; empty for CPUs, or where nobody tells.
    """

    kind: str
    count: int
    memory: tuple[tuple[int, int], ...] = ()

    @property
    def smallest(self) -> int | None:
        """All bytes of the smallest; None where nobody tells."""
        return min((total for _, total in self.memory), default=None)


def physical_memory() -> int:
    """Return the bytes of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def memory_to_use(devices: Devices, *, ranks: int, given: float | None) -> int | None:
    """Return the bytes of a device that each of ``ranks`` may use: as ``given`` (GB of 1e9 bytes), else what is free.

    Free on the fullest device; None where nobody tells. Logs what others hold of it.
    """
    wanted = None if given is None else round(given * 1e9)
    used = devices.memory[:ranks]
    if not used:
        return wanted
    free, total = min(used)
    if (free < (1 - _OTHERS) * total) if wanted is None else free < wanted:
        logger.warning(
            "%s of %s are free on device %d: %s",
            bytes_in_words(free),
            bytes_in_words(total),
            used.index((free, total)),
            "other programs hold the rest, and the engine does without it"
            if wanted is None
            else f"less than --gpu-memory {given:g}; unless other programs end, jobs may run out of memory",
        )
    return free if wanted is None else wanted


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
    memory = tuple((int(free), int(total)) for free, total in memory)
    return Devices(str(kind), int(count), memory) if kind != "cpu" else Devices("cpu", 1)
