"""Fixtures that every kind of test shares.

Run pytest from the repository's root. Heavy things (the tiny checkpoint) are made once and kept below ``.cache/``.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.turns import turn

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"

# torchvision for Qwen3-VL's processor; before transformers looks whether there is one.
sys.path.append(str(CACHE / "oracle"))

# Two cores are shared by several rank processes in the tests; each process uses one thread unless told otherwise.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """With ``-n`` and ``--dist loadfile``: keep together what shares a server."""
    if config.getoption("dist") != "loadfile":
        return None
    return importlib.import_module("tests.support.scheduler").TogetherScheduling(config, log)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """With ``-n``: run a test that is marked ``alone`` while no other runs."""
    if not hasattr(item.config, "workerinput"):
        return (yield)
    CACHE.mkdir(exist_ok=True)
    with turn(CACHE, alone=item.get_closest_marker("alone") is not None):
        return (yield)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Let torch use one thread: the last bits depend on their number."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def root() -> Path:
    """Return the repository's root, which is also the node directory."""
    return ROOT


@pytest.fixture(scope="session")
def h3pack() -> ModuleType:
    """Return the repository as a package, the way ComfyUI names a pack, but without running its ``__init__``.

    ``importlib.import_module("h3pack.comfy_h3.convert")`` then works, relative imports included.
    """
    if "h3pack" not in sys.modules:
        pack = ModuleType("h3pack")
        pack.__path__ = [str(ROOT)]
        sys.modules["h3pack"] = pack
    return sys.modules["h3pack"]


@pytest.fixture(scope="session")
def tiny_checkpoint() -> Path:
    """Return a tiny random checkpoint in diffusers' layout; made once for each version of what makes it."""
    return _checkpoint("tiny")


@pytest.fixture(scope="session")
def small_checkpoint() -> Path:
    """Return the ``small`` preset: the same shapes of weights, enough layers to measure."""
    return _checkpoint("small")


def _checkpoint(preset: str) -> Path:
    engine = ROOT / "engine"
    # The checkpoint's marker holds the facts that are read from it.
    facts = (engine / "checkpoint.py", engine / "contract" / "limits.py")
    sources = sorted([*engine.glob("tiny*.py"), *(engine / "tiny").glob("*.py"), *facts])
    key = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]
    folder = CACHE / "checkpoints" / f"{preset}-{key}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:
        # The processes of -n begin together.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            importlib.import_module("engine.tiny").make_tiny(folder, preset=preset)
    return folder
