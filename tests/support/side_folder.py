"""Packages for tests that stay out of ``.venv``: torchvision and torchaudio in ``.cache/oracle``, torchao beside it.

Their wheels on the index are built for CUDA and do not load beside the CPU build of torch that the tests use, so they
stay out of ``.venv``. Of both only Python code is needed here (Qwen3-VL's processor, the resampling filter): what
refers to their compiled operators is taken out, in this folder alone. torchao (``.cache/torchao``) would load, but
diffusers imports it wherever it is found, which costs every process half a second; `find_torchao` puts it on the path
of one that has imported diffusers. ``python -m tests.support.side_folder`` sets up both.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SIDE_FOLDER = ROOT / ".cache" / "oracle"
TORCHAO = ROOT / ".cache" / "torchao"
_TORCHAO_VERSION = "0.18.0"
_VERSIONS = ("torchvision==0.28.0", "torchaudio==2.11.1")
_STAMP = "loadable"


def ensure_side_folder() -> Path:
    """Return the folder, set up; safe to call from several processes."""
    wanted = "\n".join(_VERSIONS)
    stamp = SIDE_FOLDER / _STAMP
    SIDE_FOLDER.mkdir(parents=True, exist_ok=True)
    with (SIDE_FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != wanted:
            for version in _VERSIONS:
                _install(*version.split("=="), SIDE_FOLDER)
            (SIDE_FOLDER / "torchvision" / "_meta_registrations.py").write_text("")
            shutil.rmtree(SIDE_FOLDER / "torchaudio" / "lib", ignore_errors=True)
            stamp.write_text(wanted)
    return SIDE_FOLDER


def find_torchao() -> None:
    """Let this process find torchao from now on; set up if it is not there."""
    import diffusers  # noqa: F401 - it looks for torchao when it is imported

    TORCHAO.mkdir(parents=True, exist_ok=True)
    with (TORCHAO / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _install("torchao", _TORCHAO_VERSION, TORCHAO)
    sys.path.append(str(TORCHAO))


def _install(name: str, version: str, folder: Path) -> None:
    if (folder / f"{name}-{version}.dist-info").is_dir():
        return
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target", str(folder)]
    subprocess.run([*pip, f"{name}=={version}"], check=True, timeout=280)


def with_media_libraries(environment: dict[str, str] | None = None) -> dict[str, str]:
    """Return ``environment`` (by default this process's own) with both libraries on Python's path."""
    made = dict(os.environ if environment is None else environment)
    others = [path for path in made.get("PYTHONPATH", "").split(os.pathsep) if path]
    made["PYTHONPATH"] = os.pathsep.join([*others, str(ensure_side_folder())])
    return made


if __name__ == "__main__":
    ensure_side_folder()
    find_torchao()
