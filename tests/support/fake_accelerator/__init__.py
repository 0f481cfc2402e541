"""A fake accelerator for tests: the device ``hpu``. Its memory is the host's and counted; it computes on the CPU.

Placement is real: an operator that is given a weight of the CPU and an input of the device raises, as on CUDA. Results
are the CPU's bit for bit. Streams and events exist and do nothing, copies are synchronous: it proves no timing.

Loading it changes ``torch.accelerator`` for the whole process, for good. So a test never loads it: it has a function
run in a child process, once for a module, and asserts on what the function returns (JSON)::

    @pytest.fixture(scope="module")
    def told() -> dict[str, Any]:                       # the child imports torch again: 5 to 10 s
        return run_on_device("tests.support.my_cases:report", folder=str(checkpoint))

    # tests/support/my_cases.py
    def report(device: FakeDevice, folder: str) -> dict[str, Any]:
        model.to(device.torch)                          # torch.device("hpu", 0)
        device.reset()                                  # the peak begins at what is allocated; transfers begin at 0
        model(inputs)
        return {"peak": device.counters().peak, "moved": device.counters().to_device}

``device.limit(bytes)`` makes it run out of memory (`torch.OutOfMemoryError`); ``torch.accelerator.memory_allocated``
and the like work too. Compare bits between runs on the device: on the CPU the last ones depend on where in memory a
weight lies, and a checkpoint's, mapped from its file, lie anywhere. The library is built once (g++, half a minute).
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

ROOT = Path(__file__).resolve().parents[3]
_SOURCE = Path(__file__).with_name("device.cpp")
UNLIMITED = 1 << 40


class Counters(NamedTuple):
    """Bytes: allocated now, the most since `FakeDevice.reset`, and copied since then, to the device and from it."""

    allocated: int
    peak: int
    to_device: int
    to_host: int


class FakeDevice:
    """The device, in the process that loaded it."""

    def __init__(self) -> None:
        """Load it."""
        import torch

        torch.ops.load_library(str(build()))
        torch._register_device_module("hpu", _device_module())
        self.torch: torch.device = torch.device("hpu", 0)
        self._ops: Any = torch.ops.fake_accelerator

    def counters(self) -> Counters:
        """Return the counters of this process."""
        return Counters(*self._ops.counters())

    def reset(self) -> None:
        """Begin to count anew."""
        self._ops.reset()

    def limit(self, size: int = UNLIMITED) -> None:
        """Let it have ``size`` bytes from now on."""
        self._ops.limit(size)


def _device_module() -> ModuleType:
    """Return what torch looks for as ``torch.hpu``."""
    module: Any = ModuleType("torch.hpu")
    module._lazy_init = lambda: None
    module.is_available = module.is_initialized = lambda: True
    module.device_count = lambda: 1
    module.current_device = lambda: 0
    return module  # type: ignore[no-any-return]


def build() -> Path:
    """Return the library's path; build it if no one has for this source and this torch."""
    import torch

    key = hashlib.sha256(_SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:12]
    library = ROOT / ".cache" / "fake_accelerator" / f"device-{key}.so"
    if library.exists():
        return library
    library.parent.mkdir(parents=True, exist_ok=True)
    home = Path(torch.__file__).parent
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        made = Path(folder, library.name)
        command = ["g++", "-std=c++20", "-O1", "-shared", "-fPIC", "-w", str(_SOURCE), "-o", str(made)]
        command += [f"-I{home}/include", f"-I{home}/include/torch/csrc/api/include"]
        command += [f"-L{home}/lib", "-lc10", "-ltorch", "-ltorch_cpu"]
        subprocess.run(command, check=True)
        # Whoever builds at the same time builds the same.
        made.replace(library)
    return library


def run_on_device(function: str, *, timeout: float = 240, **arguments: Any) -> Any:
    """Return what ``module:function(device, **arguments)`` returns in a process of its own; all of it is JSON."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder, "answer.json")
        told = subprocess.run(
            [sys.executable, "-m", "tests.support.fake_accelerator", function, json.dumps(arguments), str(answer)],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert told.returncode == 0, told.stdout[-6000:]
        return json.loads(answer.read_text())
