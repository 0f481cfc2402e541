"""Multipart forms for ``POST /v1/generate``, well made or not, and the wait for what became of them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

from tests.support.engine_process import EngineProcess

BOUNDARY = "a-boundary"
CONTENT_TYPE = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}


def form(request: Any, parts: Mapping[str, bytes] | Iterable[tuple[str, bytes]]) -> bytes:
    """Return a form of the field ``request`` (JSON; bytes as they are; None: none) and ``parts``."""
    fields = list(parts.items() if isinstance(parts, Mapping) else parts)
    if request is not None:
        fields.insert(0, ("request", request if isinstance(request, bytes) else json.dumps(request).encode()))
    pieces = [
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"; filename="x.bin"\r\n\r\n'.encode() + blob
        for name, blob in fields
    ]
    return b"\r\n".join([*pieces, f"--{BOUNDARY}--\r\n".encode()])


def post_form(engine: EngineProcess, request: Any, **parts: bytes) -> tuple[int, dict[str, Any]]:
    """Send a form; return (status, answer)."""
    return engine.call("POST", "/v1/generate", form(request, parts), CONTENT_TYPE)


def finished(engine: EngineProcess, job_id: str, *, seconds: float = 60.0) -> dict[str, Any]:
    """Return the job when it is over."""
    deadline = time.monotonic() + seconds
    while (job := engine.get(f"/v1/jobs/{job_id}"))["state"] in ("queued", "running"):
        assert time.monotonic() < deadline, (job, engine.log_text())
        time.sleep(0.05)
    return job
