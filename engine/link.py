"""The socket between the controller and rank 0 (the relay): one JSON object a line, both ways.

The controller listens on a Unix socket in the run folder; rank 0 connects. Tensors never pass here: both sides name
safetensors files in the run folder. Neither side imports the other; this module knows neither torch nor asyncio.

Controller → rank 0:
    ``{"op": "run", "job_id", "request": {...}, "inputs": {part: path}, "folder": path}``
        run one job; it writes its outputs below ``folder``. One job at a time: the next follows ``end``. Optional:
        ``cached``, kind → file with what one of its stages makes, which then is not run, and ``keep``, the kinds that
        it should tell of as ``kept`` (`cache_keys.STAGE_OF` has the kinds).
    ``{"op": "cancel", "job_id"}``   stop that job at the next boundary; ignored when it is not the running one.
    ``{"op": "taken", "job_id"}``    one more chunk of ``frames`` was taken by the MP4's writer or sent to the client.
    ``{"op": "stop"}``               leave in order; every rank exits with 0.

Rank 0 → controller:
    ``{"op": "loading", "component", "bytes_done", "bytes_total"}``   over all components; monotonic.
    ``{"op": "ready", "info": {"device", "dtype", "world_size", "ulysses_degree", "backend", "pids",
    "weight_bytes", "device_weight_bytes", "host_copy_bytes"}}``
    ``{"op": "failed", "error": {...}}``                              the ranks cannot start; the fleet will end.
    ``{"op": "event", "job_id", "event": {...}}``                     `messages.event_to_dict` without job_id and seq.
    ``{"op": "output", "job_id", "output", "name", "index", "last", "format", "path"}``   a finished file, the
        controller's now; ``output`` numbers the request's ``num_outputs``.
    ``{"op": "movie", "job_id", "output", "name": "audio" | "frames" | "finish", "path"}``
        a file for the MP4's writer, which removes it; ``finish`` has none.
    ``{"op": "kept", "job_id", "kind", "path", "facts"}``             what a stage made, for later jobs.
    ``{"op": "end", "job_id", "error": null | {...}, "facts": {...}, "memory": {...}, "restarting": bool,
    "gather_workspace_bytes"}``
        the job is over on all ranks; ``restarting``: they take no other, and the fleet starts them again.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

MAX_LINE = 16 * 1024 * 1024


def encode_line(message: dict[str, Any]) -> bytes:
    """Return ``message`` as one line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode_line(line: bytes) -> dict[str, Any]:
    """Return the message of one line (both ends are ours: a bad line is a bug, ValueError)."""
    message = json.loads(line)
    if not isinstance(message, dict) or "op" not in message:
        raise ValueError(f"not a link message: {line[:80]!r}")
    return message


class RankLink:
    """Rank 0's end: blocking, safe to send on from any thread."""

    def __init__(self, path: str) -> None:
        """Connect to the controller's Unix socket at ``path``.

        Raises:
            OSError: when nobody listens there.
        """
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(path)
        self._lock = threading.Lock()

    def send(self, message: dict[str, Any]) -> None:
        """Send one message; raises OSError when the controller is gone."""
        with self._lock:
            self._socket.sendall(encode_line(message))

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yield what the controller sends until it closes the socket."""
        with self._socket.makefile("rb") as lines:
            for line in lines:
                yield decode_line(line)

    def close(self) -> None:
        """Close the socket; `messages` then ends."""
        self._socket.close()
