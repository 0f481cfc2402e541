"""What the server answers by itself: its application in this process, without ranks, over a real socket."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestServer

from engine.checkpoint import open_checkpoint
from engine.client import Channel, EngineClient
from engine.config import build_config
from engine.contract.errors import EngineBusyError, RequestError
from engine.contract.framing import pack_slice
from engine.contract.limits import Limits
from engine.contract.version import PROTOCOL_VERSION
from engine.controller.controller import Controller
from engine.controller.fleet import FleetProcess
from engine.controller.folder import open_run_folder
from engine.server.app import build_app
from engine.server.uploads import MAX_PARTS, MAX_UPLOADS
from tests.support.jobs import QUICK, new_id, submit_message, tensors, wait_for_event

pytestmark = pytest.mark.timeout(60)

BLOB = tensors({"data": ("U8", [3], 3)})
TOKEN = "word"


@pytest.fixture
async def controller(tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Controller:
    monkeypatch.delenv("H3_ENGINE_TOKEN", raising=False)
    monkeypatch.setattr(FleetProcess, "send", lambda _, message: None)
    config = build_config({"model": str(tiny_checkpoint), "device": "cpu"})
    config = dataclasses.replace(config, limits=Limits(max_queue=12, resume_seconds=0.1), token=TOKEN)
    return Controller(config, open_checkpoint(tiny_checkpoint), open_run_folder(tmp_path, room=0))


@pytest.fixture
async def server(controller: Controller) -> AsyncIterator[TestServer]:
    async with TestServer(build_app(controller)) as started:
        yield started


@pytest.fixture
async def client(server: TestServer) -> AsyncIterator[EngineClient]:
    async with EngineClient(str(server.make_url("/")), token=TOKEN) as made:
        yield made


async def announce(channel: Channel, number: int, *, parts: int = 1, job_id: str | None = None, **changes: Any) -> None:
    part = {"bytes": len(BLOB), "sha256": hashlib.sha256(BLOB).hexdigest()}
    named = [{"name": f"part{index}", **part} for index in range(parts)]
    message = submit_message({"task": "echo"}, job_id=job_id or new_id(), message=number, parts=named)
    await channel.socket.send_json({**message, **changes})


async def refusal(channel: Channel) -> dict[str, Any]:
    error: dict[str, Any] = (await wait_for_event(channel, "error"))["error"]
    return error


async def until(controller: Controller, waiting: int) -> None:
    """Wait for the number of jobs that wait."""
    deadline = time.monotonic() + 10
    while controller.waiting != waiting:
        assert time.monotonic() < deadline, controller.waiting
        await asyncio.sleep(0.01)


async def test_unfinished_uploads_of_one_connection_are_few(client: EngineClient, tmp_path: Path) -> None:
    async with client.connect(tmp_path) as channel:
        for number in range(1, MAX_UPLOADS + 2):
            await announce(channel, number)
        error = await refusal(channel)
    assert (error["code"], error["value"]) == ("queue_full", MAX_UPLOADS + 1)


async def test_unfinished_uploads_of_all_connections_have_places_in_the_queue(
    client: EngineClient, controller: Controller, tmp_path: Path
) -> None:
    async with client.connect(tmp_path) as first, client.connect(tmp_path) as second:
        for number in range(1, MAX_UPLOADS + 1):
            await announce(first, number)
        await first.cancel(new_id())
        assert (await refusal(first))["code"] == "unknown_job"
        for number in range(1, 6):
            await announce(second, number)
        full = await refusal(second)
        with pytest.raises(EngineBusyError):
            await client.call("POST", "/v1/generate", {key: value for key, value in QUICK.items() if key != "task"})
        # A place that was kept is there when the parts have come.
        await second.socket.send_bytes(pack_slice(1, 0, 0, BLOB))
        await until(controller, 1)
        assert full["code"] == "queue_full"
    controller.check_new(new_id())


async def test_announced_parts_hold_no_file_descriptor(client: EngineClient, tmp_path: Path) -> None:
    async with client.connect(tmp_path) as channel:
        before = len(list(Path("/proc/self/fd").iterdir()))
        for number in range(1, MAX_UPLOADS + 1):
            await announce(channel, number, parts=MAX_PARTS)
        for index in range(MAX_PARTS - 1):
            await channel.socket.send_bytes(pack_slice(1, index, 0, BLOB))
        await channel.cancel(new_id())
        assert (await refusal(channel))["code"] == "unknown_job"
        assert len(list(Path("/proc/self/fd").iterdir())) < before + MAX_PARTS


async def test_without_a_folder_for_the_parts_the_job_is_refused_and_its_place_is_free(
    client: EngineClient, controller: Controller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, job_id = tempfile.mkdtemp, new_id()

    def fail(prefix: str, dir: Path) -> str:
        if prefix.startswith(failing):
            raise OSError(24, "Too many open files")
        return make(prefix=prefix, dir=dir)

    monkeypatch.setattr("engine.controller.folder.tempfile.mkdtemp", fail)
    async with client.connect(tmp_path) as channel:
        failing = "upload"
        await announce(channel, 1, job_id=job_id)
        first = await refusal(channel)
        failing = "job"
        await announce(channel, 2, job_id=job_id)
        await channel.socket.send_bytes(pack_slice(2, 0, 0, BLOB))
        second = await refusal(channel)
        folders = [path.name for path in controller.folder.path.iterdir() if path.is_dir()]
        left = [name for name in folders if not name.startswith("cache-")]
        failing = "nothing"
        await announce(channel, 3, job_id=job_id)
        await channel.socket.send_bytes(pack_slice(3, 0, 0, BLOB))
        await until(controller, 1)
    assert (first["code"], second["code"]) == ("queue_full", "queue_full")
    assert "Too many open files" in first["message"]
    assert left == []


async def test_the_number_of_a_refused_message_is_used_up(client: EngineClient, tmp_path: Path) -> None:
    async with client.connect(tmp_path) as channel:
        await announce(channel, 1, protocol=99)
        assert (await refusal(channel))["code"] == "protocol_mismatch"
        await announce(channel, 1)
        error = await refusal(channel)
    assert (error["code"], error["field"], error["value"]) == ("out_of_range", "message", 1)


@pytest.mark.parametrize("after", [-1, 3, 2**40])
async def test_going_on_after_an_event_that_never_was_is_refused(
    client: EngineClient, tmp_path: Path, after: int
) -> None:
    async with client.connect(tmp_path) as channel:
        await channel.socket.send_json(submit_message(QUICK, job_id=(job_id := new_id())))
        await wait_for_event(channel, "queued")
        await channel.resume(job_id, after)
        error = await refusal(channel)
        assert (error["code"], error["field"], error["value"]) == ("out_of_range", "after", after)
        await channel.socket.send_json({"type": "resume", "protocol": PROTOCOL_VERSION, "job_id": job_id})
        assert (await wait_for_event(channel, "queued"))["seq"] == 1


async def test_a_prompt_too_long_by_its_bytes_is_refused_at_once(client: EngineClient) -> None:
    began = time.monotonic()
    with pytest.raises(RequestError) as caught:
        await client.call("POST", "/v1/generate", {"prompt": "boat " * 200_000})
    assert caught.value.code == "prompt_too_long"
    assert time.monotonic() - began < 5


async def raw(server: TestServer, method: str, path: str, **options: Any) -> tuple[int, dict[str, Any]]:
    """Return (status, error) of a request that `EngineClient` would not send."""
    headers = {"Authorization": f"Bearer {TOKEN}", **options.pop("headers", {})}
    url = server.make_url(path)
    async with aiohttp.ClientSession() as session, session.request(method, url, headers=headers, **options) as answer:
        return answer.status, (await answer.json())["error"]


async def test_a_token_that_is_no_text_is_a_wrong_token(server: TestServer) -> None:
    status, error = await raw(server, "GET", "/v1/health", headers={"Authorization": "Bearer \udcff"})
    assert (status, error["code"]) == (401, "unauthorized")


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_a_body_that_is_not_what_its_encoding_says_is_refused(server: TestServer, encoding: str) -> None:
    headers = {"Content-Encoding": encoding}
    status, error = await raw(server, "POST", "/v1/generate", data=b"\xffgarbage" * 9, headers=headers)
    assert (status, error["code"]) == (400, "invalid_json")


async def test_asking_for_the_websocket_without_an_upgrade_is_told_so(server: TestServer) -> None:
    status, error = await raw(server, "GET", "/v1/ws")
    assert status == 400
    assert "WebSocket" in error["message"]
    assert "does not exist" not in error["message"]


async def test_a_route_asked_in_another_way_than_it_takes_says_the_way(server: TestServer) -> None:
    status, error = await raw(server, "GET", "/v1/generate")
    assert (status, error["message"]) == (405, "GET /v1/generate is not possible: this route takes POST.")
    status, error = await raw(server, "POST", "/v1/health")
    assert (status, error["message"]) == (405, "POST /v1/health is not possible: this route takes GET.")


@pytest.mark.parametrize("job_id", [0, False, "", [], {}])
async def test_a_job_id_that_is_there_is_never_replaced(
    client: EngineClient, controller: Controller, job_id: Any
) -> None:
    with pytest.raises(RequestError) as caught:
        await client.call("POST", "/v1/generate", {"prompt": "a boat", "job_id": job_id})
    assert caught.value.field == "job_id"
    assert not list(controller.jobs)
