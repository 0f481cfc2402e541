"""A real ComfyUI server with this pack as its only custom node, and a client that runs prompts on it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import struct
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from tests.support.interrupts import heed_interrupts
from tests.support.side_folder import with_media_libraries

ROOT = Path(__file__).resolve().parent.parent.parent
HOME = Path(os.environ.get("H3_COMFYUI_HOME", ROOT / ".cache" / "comfyui"))
PACK_NAME = "ComfyUI-H3-Engine"
_TEXT_FRAME = 3


class ComfyUI:
    """A ComfyUI server process; its files lie below ``base``. Its engines find the media libraries as users' do."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.log = base / "comfyui.log"
        (base / "custom_nodes").mkdir(parents=True)
        (base / "custom_nodes" / PACK_NAME).symlink_to(ROOT)
        (base / "custom_nodes" / "test_nodes").symlink_to(ROOT / "tests" / "support" / "comfyui_nodes")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        command = [HOME / "venv/bin/python", "main.py", "--cpu", "--listen", "127.0.0.1", "--port", str(port)]
        command += ["--base-directory", str(base), "--database-url", "sqlite:///:memory:"]
        command += ["--disable-auto-launch", "--disable-api-nodes"]
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                cwd=HOME / "app",
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=with_media_libraries(),
                preexec_fn=heed_interrupts,
            )

    def wait_until_ready(self, seconds: float = 120) -> None:
        """Wait until the server answers."""
        end = time.monotonic() + seconds
        while not self._answers():
            assert self.process.poll() is None, self.log.read_text(errors="replace")[-3000:]
            assert time.monotonic() < end, "ComfyUI did not answer"
            time.sleep(0.1)

    def _answers(self) -> bool:
        try:
            self.get("/queue")
        except OSError:
            return False
        return True

    def get(self, path: str) -> Any:
        """Return the JSON at ``path``."""
        return json.loads(self.get_bytes(path))

    def get_bytes(self, path: str) -> bytes:
        """Return the body at ``path``."""
        with urllib.request.urlopen(self.url + path, timeout=10) as answer:
            return bytes(answer.read())

    def post(self, path: str, body: Any) -> None:
        """Post JSON."""
        data = json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=10).close()

    def engine_pids(self) -> list[int]:
        """Return the process ids of the engines' servers that this ComfyUI started."""
        children = psutil.Process(self.process.pid).children()
        return [child.pid for child in children if child.status() != "zombie" and "serve" in child.cmdline()]

    def command_of(self, pid: int) -> list[str]:
        """Return the command line of an engine."""
        return psutil.Process(pid).cmdline()

    def engine_url(self) -> str:
        """Return the address of the one engine that this ComfyUI started."""
        (url,) = self.engine_urls()
        return url

    def engine_urls(self) -> list[str]:
        """Return the addresses of the engines that this ComfyUI started."""
        urls = []
        for pid in self.engine_pids():
            connections = psutil.Process(pid).net_connections("tcp")
            (port,) = {c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN}
            urls.append(f"http://127.0.0.1:{port}")
        return urls

    def stop_engine_with(self, option: str) -> list[str]:
        """Stop the one engine that was started with ``option``, for tests that know one engine; return its command."""
        commands = {pid: self.command_of(pid) for pid in self.engine_pids()}
        ((pid, command),) = [(pid, command) for pid, command in commands.items() if option in command]
        psutil.Process(pid).terminate()
        end = time.monotonic() + 40
        while pid in self.engine_pids():
            assert time.monotonic() < end, "the engine did not stop"
            time.sleep(0.1)
        return command

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server and wait for it."""
        self.process.send_signal(how)
        try:
            self.process.wait(40)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@dataclass
class Run:
    """What came of a prompt.

    Attributes:
        status: HTTP status of ``/prompt``.
        answer: its JSON.
        events: (type, data) of the websocket, in order; ``text`` for a text on a node.
        seconds: from the prompt to its end.
    """

    status: int
    answer: dict[str, Any]
    events: list[tuple[str, Any]] = field(default_factory=list)
    seconds: float = 0.0

    def of(self, kind: str) -> list[Any]:
        """Return the data of the events of one type."""
        return [data for name, data in self.events if name == kind]

    @property
    def error(self) -> str:
        """The message shown on the node that failed."""
        return str(self.of("execution_error")[0]["exception_message"])

    def texts(self, node: str) -> list[str]:
        """Return the texts shown on a node, in order."""
        return [text for shown, text in self.of("text") if shown == node]

    def progress(self, node: str) -> list[float]:
        """Return the values of a node's progress bar, 0..1, in order."""
        states = [data["nodes"].get(node) for data in self.of("progress_state")]
        return [state["value"] / state["max"] for state in states if state and state["max"]]


OnEvent = Callable[[str, Any], Awaitable[None]]


async def run_prompt(
    server: ComfyUI, prompt: dict[str, Any], *, on_event: OnEvent | None = None, seconds: float = 180
) -> Run:
    """Run ``prompt`` (API format) and return its events up to its end."""
    client_id = uuid.uuid4().hex
    async with (
        aiohttp.ClientSession(server.url) as http,
        http.ws_connect(f"/ws?clientId={client_id}", max_msg_size=0) as socket,
    ):
        await socket.send_json({"type": "feature_flags", "data": {"supports_preview_metadata": True}})
        started = time.monotonic()
        async with http.post("/prompt", json={"prompt": prompt, "client_id": client_id}) as answer:
            run = Run(answer.status, await answer.json())
        if run.status == 200:
            await asyncio.wait_for(_listen(socket, run, on_event), seconds)
        run.seconds = time.monotonic() - started
        return run


async def _listen(socket: aiohttp.ClientWebSocketResponse, run: Run, on_event: OnEvent | None) -> None:
    async for message in socket:
        kind, data = _read(message)
        run.events.append((kind, data))
        if on_event is not None:
            await on_event(kind, data)
        ended = kind in ("execution_success", "execution_error", "execution_interrupted")
        if ended and data["prompt_id"] == run.answer["prompt_id"]:
            return


def _read(message: aiohttp.WSMessage) -> tuple[str, Any]:
    if message.type is aiohttp.WSMsgType.TEXT:
        data = json.loads(message.data)
        return data["type"], data["data"]
    (code,) = struct.unpack_from(">I", message.data)
    if code != _TEXT_FRAME:
        return f"binary_{code}", message.data
    (length,) = struct.unpack_from(">I", message.data, 4)
    return "text", (message.data[8 : 8 + length].decode(), message.data[8 + length :].decode())
