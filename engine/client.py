"""The engine's client for programs on asyncio: the command line and the tests use it; it shows how to write another.

`EngineClient.run` runs one job from request to files, through lost connections. Parts are sent from files and received
into files, a slice at a time. Raises the engine's own typed errors, `EngineDeadError` (``connection_lost``) when it
cannot be reached. Leaving a job early (an exception, a cancelled task) closes with code 1000, which cancels it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

import aiohttp

from .contract import framing
from .contract.errors import EngineDeadError, EngineError, RequestError, error_from_dict
from .contract.fields import parse_json
from .contract.messages import Part
from .contract.version import PROTOCOL_VERSION
from .wire import PartWriter, describe_part, read_slice

RECONNECT_SECONDS = 25.0
"""How long a lost connection is tried again: shorter than the engine keeps the job by default (30 s)."""
_RETRY_SECONDS = 0.5
_LOST = (aiohttp.ClientError, ConnectionError, asyncio.TimeoutError)


EventHandler: TypeAlias = Callable[[Mapping[str, Any]], None]


@dataclass
class Outcome:
    """What a job gave.

    Attributes:
        outputs: name → files in order of their index; of several outputs one after the other.
        by_output: the same for each output: its number → name → files.
        facts: of the ``done`` event. seconds: from start to end.
    """

    job_id: str
    outputs: dict[str, list[Path]] = field(default_factory=dict)
    by_output: dict[int, dict[str, list[Path]]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def add(self, event: Mapping[str, Any]) -> None:
        """Take the file of an ``output`` event."""
        name, path = event["name"], event["path"]
        self.outputs.setdefault(name, []).append(path)
        self.by_output.setdefault(event.get("output", 0), {}).setdefault(name, []).append(path)


class Channel:
    """One websocket. Events come from `events`; an ``output`` has its file in ``path`` once that is complete."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, folder: Path) -> None:
        self.socket = socket
        self._folder = folder
        self._last_message = 0
        self._incoming: dict[int, tuple[dict[str, Any], PartWriter]] = {}

    async def submit(
        self, request: Mapping[str, Any], *, job_id: str, inputs: Mapping[str, Path] | None = None
    ) -> None:
        """Send a request and its parts (part name → file: safetensors, or a picture, clip or sound).

        Raises:
            RequestError: ``body_too_large`` for a request that would end the connection.
            OSError: a file cannot be read.
        """
        inputs = inputs or {}
        self._last_message += 1
        message = self._last_message
        parts = [await asyncio.to_thread(describe_part, name, path) for name, path in inputs.items()]
        text = json.dumps(
            {
                "type": "submit",
                "protocol": PROTOCOL_VERSION,
                "job_id": job_id,
                "request": dict(request),
                "message": message,
                "parts": [dataclasses.asdict(part) for part in parts],
            }
        )
        if len(text) > framing.MAX_SLICE:
            raise RequestError(
                "body_too_large",
                f"The request is {len(text)} bytes of JSON; a message has at most {framing.MAX_SLICE}.",
                field="request",
                remedy="Use fewer points in the mask document, or paint with a picture.",
            )
        await self.socket.send_str(text)
        for index, path in enumerate(inputs.values()):
            with path.open("rb") as file:
                for start, end in framing.slices(parts[index].bytes):
                    frame = await asyncio.to_thread(read_slice, file, message=message, part=index, start=start, end=end)
                    await self.socket.send_bytes(frame)

    async def cancel(self, job_id: str) -> None:
        """Cancel a job at its next boundary."""
        await self.socket.send_json({"type": "cancel", "job_id": job_id})

    async def resume(self, job_id: str, after: int) -> None:
        """Go on with the events after number ``after``."""
        await self.socket.send_json({"type": "resume", "protocol": PROTOCOL_VERSION, "job_id": job_id, "after": after})

    async def received(self, job_id: str, after: int) -> None:
        """Tell that everything up to event ``after`` arrived."""
        await self.socket.send_json({"type": "received", "job_id": job_id, "after": after})

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """Yield events until the connection ends.

        Raises:
            RequestError: a part does not match its announcement.
        """
        async for message in self.socket:
            if message.type is aiohttp.WSMsgType.TEXT:
                event = parse_json(message.data)
                if event["type"] == "output":
                    self._expect(event)
                else:
                    yield event
            elif message.type is aiohttp.WSMsgType.BINARY:
                complete = await self._receive(message.data)
                if complete is not None:
                    yield complete

    def _expect(self, event: dict[str, Any]) -> None:
        # The engine's names are not trusted with a path.
        path = self._folder / f"{uuid.uuid4()}.{'mp4' if event['format'] == 'mp4' else 'safetensors'}"
        part = Part(**event["parts"][0])
        self._incoming[event["message"]] = ({**event, "path": path}, PartWriter(part, path, field=part.name))

    async def _receive(self, frame: bytes) -> dict[str, Any] | None:
        number, _, offset, payload = framing.unpack_slice(frame)
        event, writer = self._incoming[number]
        await asyncio.to_thread(writer.write, offset, payload)
        if not writer.complete:
            return None
        await asyncio.to_thread(writer.finish)
        del self._incoming[number]
        return event

    async def close(self, code: int = aiohttp.WSCloseCode.OK) -> None:
        """Close; code 1000 cancels what this connection still has running."""
        await self.socket.close(code=code)


class EngineClient:
    """An engine at ``url``. Use it as an async context manager."""

    def __init__(self, url: str, *, token: str | None = None) -> None:
        """``url`` is like ``http://127.0.0.1:8190``; ``token`` the engine's bearer token."""
        self.url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    async def __aenter__(self) -> EngineClient:
        """Open the client's session."""
        self._session = aiohttp.ClientSession(headers=self._headers)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the client's session."""
        await self._session.close()

    async def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Call a JSON route.

        Raises:
            EngineError: the engine's answer, or ``connection_lost``.
        """
        try:
            async with self._session.request(method, self.url + path, json=body) as answer:
                data = parse_json(await answer.read())
        except (*_LOST, RequestError) as error:
            raise self._lost(error) from error
        if "error" in data and answer.status >= 400:
            raise error_from_dict(data["error"])
        return data

    async def health(self) -> dict[str, Any]:
        """Return ``GET /v1/health``."""
        return await self.call("GET", "/v1/health")

    @contextlib.asynccontextmanager
    async def connect(self, folder: Path) -> AsyncIterator[Channel]:
        """Open a websocket whose outputs are received into ``folder``; leaving closes it with code 1000.

        Raises:
            EngineError: the engine's refusal, or ``connection_lost``.
        """
        try:
            socket = await self._session.ws_connect(
                self.url + "/v1/ws", max_msg_size=framing.MAX_SLICE + framing.HEADER.size + 1
            )
        except aiohttp.WSServerHandshakeError as error:
            await self.health()
            raise self._lost(error) from error
        except _LOST as error:
            raise self._lost(error) from error
        channel = Channel(socket, folder)
        try:
            yield channel
        finally:
            await channel.close()

    async def run(
        self,
        request: Mapping[str, Any],
        *,
        folder: Path,
        inputs: Mapping[str, Path] | None = None,
        on_event: EventHandler | None = None,
    ) -> Outcome:
        """Run one job to its end and return its files in ``folder``.

        Raises:
            EngineError: the job's error, ``connection_lost``, or ``body_too_large`` for the request's JSON.
            OSError: an input cannot be read.
        """
        outcome = Outcome(str(uuid.uuid4()))
        seen, give_up, resuming = 0, 0.0, False
        clock = asyncio.get_running_loop().time

        def take(event: Mapping[str, Any]) -> None:
            nonlocal seen
            seen = max(seen, event["seq"])
            if event["type"] == "output":
                outcome.add(event)
            if on_event is not None:
                on_event(event)

        while True:
            try:
                async with self.connect(folder) as channel:
                    give_up = clock() + RECONNECT_SECONDS
                    if resuming:
                        opening = channel.resume(outcome.job_id, seen)
                    else:
                        opening = channel.submit(request, job_id=outcome.job_id, inputs=inputs)
                    resuming = True
                    if await self._attend(channel, opening, outcome, take):
                        return outcome
            except EngineError as error:
                if error.code == "unknown_job" and not seen:
                    # The connection was lost before the engine had the whole request.
                    resuming = False
                elif error.code != "connection_lost" or clock() > give_up:
                    raise
            except _LOST as error:
                if clock() > give_up:
                    raise self._lost(error) from error
            await asyncio.sleep(_RETRY_SECONDS)

    async def _attend(
        self,
        channel: Channel,
        opening: Coroutine[Any, Any, None],
        outcome: Outcome,
        take: EventHandler,
    ) -> bool:
        """Send the ``opening`` and take events; return whether the job is done, False for a lost connection."""
        sending = asyncio.create_task(opening)
        closing: list[asyncio.Task[None]] = []

        def stop(task: asyncio.Task[None]) -> None:
            # What was not sent is not answered: nothing more comes.
            if not task.cancelled() and task.exception() is not None:
                closing.append(asyncio.create_task(channel.close()))

        sending.add_done_callback(stop)
        try:
            async for event in channel.events():
                take(event)
                if event["type"] == "output" and not event["last"]:
                    await channel.received(outcome.job_id, event["seq"])
                if event["type"] == "error":
                    raise error_from_dict(event["error"])
                if event["type"] == "done":
                    outcome.facts, outcome.seconds = event["facts"], event["seconds"]
                    return True
        finally:
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError, *_LOST):
                await sending
        return False

    def _lost(self, error: Exception) -> EngineDeadError:
        return EngineDeadError(
            "connection_lost",
            f"The engine cannot be reached: {error}",
            field="url",
            value=self.url,
            remedy="Start it with 'h3-engine serve', or correct the address.",
        )
