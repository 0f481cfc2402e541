"""A local engine's life beside ComfyUI: started on use, replaced when it dies, gone with ComfyUI."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.comfyui.conftest import make_t2va
from tests.support.comfyui import ComfyUI, run_prompt
from tests.support.ranks import wait_until

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


async def test_a_lost_rank_is_told_with_the_path_of_the_log(comfyui: ComfyUI) -> None:
    await run_prompt(comfyui, make_t2va(sample__seed=27))
    with urllib.request.urlopen(comfyui.engine_url() + "/v1/info", timeout=10) as answer:
        ranks = json.loads(answer.read())["pids"]

    async def kill(kind: str, data: Any) -> None:
        if kind == "text" and data[0] == "sample" and "step 2 of" in data[1] and psutil.pid_exists(ranks[1]):
            os.kill(ranks[1], signal.SIGKILL)

    lost = await run_prompt(comfyui, make_t2va(sample__seed=28, sample__steps=1000), on_event=kill)
    assert re.search(r"The engine's log is \S+\.log", lost.error)
    again = await run_prompt(comfyui, make_t2va(sample__seed=29))
    assert again.of("execution_success"), again.of("execution_error")


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
    assert re.fullmatch(
        rf"Engine at {comfyui.engine_url()} \(demo-\w+\)\nPlanned: .* a rank at most, .*", run.texts("connect")[-1]
    )


async def test_a_checkpoint_is_named_on_the_node(comfyui: ComfyUI, tiny_checkpoint: Path) -> None:
    run = await run_prompt(comfyui, make_t2va(connect__model_path=str(tiny_checkpoint), connect__rank_weights="x"))
    assert run.texts("connect") == ["Failed"]
    prompt = make_t2va(connect__model_path=f"'{tiny_checkpoint}'", connect__device="cpu", connect__ranks=1)
    run = await run_prompt(comfyui, prompt)
    assert run.texts("connect") == [f"Model: {tiny_checkpoint.name}"]
    assert run.of("execution_success"), run.of("execution_error")
    assert len(comfyui.engine_pids()) == 1, "the idle demo engine made room"
    await run_prompt(comfyui, make_t2va(sample__seed=24))


def _post(url: str, request: dict[str, Any]) -> str:
    body = urllib.request.Request(url, json.dumps(request).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(body, timeout=10) as answer:
        return str(json.loads(answer.read())["job_id"])


def _health(url: str) -> str:
    with urllib.request.urlopen(url + "/v1/health", timeout=10) as answer:
        return str(json.loads(answer.read())["status"])


async def test_a_new_engine_takes_the_place_of_idle_ones_and_not_of_one_that_works(comfyui: ComfyUI) -> None:
    await run_prompt(comfyui, make_t2va(sample__seed=25))
    (first,) = comfyui.engine_pids()
    url = comfyui.engine_url()
    long = {"prompt": "A long job of another client.", "seconds": 1, "width": 64, "height": 64, "steps": 1000}
    job = _post(url + "/v1/generate", long)
    beside = await run_prompt(comfyui, make_t2va(connect__dtype="fp32", connect__ranks=1))
    assert beside.of("execution_success"), beside.of("execution_error")
    assert len(comfyui.engine_pids()) == 2
    assert first in comfyui.engine_pids()
    assert "demo still works on a job" in beside.texts("encode")[-1]
    urllib.request.urlopen(urllib.request.Request(f"{url}/v1/jobs/{job}", method="DELETE"), timeout=10).close()
    # A cancel is taken up at the next step, which a loaded machine may keep waiting.
    assert await asyncio.to_thread(wait_until, lambda: _health(url) == "ready", seconds=30)
    again = await run_prompt(comfyui, make_t2va(connect__dtype="bf16", connect__ranks=1))
    assert again.of("execution_success"), again.of("execution_error")
    (third,) = comfyui.engine_pids()
    assert third != first
    assert not any("still works" in text for text in again.texts("encode"))
    await run_prompt(comfyui, make_t2va(sample__seed=26))
    assert third not in comfyui.engine_pids()


async def test_an_engine_of_a_comfyui_with_a_token_asks_for_it_and_gets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("H3_ENGINE_TOKEN", "a-token-of-some-length")
    server = ComfyUI(tmp_path / "base")
    try:
        server.wait_until_ready()
        run = await run_prompt(server, make_t2va())
        assert run.of("execution_success"), run.of("execution_error")
    finally:
        server.stop()


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
