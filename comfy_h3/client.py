"""A job on an engine, over its websocket: sends the request, hands on the events, gathers the result's pieces.

One `Job` is one job id. A lost connection is taken up again with ``resume`` for as long as the engine keeps the job.
Cancelling the task that runs `Job.run` closes the websocket in order, which cancels the job on the engine. Pieces are
received once, straight into their final buffer, and checked against their sha256. Knows nothing of ComfyUI and torch.

Raises the engine's own error, ``bad_checksum`` for damaged pieces, and ``connection_lost``. Needs ``websockets``,
imported on use, so that nodes appear and can say so when it is missing.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import inspect
import json
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from ..engine.contract.errors import ConfigError, EngineError, JobError, error_from_dict
from ..engine.contract.fields import parse_json
from ..engine.contract.framing import pack_slice, slices, unpack_slice
from ..engine.contract.messages import (
    Done,
    Event,
    Failed,
    Output,
    Part,
    Received,
    Resume,
    StageFinished,
    Submit,
    event_from_dict,
)
from ..engine.contract.requests import Request, request_to_dict
from ..engine.contract.version import PROTOCOL_VERSION
from .address import Address, refusal, unreachable

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection, connect

_RESUME_SECONDS = 30.0
_RETRY_SECONDS = 0.5
_CLOSE_SECONDS = 5.0
PieceHandler: TypeAlias = Callable[[Output, bytearray, Mapping[str, Any]], Awaitable[bool]]
_UPLOAD = 1
"""Number of our one message with parts."""


@dataclass(frozen=True)
class Result:
    """What a job gave: the pieces of each output in their order, and counts.

    Attributes:
        pieces: output name → bytes of its pieces (safetensors, or one MP4), those of the first output first.
        facts: of `Done`, on top of those of `Started`, entry by entry in their lists.
        seconds: that the job ran.
        stages: stage → seconds that it ran, of all outputs together; without those whose result was known.
    """

    pieces: dict[str, list[bytearray]]
    facts: dict[str, Any]
    seconds: float
    stages: dict[str, float]


@dataclass
class _Incoming:
    """An output whose bytes are still coming."""

    output: Output
    data: bytearray
    digest: Any = field(default_factory=hashlib.sha256)
    received: int = 0


class Job:
    """One job.

    Args:
        address: the engine.
        request: what to do.
        parts: part name → safetensors bytes.
        on_event: awaited with each event, in order.
        given_up: returns why waiting for the engine is in vain (it exited), else None.
        on_piece: awaited with each piece once it is whole, and the facts known by then; returns whether it took the
            piece, which is then not kept for the result.
    """

    def __init__(
        self,
        address: Address,
        request: Request,
        parts: Mapping[str, bytes],
        *,
        on_event: Callable[[Event], Awaitable[None]],
        given_up: Callable[[], EngineError | None] = lambda: None,
        on_piece: PieceHandler | None = None,
    ) -> None:
        self.job_id = str(uuid.uuid4())
        self._address = address
        self._request = request
        self._parts = parts
        self._on_event = on_event
        self._given_up = given_up
        self._on_piece = on_piece
        self._lost_since: float | None = None
        self._submitted = False
        self._known = False
        self._after = 0
        self._latest = 0
        self._incoming: dict[int, _Incoming] = {}
        self._pieces: dict[str, dict[tuple[int, int], bytearray]] = {}
        self._facts: dict[str, Any] = {}
        self._ran: dict[int, StageFinished] = {}

    async def run(self) -> Result:
        """Run the job to its end.

        Raises:
            EngineError: as the module says.
            asyncio.CancelledError: after the engine was told to cancel.
        """
        _check_websockets()
        done = await self._attempt()
        while done is None:
            done = await self._attempt()
        pieces = {name: [found[place] for place in sorted(found)] for name, found in self._pieces.items()}
        stages: dict[str, float] = {}
        for ran in self._ran.values():
            stages[ran.stage] = stages.get(ran.stage, 0.0) + ran.seconds
        return Result(pieces, self._facts, done.seconds, stages)

    async def _attempt(self) -> Done | None:
        """Talk over one connection; None when it was lost and another one may go on."""
        from websockets.exceptions import ConnectionClosed, InvalidHandshake

        try:
            async with _connect(self._address) as socket:
                self._lost_since = None
                try:
                    return await self._talk(socket)
                finally:
                    # In order (code 1000), which cancels what still runs; an exception alone would close with 1011.
                    await socket.close()
        except (OSError, asyncio.TimeoutError, ConnectionClosed, InvalidHandshake) as error:
            self._check_hope(error)
            await asyncio.sleep(_RETRY_SECONDS)
            return None

    def _check_hope(self, error: BaseException) -> None:
        from websockets.exceptions import InvalidStatus

        if isinstance(error, InvalidStatus):
            raise refusal(error.response.status_code, bytes(error.response.body or b""), self._address) from error
        reason = self._given_up()
        if reason is not None:
            raise reason from error
        self._lost_since = self._lost_since or time.monotonic()
        if time.monotonic() - self._lost_since > _RESUME_SECONDS:
            raise unreachable(self._address, error) from error

    async def _talk(self, socket: ClientConnection) -> Done:
        self._incoming.clear()
        self._latest = self._after
        if self._submitted:
            await self._send(socket, "resume", Resume(PROTOCOL_VERSION, self.job_id, self._after))
        else:
            await self._submit(socket)
        return await self._listen(socket)

    async def _submit(self, socket: ClientConnection) -> None:
        digests = await asyncio.to_thread(
            lambda: {name: hashlib.sha256(blob).hexdigest() for name, blob in self._parts.items()}
        )
        parts = tuple(Part(name, len(blob), digests[name]) for name, blob in self._parts.items())
        message = Submit(PROTOCOL_VERSION, self.job_id, request_to_dict(self._request), _UPLOAD, parts)
        self._submitted = True
        await self._send(socket, "submit", message)
        for index, blob in enumerate(self._parts.values()):
            view = memoryview(blob)
            for start, end in slices(len(blob)):
                await socket.send(pack_slice(_UPLOAD, index, start, view[start:end]))

    async def _send(self, socket: ClientConnection, kind: str, message: Any) -> None:
        await socket.send(json.dumps({"type": kind, **dataclasses.asdict(message)}))

    async def _listen(self, socket: ClientConnection) -> Done:
        async for frame in socket:
            if isinstance(frame, bytes):
                if await self._take(frame):
                    # The engine holds its next chunks back until some are gone.
                    await self._send(socket, "received", Received(self.job_id, self._after))
                continue
            data = parse_json(frame)
            event = event_from_dict(data)
            self._latest = max(self._latest, int(data.get("seq") or 0))
            if isinstance(event, Failed):
                await self._submit_again_or_raise(socket, event)
                continue
            self._known = True
            if isinstance(event, Output):
                self._incoming[event.message] = _Incoming(event, bytearray(event.parts[0].bytes))
                continue
            self._facts = _joined(self._facts, getattr(event, "facts", {}))
            if isinstance(event, StageFinished) and not event.cached:
                # By number: after a lost connection an event may come again.
                self._ran[int(data.get("seq") or 0)] = event
            await self._on_event(event)
            if isinstance(event, Done):
                return event
            self._confirm()
        raise ConnectionResetError("the engine closed the connection")

    async def _submit_again_or_raise(self, socket: ClientConnection, event: Failed) -> None:
        """Raise the job's error, unless the connection was lost before the engine had read the request."""
        error = error_from_dict(event.error)
        if error.code != "unknown_job":
            raise error
        if self._known:
            raise JobError(
                "connection_lost",
                "The engine was restarted while the job ran.",
                field="url",
                value=self._address.url,
                remedy="Run the graph again.",
            ) from error
        self._known = True
        await self._submit(socket)

    def _confirm(self) -> None:
        if not self._incoming:
            self._after = self._latest

    async def _take(self, frame: bytes) -> bool:
        """Take a slice; return whether its piece is whole now and others of its name follow."""
        message, _, offset, payload = unpack_slice(frame)
        incoming = self._incoming.get(message)
        if incoming is None or offset != incoming.received or offset + len(payload) > len(incoming.data):
            raise JobError(
                "job_failed", "The engine sent bytes that it had not announced.", field="frame", value=message
            )
        incoming.data[offset : offset + len(payload)] = payload
        incoming.digest.update(payload)
        incoming.received += len(payload)
        if incoming.received < len(incoming.data):
            return False
        part = incoming.output.parts[0]
        if incoming.digest.hexdigest() != part.sha256:
            raise JobError(
                "bad_checksum",
                f"The result {part.name!r} was damaged on the way.",
                field=part.name,
                remedy="Run the graph again.",
            )
        del self._incoming[message]
        if self._on_piece is None or not await self._on_piece(incoming.output, incoming.data, self._facts):
            place = (incoming.output.output, incoming.output.index)
            self._pieces.setdefault(incoming.output.name, {})[place] = incoming.data
        self._confirm()
        return not incoming.output.last


def _joined(known: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts with ``new`` ones; of a list of objects that both have, the entries are joined."""
    facts = {**known, **new}
    for name, entries in new.items():
        before = known.get(name)
        if isinstance(entries, list) and isinstance(before, list) and len(before) == len(entries):
            facts[name] = [{**one, **other} for one, other in zip(before, entries, strict=True)]
    return facts


def _check_websockets() -> None:
    try:
        from websockets.asyncio.client import connect

        problem = "" if "proxy" in inspect.signature(connect).parameters else "the installed one is older"
    except ImportError as error:
        problem = str(error)
    if problem:
        raise ConfigError(
            "start_failed",
            f"The Python package 'websockets', 15 or newer, is needed: {problem}.",
            remedy="In ComfyUI's Python run: pip install -r requirements.txt (of this node pack).",
        )


def _connect(address: Address) -> connect:
    from websockets.asyncio.client import connect

    return connect(
        address.websocket,
        additional_headers=address.headers,
        compression=None,
        max_size=None,
        proxy=None if address.is_loopback else True,
        close_timeout=_CLOSE_SECONDS,
    )
