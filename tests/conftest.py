"""Fixtures that every kind of test shares.

Run pytest from the repository's root. Heavy things (the tiny checkpoint) are made once and kept below ``.cache/``.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"

# torchvision for Qwen3-VL's processor; before transformers looks whether there is one.
sys.path.append(str(CACHE / "oracle"))

# Two cores are shared by several rank processes in the tests; each process uses one thread unless told otherwise.
os.environ.setdefault("OMP_NUM_THREADS", "1")


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
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        importlib.import_module("engine.tiny").make_tiny(folder, preset=preset)
    return folder
