"""Which local engines stay beside a new one, and how they end: with a program in the engine's place, in no time."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

_SLOW_END = 1.5
_PROGRAM = f"""#!{sys.executable}
import json, pathlib, sys, time
ready = pathlib.Path(sys.argv[sys.argv.index("--ready-file") + 1])
fresh = ready.with_suffix(".new")
fresh.write_text(json.dumps({{"url": "http://127.0.0.1:9"}}))
fresh.replace(ready)
sys.stdin.read()
time.sleep({_SLOW_END})
"""


@pytest.fixture
def launcher(h3pack: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    python = tmp_path / "python"
    python.write_text(_PROGRAM)
    python.chmod(0o755)
    monkeypatch.setenv("H3_ENGINE_PYTHON", str(python))
    module = importlib.import_module("h3pack.comfy_h3.launcher")
    yield module
    module.stop_all()


def _start(launcher: Any, home: Path, **spec: Any) -> Any:
    engine, is_new = launcher.engine_for(launcher.EngineSpec(model=str(home), **spec), home)
    assert is_new
    end = time.monotonic() + 30
    while engine.address() is None:
        assert time.monotonic() < end
        time.sleep(0.02)
    return engine


def test_an_idle_engine_on_the_same_kind_of_device_makes_room(launcher: Any, tmp_path: Path) -> None:
    cpu = _start(launcher, tmp_path, device="cpu")
    first = _start(launcher, tmp_path, device="auto")
    second = _start(launcher, tmp_path, device="cuda", dtype="bf16")
    assert not first.is_usable
    assert second.is_usable
    assert second.beside == ()
    assert cpu.is_usable, "the CPU's engine takes no room on the accelerator"


def test_an_engine_in_use_stays_and_the_new_one_knows_it(launcher: Any, tmp_path: Path) -> None:
    first = _start(launcher, tmp_path, device="auto")
    with launcher.using(first.spec):
        second = _start(launcher, tmp_path, device="auto", ranks=2)
    assert first.is_usable
    assert second.beside == (first.spec,)
    third = _start(launcher, tmp_path, device="auto", ranks=3)
    assert third.beside == ()
    assert not first.is_usable
    assert not second.is_usable


def test_encoders_and_a_generator_stay_beside_each_other_but_not_beside_an_engine_of_all(
    launcher: Any, tmp_path: Path
) -> None:
    encoders = _start(launcher, tmp_path, stages=("encode_prompt", "encode_media"))
    generator = _start(launcher, tmp_path, stages=("denoise", "decode_video", "decode_audio"))
    assert encoders.is_usable
    others = _start(launcher, tmp_path, stages=("encode_prompt", "encode_media"), dtype="bf16")
    assert not encoders.is_usable
    assert generator.is_usable
    _start(launcher, tmp_path)
    assert not others.is_usable
    assert not generator.is_usable


def test_all_engines_are_told_to_stop_before_one_is_waited_for(launcher: Any, tmp_path: Path) -> None:
    engines = [_start(launcher, tmp_path, device=device) for device in ("cpu", "auto")]
    began = time.monotonic()
    launcher.stop_all()
    assert time.monotonic() - began < 2 * _SLOW_END
    assert not any(engine.is_usable for engine in engines)
