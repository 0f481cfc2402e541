"""Makes or updates the engine's own Python environment, ``.venv`` in this folder. ComfyUI-Manager runs it too.

Quick when nothing changed. The environment of whoever runs it (ComfyUI's) is left alone. The engine runs on Linux;
elsewhere the nodes attach to an engine by URL, and this does nothing.
"""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

log = logging.getLogger("install")

PACK = Path(__file__).resolve().parent
ENVIRONMENT = PACK / ".venv"
PYTHON = ENVIRONMENT / "bin" / "python"
STAMP = ENVIRONMENT / "h3-engine.stamp"
MEDIA = "requirements-media.txt"
SOURCES = ("requirements-engine.txt", MEDIA, "pyproject.toml")
WITHOUT = {
    "torchvision": "keyframes and references with pictures",
    "torchaudio": "sounds of another sample rate than the model's",
}
"""What the engine refuses without each package."""
OLDEST_PYTHON = (3, 11)


def fingerprint() -> str:
    """Return what the environment depends on, as one word."""
    return hashlib.sha256(b"\0".join((PACK / name).read_bytes() for name in SOURCES)).hexdigest()


def pip_install(*arguments: str) -> None:
    """Run pip in the environment; raises `subprocess.CalledProcessError`."""
    options = ["--disable-pip-version-check", "--no-input"]
    subprocess.run([str(PYTHON), "-m", "pip", "install", *options, *arguments], check=True, cwd=PACK)


def install_media() -> bool:
    """Install what loads beside this torch of what only media need; return whether all could be tried."""
    complete = True
    pins = [line for line in (PACK / MEDIA).read_text().splitlines() if line and not line.startswith("#")]
    for pin in pins:
        name = pin.partition("==")[0]
        try:
            fault = fault_beside_torch(name, pin)
            if fault is None:
                pip_install("--no-deps", pin)
        except (OSError, subprocess.CalledProcessError) as error:
            log.warning("%s could not be installed, run this again: %s", pin, error)
            complete = False
            continue
        if fault is not None:
            log.warning("%s does not load beside the installed torch (%s) and is left out", pin, fault)
            log.warning("the engine will refuse %s", WITHOUT[name])
    return complete


def fault_beside_torch(name: str, pin: str) -> str | None:
    """Return why the package does not load, None when it does.

    It is tried aside: one that does not load would break other packages in passing.
    """
    with tempfile.TemporaryDirectory(dir=ENVIRONMENT) as aside:
        pip_install("--no-deps", "--target", aside, pin)
        program = [str(PYTHON), "-c", f"import {name}"]
        environment = {**os.environ, "PYTHONPATH": aside}
        tried = subprocess.run(program, check=False, cwd=aside, env=environment, stderr=subprocess.PIPE, text=True)
    lines = tried.stderr.strip().splitlines() or [f"exit status {tried.returncode}"]
    return lines[-1] if tried.returncode else None


def main() -> int:
    """Make the environment; return the exit status."""
    logging.basicConfig(level=logging.INFO, format="h3-engine install: %(message)s")
    if sys.platform != "linux":
        log.info("the engine runs on Linux; here, give the Connect node the URL of one")
        return 0
    if sys.version_info < OLDEST_PYTHON:
        log.error("Python %d.%d or newer is needed; this is %s", *OLDEST_PYTHON, sys.version.split()[0])
        return 1
    wanted = fingerprint()
    if STAMP.exists() and STAMP.read_text() == wanted:
        log.info("%s is up to date", ENVIRONMENT)
        return 0
    try:
        if not PYTHON.exists():
            log.info("making %s", ENVIRONMENT)
            venv.create(ENVIRONMENT, with_pip=True)
        pip_install("-r", "requirements-engine.txt")
        pip_install("--no-deps", "-e", ".")
    except (OSError, subprocess.CalledProcessError) as error:
        log.error("the engine's environment could not be made: %s", error)
        return 1
    if install_media():
        STAMP.write_text(wanted)
    log.info("%s is ready", ENVIRONMENT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
