"""Forms over a real socket, without ranks: how much a client may send, and what stays of what it did not finish."""

from __future__ import annotations

import asyncio
import dataclasses
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestServer

from engine.checkpoint import open_checkpoint
from engine.config import build_config
from engine.contract.limits import Limits
from engine.controller.controller import Controller
from engine.controller.fleet import FleetProcess
from engine.controller.folder import RunFolder, open_run_folder
from engine.server.app import build_app
from tests.support.forms import CONTENT_TYPE, form
from tests.support.jobs import QUICK

pytestmark = pytest.mark.timeout(60)

LIMIT = 300_000
BODY = {**{name: value for name, value in QUICK.items() if name != "task"}, "guides": [{"media": {"part": "a"}}]}


@pytest.fixture
async def controller(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Controller]:
    monkeypatch.delenv("H3_ENGINE_TOKEN", raising=False)
    monkeypatch.setattr(FleetProcess, "send", lambda _, message: None)
    config = build_config({"model": str(tiny_checkpoint), "device": "cpu"})
    config = dataclasses.replace(config, limits=Limits(max_queue=2, max_body_bytes=LIMIT, resume_seconds=0.1))
    made = Controller(config, open_checkpoint(tiny_checkpoint), open_run_folder(tmp_path, room=0))
    yield made
    made.fleet_ended(0)
    await made._desk.stop()


@pytest.fixture
async def server(controller: Controller) -> AsyncIterator[TestServer]:
    async with TestServer(build_app(controller)) as started:
        yield started


async def post(server: TestServer, body: Any, **headers: str) -> tuple[int, dict[str, Any]]:
    async with aiohttp.ClientSession() as session:
        url = server.make_url("/v1/generate")
        async with session.post(url, data=body, headers={**CONTENT_TYPE, **headers}) as answer:
            return answer.status, await answer.json()


async def until_clean(controller: Controller) -> None:
    async with asyncio.timeout(10):
        while list(controller.folder.path.glob("upload-*")):
            await asyncio.sleep(0.02)


async def pieces(body: bytes, *, stop: int | None = None) -> AsyncIterator[bytes]:
    """Yield ``body`` without saying how long it is; wait for ever after ``stop`` bytes."""
    for start in range(0, len(body), 16_384):
        if stop is not None and start >= stop:
            await asyncio.Event().wait()
        yield body[start : start + 16_384]


@pytest.mark.parametrize("announced", [True, False])
async def test_a_form_over_the_limit_is_refused_and_nothing_of_it_stays(
    server: TestServer, controller: Controller, announced: bool
) -> None:
    body = form(BODY, {"a": b"x" * (LIMIT + 1)})
    status, answer = await post(server, body if announced else pieces(body))
    assert (status, answer["error"]["code"], answer["error"]["field"]) == (413, "body_too_large", "parts")
    await until_clean(controller)
    status, answer = await post(server, form(BODY, {"a": b"x" * 1000}))
    assert status == 202, answer


async def test_a_form_that_fits_becomes_a_job_that_waits_for_its_media(
    server: TestServer, controller: Controller
) -> None:
    job_id = str(uuid.uuid4())
    status, job = await post(server, form({**BODY, "job_id": job_id}, {"a": b"x" * (LIMIT // 2)}))
    assert (status, job["job_id"], job["reason"]) == (202, job_id, "media")
    assert controller.stats.bytes_in == LIMIT // 2
    status, answer = await post(server, form({**BODY, "job_id": job_id}, {"a": b"x"}))
    assert (status, answer["error"]["code"]) == (409, "duplicate_job")


async def test_a_client_that_leaves_in_the_middle_leaves_nothing(server: TestServer, controller: Controller) -> None:
    body = form(BODY, {"a": b"x" * (LIMIT // 2)})
    sending = asyncio.create_task(post(server, pieces(body, stop=80_000)))
    async with asyncio.timeout(10):
        while not list(controller.folder.path.glob("upload-*")):
            await asyncio.sleep(0.02)
    assert len(controller._places) == 1
    sending.cancel()
    await until_clean(controller)
    assert (controller.waiting, controller._places) == (0, set())


async def test_as_many_forms_are_taken_at_once_as_jobs_may_wait(server: TestServer, controller: Controller) -> None:
    body = form(BODY, {"a": b"x" * (LIMIT // 2)})
    sending = [asyncio.create_task(post(server, pieces(body, stop=80_000))) for _ in range(2)]
    async with asyncio.timeout(10):
        while len(controller._places) < 2:
            await asyncio.sleep(0.02)
    status, answer = await post(server, form(BODY, {"a": b"x"}))
    assert (status, answer["error"]["code"]) == (503, "queue_full")
    for task in sending:
        task.cancel()
    await until_clean(controller)


async def test_a_form_without_room_is_refused_before_it_is_read(
    server: TestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunFolder, "free_bytes", lambda _: 1000)
    status, answer = await post(server, form(BODY, {"a": b"x" * 2000}))
    assert (status, answer["error"]["code"], answer["error"]["field"]) == (503, "queue_full", "parts")


async def test_a_disk_that_fills_up_meanwhile_is_no_fault_of_the_callers(
    server: TestServer, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = RunFolder.make

    def full(folder: RunFolder, kind: str) -> Path:
        path = make(folder, kind)
        (path / "0").symlink_to("/dev/full")
        return path

    monkeypatch.setattr(RunFolder, "make", full)
    status, answer = await post(server, form(BODY, {"a": b"x" * 100_000}))
    assert (status, answer["error"]["code"]) == (503, "queue_full")
    await until_clean(controller)


@pytest.mark.parametrize(
    "content_type",
    ["multipart/form-data", "multipart/form-data; boundary=", 'multipart/form-data; boundary="' + "b" * 200 + '"'],
)
async def test_a_form_without_a_usable_boundary_is_refused(server: TestServer, content_type: str) -> None:
    status, answer = await post(server, form(BODY, {"a": b"x"}), **{"Content-Type": content_type})
    assert (status, answer["error"]["code"]) == (400, "invalid_json")


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"Content-Disposition: form-data\r\n",
        b'Content-Disposition: attachment; name="a"\r\nContent-Type: multipart/mixed; boundary=inner\r\n',
        b'Content-Disposition: form-data; name="a"\r\nContent-Length: -5\r\n',
        b'Content-Disposition: form-data; name="a"\r\nContent-Length: many\r\n',
        b'Content-Disposition: form-data; name="a"\r\nContent-Length: 999999999\r\n',
        b'Content-Disposition: form-data; name="' + b"n" * 70_000 + b'"\r\n',
        b"X: " + b"x" * 70_000 + b"\r\n",
        b"no colon here\r\n",
    ],
    ids=lambda head: str(head[:50]),
)
async def test_a_field_with_a_bad_head_is_refused(server: TestServer, controller: Controller, head: bytes) -> None:
    good = form(BODY, {})
    bad = b"--a-boundary\r\n" + head + b"\r\nx\r\n--a-boundary--\r\n"
    status, answer = await post(server, good[: good.rindex(b"--a-boundary--")] + bad)
    assert (status, answer["error"]["kind"]) == (400, "RequestError"), answer
    await until_clean(controller)
