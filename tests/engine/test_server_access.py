"""Who may ask an engine, and what it opens to the network."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from engine.client import EngineClient
from engine.contract.errors import ConfigError, RequestError
from tests.support.engine_process import ROOT, EngineProcess
from tests.support.jobs import QUICK

pytestmark = pytest.mark.ranks

TOKEN = "correct-horse"


@pytest.fixture(scope="module")
def guarded(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """Return an engine with a token; its ranks may still be loading."""
    process = EngineProcess(tiny_checkpoint, tmp_path_factory.mktemp("guarded"), ranks=1, token=TOKEN)
    process.launch()
    yield process
    process.stop()


@pytest.mark.parametrize("header", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}])
@pytest.mark.parametrize("path", ["/v1/health", "/v1/jobs", "/v1/ws", "/metrics", "/v1/nothing"])
def test_without_the_token_every_route_answers_401(guarded: EngineProcess, path: str, header: dict[str, str]) -> None:
    status, answer = guarded.call("GET", path, headers={"Authorization": "", **header})
    assert (status, answer["error"]["code"]) == (401, "unauthorized")


async def test_with_the_token_the_client_is_served(guarded: EngineProcess, tmp_path: Path) -> None:
    async with EngineClient(guarded.url, token=TOKEN) as client:
        assert (await client.health())["status"] in ("loading", "ready")
        async with client.connect(tmp_path):
            pass
    async with EngineClient(guarded.url, token="wrong") as client:
        with pytest.raises(RequestError) as caught:
            await client.run(QUICK, folder=tmp_path)
    assert caught.value.code == "unauthorized"


def test_the_command_line_without_the_token_says_where_it_goes(guarded: EngineProcess) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("H3_ENGINE_")}
    words = [sys.executable, "-m", "engine", "status", "--url", guarded.url]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "Set H3_ENGINE_TOKEN to the engine's token." in done.stderr
    assert "None" not in done.stderr


def test_the_token_does_not_reach_the_ranks(guarded: EngineProcess) -> None:
    children = guarded.descendants()
    assert children
    for child in children:
        assert TOKEN not in child.environ().values()
        assert TOKEN not in " ".join(child.cmdline())


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1.evil.example", "http://[::"])
@pytest.mark.parametrize("path", ["/v1/health", "/v1/ws"])
def test_pages_of_other_hosts_are_refused(engine: EngineProcess, path: str, origin: str) -> None:
    status, answer = engine.call("GET", path, headers={"Origin": origin})
    assert (status, answer["error"]["code"]) == (403, "forbidden_origin")


@pytest.mark.parametrize("origin", ["http://127.0.0.1:8188", "http://localhost:8188", "http://[::1]:8188"])
def test_pages_of_this_machine_are_served(engine: EngineProcess, origin: str) -> None:
    assert engine.call("GET", "/v1/health", headers={"Origin": origin})[0] == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8190", "localhost.evil.example", ""])
def test_a_name_that_was_pointed_at_loopback_is_refused(engine: EngineProcess, host: str) -> None:
    status, answer = engine.call("GET", "/v1/health", headers={"Host": host})
    assert (status, answer["error"]["field"]) == (403, "Host")


def test_nothing_listens_outside_loopback(engine: EngineProcess) -> None:
    processes = [psutil.Process(engine.process.pid), *engine.descendants()]
    listening = [
        connection.laddr.ip
        for process in processes
        for connection in process.net_connections("all")
        if connection.family in (socket.AF_INET, socket.AF_INET6)
        and (connection.status == psutil.CONN_LISTEN or connection.type == socket.SOCK_DGRAM)
    ]
    assert len(processes) >= 4
    assert listening
    assert set(listening) <= {"127.0.0.1", "::1"}


def test_the_run_folder_is_private(engine: EngineProcess) -> None:
    fleet = next(child for child in engine.descendants() if "engine.fleet" in child.cmdline())
    arguments = fleet.cmdline()
    folder = Path(arguments[arguments.index("--run-dir") + 1])
    assert folder.stat().st_mode & 0o777 == 0o700
    assert folder.stat().st_uid == os.getuid()


def test_another_address_than_loopback_needs_a_token(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from engine.config import build_config

    monkeypatch.delenv("H3_ENGINE_TOKEN", raising=False)
    with pytest.raises(ConfigError) as caught:
        build_config({"model": str(tiny_checkpoint), "host": "0.0.0.0", "device": "cpu"})
    assert (caught.value.code, caught.value.field) == ("config_conflict", "host")
