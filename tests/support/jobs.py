"""Requests that tests send, small enough for two CPU ranks, and ways to send them wrongly."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.client import Channel
from engine.contract.framing import pack_slice
from engine.contract.version import PROTOCOL_VERSION

QUICK = {"task": "generate", "prompt": "a boat", "frames": 5, "width": 32, "height": 32, "steps": 1}
"""A video of five frames."""
LONG = {**QUICK, "steps": 1000}
"""Runs for many seconds unless it is cancelled."""
FINAL = ("done", "error")


def new_id() -> str:
    """Return a fresh job id."""
    return str(uuid.uuid4())


async def events_until_final(channel: Channel, job_id: str) -> list[dict[str, Any]]:
    """Return the events of one job up to and with its last."""
    events = []
    async for event in channel.events():
        if event["job_id"] == job_id:
            events.append(event)
            if event["type"] in FINAL:
                return events
    raise AssertionError(f"the connection ended after {events}")


async def wait_for_event(channel: Channel, kind: str) -> dict[str, Any]:
    """Return the next event of type ``kind`` of any job."""
    async for event in channel.events():
        if event["type"] == kind:
            return event
    raise AssertionError(f"the connection ended before an event {kind!r}")


def submit_message(request: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """Return a submit message; ``changes`` replace its fields."""
    return {"type": "submit", "protocol": PROTOCOL_VERSION, "job_id": new_id(), "request": dict(request), **changes}


async def send_parts(
    channel: Channel, request: Mapping[str, Any], parts: Mapping[str, bytes], announced: Sequence[Mapping[str, Any]]
) -> str:
    """Send a submit whose announcement may differ from what follows; return its job id."""
    job_id = new_id()
    await channel.socket.send_json(submit_message(request, job_id=job_id, message=1, parts=list(announced)))
    for index, blob in enumerate(parts.values()):
        await channel.socket.send_bytes(pack_slice(1, index, 0, blob))
    return job_id


def tensors(entries: Mapping[str, tuple[str, Sequence[int], int]], **changes: Any) -> bytes:
    """Return a safetensors file of zeros: name → (dtype, shape, bytes); ``changes`` overwrite header entries."""
    header: dict[str, Any] = {}
    position = 0
    for name, (dtype, shape, size) in entries.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + size]}
        position += size
    text = json.dumps({**header, **changes}).encode()
    return len(text).to_bytes(8, "little") + text + bytes(position)


def latents(video: Sequence[int], audio: Sequence[int]) -> bytes:
    """Return a ``latents`` part of zeros."""

    def size(shape: Sequence[int]) -> int:
        count = 4
        for side in shape:
            count *= side
        return count

    return tensors({"video": ("F32", video, size(video)), "audio": ("F32", audio, size(audio))})


def write(path: Path, blob: bytes) -> Path:
    """Write ``blob`` and return its path."""
    path.write_bytes(blob)
    return path
