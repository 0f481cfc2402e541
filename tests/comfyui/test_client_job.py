"""The pack's client against a real engine that wants a token: results, lost connections, cancel, wrong tokens."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import save

from tests.comfyui.conftest import make_t2va
from tests.support.comfyui import ComfyUI, run_prompt
from tests.support.cutting_proxy import cutting_proxy
from tests.support.engine_process import EngineProcess

pytestmark = [pytest.mark.ranks]

TOKEN = "open-sesame"
MIB = 2**20


@pytest.fixture(scope="module")
def guarded(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """Return an engine of one rank that wants a token."""
    with EngineProcess(tiny_checkpoint, tmp_path_factory.mktemp("guarded"), ranks=1, token=TOKEN) as process:
        yield process


@pytest.fixture(scope="module")
def module(h3pack: ModuleType) -> Any:
    return lambda name: importlib.import_module(f"h3pack.{name}")


async def _run(module: Any, url: str, request: Any, parts: dict[str, bytes], events: list[Any]) -> Any:
    async def keep(event: Any) -> None:
        events.append(event)

    address = module("comfy_h3.address").Address(url, TOKEN)
    return await module("comfy_h3.client").Job(address, request, parts, on_event=keep).run()


@pytest.mark.parametrize(
    ("up", "down"), [(None, None), (None, 5 * MIB), (3 * MIB, None)], ids=["whole", "cut result", "cut request"]
)
async def test_a_lost_connection_is_taken_up_again(
    guarded: EngineProcess, module: Any, up: int | None, down: int | None
) -> None:
    blob = save({"x": torch.randint(0, 255, (9 * MIB,), dtype=torch.uint8)})
    request = module("engine.contract.requests").Echo("echo")
    events: list[Any] = []
    async with cutting_proxy(guarded.url, up=up, down=down) as proxy:
        result = await asyncio.wait_for(_run(module, proxy.url, request, {"x": blob}, events), 60)
    assert [bytes(piece) for piece in result.pieces["x"]] == [blob]
    assert proxy.connections == (1 if up is down is None else 2)


async def test_a_cancelled_task_cancels_its_job_on_the_engine(guarded: EngineProcess, module: Any) -> None:
    messages, requests = module("engine.contract.messages"), module("engine.contract.requests")
    request = requests.Generate("generate", "snow", frames=22, width=64, height=64, steps=1000)
    events: list[Any] = []
    task = asyncio.create_task(_run(module, guarded.url, request, {}, events))
    while not any(isinstance(event, messages.Step) for event in events):
        await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for _ in range(100):
        newest = guarded.get("/v1/jobs")["jobs"][-1]
        if newest["state"] == "cancelled":
            break
        await asyncio.sleep(0.05)
    assert newest["state"] == "cancelled"


async def test_a_wrong_token_is_refused_with_where_to_put_the_right_one(guarded: EngineProcess, module: Any) -> None:
    address = module("comfy_h3.address")
    with pytest.raises(Exception, match=r"\w") as caught:
        await asyncio.to_thread(address.get_json, address.Address(guarded.url, "wrong"), "/v1/info")
    assert caught.value.code == "unauthorized"
    assert "H3_ENGINE_TOKEN" in caught.value.remedy
    request = module("engine.contract.requests").Echo("echo")

    async def ignore(_: Any) -> None:
        return

    job = module("comfy_h3.client").Job(address.Address(guarded.url, "wrong"), request, {}, on_event=ignore)
    with pytest.raises(Exception, match=r"\w") as caught:
        await job.run()
    assert caught.value.code == "unauthorized"


@pytest.mark.comfyui
async def test_the_token_comes_from_comfyuis_settings(comfyui: ComfyUI, guarded: EngineProcess) -> None:
    prompt = make_t2va(connect__url=guarded.url, encode__prompt="With a token.")
    refused = await run_prompt(comfyui, prompt)
    assert "settings" in refused.error
    comfyui.post("/settings", {"H3Engine.Token": TOKEN})
    try:
        run = await run_prompt(comfyui, prompt)
        assert run.of("execution_success"), run.of("execution_error")
        assert TOKEN not in comfyui.log.read_text(errors="replace")
    finally:
        comfyui.post("/settings", {"H3Engine.Token": ""})
