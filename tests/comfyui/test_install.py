"""The install step that makes the engine's environment, as ComfyUI-Manager and ``make`` run it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

FILES = ("install.py", "requirements-engine.txt", "requirements-media.txt", "pyproject.toml")
CALLS = 2 + 2 * 3
"""The engine's packages, the engine, and for either media package: aside, its import, in earnest."""


@pytest.fixture
def pack(root: Path, tmp_path: Path) -> Path:
    """Return a copy of what the step reads, with an environment whose pip only notes that it ran."""
    for name in FILES:
        shutil.copy(root / name, tmp_path)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n')
    python.chmod(0o755)
    return tmp_path


def _install(pack: Path) -> int:
    return subprocess.run([sys.executable, "install.py"], cwd=pack, check=False).returncode


def test_it_installs_the_pins_and_is_quick_the_second_time(pack: Path) -> None:
    assert _install(pack) == 0
    calls = (pack / "calls").read_text().splitlines()
    assert len(calls) == CALLS
    assert "requirements-engine.txt" in calls[0]
    started = time.monotonic()
    assert _install(pack) == 0
    assert time.monotonic() - started < 2
    assert (pack / "calls").read_text().splitlines() == calls


def test_a_changed_pin_is_installed(pack: Path) -> None:
    assert _install(pack) == 0
    with (pack / "requirements-engine.txt").open("a") as file:
        file.write("# changed\n")
    assert _install(pack) == 0
    assert len((pack / "calls").read_text().splitlines()) == 2 * CALLS


def test_a_failing_pip_is_tried_again_the_next_time(pack: Path) -> None:
    python = pack / ".venv" / "bin" / "python"
    works = python.read_text()
    python.write_text("#!/bin/sh\nexit 1\n")
    assert _install(pack) == 1
    python.write_text(works)
    assert _install(pack) == 0
    assert (pack / "calls").exists()


def test_a_media_package_that_does_not_load_beside_torch_never_enters_the_environment(pack: Path) -> None:
    python = pack / ".venv" / "bin" / "python"
    python.write_text(python.read_text() + 'case "$*" in *"import torchvision") exit 1;; esac\n')
    assert _install(pack) == 0
    calls = (pack / "calls").read_text().splitlines()
    into = [call for call in calls if "--no-deps" in call and "--target" not in call]
    assert [call.split()[-1].partition("==")[0] for call in into] == [".", "torchaudio"]
    assert [folder.name for folder in (pack / ".venv").iterdir() if folder.is_dir()] == ["bin"]
    assert _install(pack) == 0
    assert (pack / "calls").read_text().splitlines() == calls


def test_media_packages_that_cannot_be_fetched_do_not_fail_the_step_and_are_tried_again(pack: Path) -> None:
    python = pack / ".venv" / "bin" / "python"
    works = python.read_text()
    python.write_text(works + 'case "$*" in *torchaudio*) exit 1;; esac\n')
    assert _install(pack) == 0
    python.write_text(works)
    before = len((pack / "calls").read_text().splitlines())
    assert _install(pack) == 0
    assert len((pack / "calls").read_text().splitlines()) == before + CALLS


def test_every_pin_is_exact(root: Path) -> None:
    lines = [
        line for name in FILES if name.startswith("requirements") for line in (root / name).read_text().splitlines()
    ]
    pins = [line for line in lines if line and not line.startswith("#")]
    assert len(pins) > 5
    assert all("==" in pin for pin in pins)


def test_comfyuis_own_environment_needs_websockets_alone(root: Path) -> None:
    lines = (root / "requirements.txt").read_text().splitlines()
    assert [line for line in lines if not line.startswith("#")] == ["websockets>=15"]
