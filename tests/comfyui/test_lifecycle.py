"""A local engine's life beside ComfyUI: started on use, replaced when it dies, gone with ComfyUI."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.comfyui.conftest import make_t2va
from tests.support.comfyui import ComfyUI, run_prompt

pytestmark = [pytest.mark.comfyui, pytest.mark.ranks]


def _wait(condition: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def _family(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def _all_gone(processes: list[psutil.Process]) -> bool:
    return not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes)


async def test_a_killed_engine_is_named_and_the_next_run_starts_another(comfyui: ComfyUI) -> None:
    first = await run_prompt(comfyui, make_t2va(sample__seed=20))
    assert first.of("execution_success"), first.of("execution_error")
    (pid,) = comfyui.engine_pids()
    family = _family(pid)

    async def kill(kind: str, data: Any) -> None:
        if kind == "text" and data[0] == "sample" and "step 2 of" in data[1] and psutil.pid_exists(pid):
            os.kill(pid, signal.SIGKILL)

    lost = await run_prompt(comfyui, make_t2va(sample__seed=21, sample__steps=1000), on_event=kill)
    assert lost.of("execution_error"), lost.of("execution_success")
    assert "engine ended" in lost.error
    assert "log" in lost.error
    assert _wait(lambda: _all_gone(family), 30), "ranks of the killed engine are left"
    again = await run_prompt(comfyui, make_t2va(sample__seed=22))
    assert again.of("execution_success"), again.of("execution_error")
    (new,) = comfyui.engine_pids()
    assert new != pid


async def test_an_engine_that_cannot_start_shows_its_log(comfyui: ComfyUI, tmp_path: Path) -> None:
    (tmp_path / "modular_model_index.json").write_text("{}")
    run = await run_prompt(comfyui, make_t2va(connect__model_path=str(tmp_path)))
    (error,) = run.of("execution_error")
    assert error["node_id"] == "encode"
    assert "did not start" in run.error
    assert str(tmp_path) in run.error, "the log says which folder is wrong"


async def test_one_engine_can_be_attached_to_by_url(comfyui: ComfyUI) -> None:
    await run_prompt(comfyui, make_t2va())
    (pid,) = comfyui.engine_pids()
    run = await run_prompt(comfyui, make_t2va(connect__url=comfyui.engine_url(), sample__seed=23))
    assert run.of("execution_success"), run.of("execution_error")
    assert comfyui.engine_pids() == [pid]


async def _interrupt_the_start(server: ComfyUI) -> None:
    """Interrupt while the engine starts; it goes on starting, for the next run."""
    pressed: list[float] = []

    async def interrupt(kind: str, data: Any) -> None:
        if kind == "text" and data[0] == "encode" and not pressed:
            pressed.append(time.monotonic())
            server.post("/interrupt", {})

    run = await run_prompt(server, make_t2va(), on_event=interrupt)
    assert run.of("execution_interrupted"), run.of("execution_error")
    assert time.monotonic() - pressed[0] < 2


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
async def test_the_engine_is_gone_with_comfyui(tmp_path: Path, how: signal.Signals) -> None:
    server = ComfyUI(tmp_path / "base")
    try:
        server.wait_until_ready()
        await _interrupt_the_start(server)
        run = await run_prompt(server, make_t2va())
        assert run.of("execution_success"), run.of("execution_error")
        (pid,) = server.engine_pids()
        family = _family(pid)
        assert len(family) >= 4, "server, fleet and two ranks"
    finally:
        server.stop(how)
    assert _wait(lambda: _all_gone(family), 20), "the engine outlived ComfyUI"
