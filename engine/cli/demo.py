"""``make-tiny`` and ``demo``: a complete random checkpoint, and a whole run with it on this machine's CPU.

`demo` raises `JobError` or `EngineDeadError` when its engine fails; the engine is stopped in any case.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .. import env
from ..client import EngineClient
from ..config import absolute_path
from ..contract.errors import ConfigError, EngineDeadError
from ..contract.words import bytes_in_words
from .client import add_output, generate, output_of
from .delivery import Delivery
from .output import say, tell
from .places import temporary_folder

PRESETS = ("tiny", "small")
_RANKS = 2
_SECONDS = 5.0
_STEPS = 8
_PROMPT = "A paper boat sails along a rain gutter, the rain drums on the leaves."
_START_SECONDS = 180.0
_STOP_SECONDS = 30.0
_LOG_LINES = 40


def add_make_tiny_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``make-tiny``."""
    parser.add_argument("folder", metavar="DIR", help="new folder of the checkpoint")
    parser.add_argument(
        "--preset", choices=PRESETS, default="tiny", help="tiny: a few MB; small: wider layers (default: %(default)s)"
    )


def run_make_tiny(arguments: argparse.Namespace) -> int:
    """Write the checkpoint and say its folder."""
    folder = absolute_path(arguments.folder, field="folder")
    facts = _make_tiny(folder, arguments.preset)
    tell(f"{arguments.preset} checkpoint with random weights (its videos are noise): {bytes_in_words(facts['bytes'])}")
    say(str(folder))
    return 0


def _make_tiny(folder: Path, preset: str) -> dict[str, Any]:
    # Needs torch and transformers, which the other commands do without.
    from ..tiny import make_tiny

    try:
        return make_tiny(folder, preset=preset)
    except OSError as error:
        raise ConfigError(
            "config_bad_value",
            f"The checkpoint cannot be written: {error.strerror or error}.",
            field="folder",
            value=str(folder),
            remedy="Give a folder that can be made and has room.",
        ) from error


def add_demo_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``demo``."""
    add_output(parser, "demo.mp4")
    parser.add_argument("--folder", metavar="DIR", help="where the checkpoint is kept (default: a temporary folder)")


def run_demo(arguments: argparse.Namespace) -> int:
    """Make the checkpoint, serve it on two CPU ranks, generate five seconds, stop, and say the MP4's path."""
    output = output_of(arguments)
    with temporary_folder("demo") as scratch:
        folder = absolute_path(arguments.folder, field="folder") if arguments.folder else scratch / "model"
        tell("making a tiny checkpoint with random weights; the video will be noise")
        _make_tiny(folder, PRESETS[0])
        with _serving(folder, scratch) as url:
            request = {"task": "generate", "prompt": _PROMPT, "seconds": _SECONDS, "steps": _STEPS, "seed": 1}
            client = EngineClient(url, token=env.read_token())
            [path] = asyncio.run(generate(client, request, Delivery(output)))
    say(str(path))
    return 0


@contextmanager
def _serving(model: Path, scratch: Path) -> Iterator[str]:
    """Run an engine for ``model``; yield its address; stop it by the end of its stdin."""
    log, ready = scratch / "engine.log", scratch / "ready.json"
    tell(f"starting an engine on {_RANKS} CPU ranks")
    command = [sys.executable, "-m", "engine", "serve", "--model", str(model), "--port", "0"]
    command += ["--device", "cpu", "--nproc-per-node", str(_RANKS), "--ready-file", str(ready), "--stop-on-eof"]
    root = Path(__file__).resolve().parents[2]
    with log.open("wb") as output:
        engine = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output, cwd=root)
    try:
        yield _wait_for_address(engine, ready, log)
    finally:
        assert engine.stdin is not None
        engine.stdin.close()
        try:
            engine.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            engine.kill()
            engine.wait()


def _wait_for_address(engine: subprocess.Popen[bytes], ready: Path, log: Path) -> str:
    deadline = time.monotonic() + _START_SECONDS
    while not ready.exists():
        if engine.poll() is not None or time.monotonic() > deadline:
            tail = log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
            raise EngineDeadError("start_failed", "The engine did not start.", remedy="\n".join(["Its log:", *tail]))
        time.sleep(0.1)
    return str(json.loads(ready.read_text(encoding="utf-8"))["url"])
