"""The fleet process seen from the server: spawned, listened to, its log kept, stopped.

The fleet is another program (``python -m engine.fleet``); this module speaks with its rank 0 over the Unix socket of
`link` and never imports it. What happens is told to a `FleetListener` on the event loop. Raises `ConfigError`
(``start_failed``) when the process cannot be spawned.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import signal
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from .. import env, link
from ..config import EngineConfig
from ..contract.errors import ConfigError
from ..placement import Needs
from ..rank_options import ParallelOptions, VaeOptions
from .folder import RunFolder

logger = logging.getLogger(__name__)
fleet_logger = logging.getLogger("fleet")

_ROOT = Path(__file__).resolve().parents[2]
_TAIL_LINES = 200
_LINE_LIMIT = 2000
_STOP_SECONDS = 15.0
_KILL_SECONDS = 10.0
"""Longer than the fleet takes to kill ranks that do not obey (`fleet._SHUTDOWN_SECONDS`)."""
_DRAIN_SECONDS = 1.0


class FleetListener(Protocol):
    """What the owner of a `FleetProcess` is told."""

    async def fleet_said(self, message: dict[str, Any]) -> None:
        """Rank 0 sent ``message``."""

    def fleet_lost(self) -> None:
        """Rank 0's connection ended; the fleet may bring the ranks back."""

    def fleet_ended(self, status: int) -> None:
        """The fleet process ended with ``status``; nothing comes back."""


class FleetProcess:
    """One fleet process and the link to its rank 0."""

    def __init__(
        self, config: EngineConfig, folder: RunFolder, listener: FleetListener, *, needs: Sequence[Needs] = ()
    ) -> None:
        """Describe the fleet; `start` spawns it.

        Args:
            needs: what the placement of each rank leaves room for; none: nobody planned.
        """
        self._config = config
        self._needs = needs
        self._folder = folder
        self._listener = listener
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._writer: asyncio.StreamWriter | None = None
        self._watcher: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen on the link and spawn the process.

        Raises:
            ConfigError: ``start_failed``.
        """
        self._server = await asyncio.start_unix_server(self._serve_link, str(self._folder.link), limit=link.MAX_LINE)
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command(),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                # The package is found from there, whatever folder the user stands in.
                cwd=_ROOT,
                env=env.child_environment(_ROOT),
                # Ctrl-C in a terminal reaches the server only, which then stops the ranks in order.
                start_new_session=True,
            )
        except OSError as error:
            raise ConfigError("start_failed", f"The ranks' process cannot be started: {error}") from error
        self._watcher = asyncio.create_task(self._watch())

    def _command(self) -> list[str]:
        config = self._config
        return [
            sys.executable,
            "-m",
            "engine.fleet",
            *("--model", str(config.model)),
            *("--nproc-per-node", str(config.nproc_per_node)),
            *_layout_flags(config.layout),
            *_vae_flags(config.vae),
            *("--offload-options", json.dumps(config.offload.to_dict())),
            *("--needs", json.dumps([needs.to_dict() for needs in self._needs])),
            *("--device", config.device),
            *("--dtype", config.dtype),
            *("--stages", ",".join(config.stages)),
            *("--model-options", config.model_options.to_json()),
            *("--run-dir", str(self._folder.path)),
            *("--link", str(self._folder.link)),
            *("--data-timeout", str(config.data_timeout)),
        ]

    @property
    def pid(self) -> int:
        """Process id of the fleet."""
        return self._process.pid

    def log_tail(self, lines: int) -> str:
        """Return the last ``lines`` lines that the fleet and its ranks wrote."""
        return "\n".join(list(self._tail)[-lines:])

    def send(self, message: dict[str, Any]) -> None:
        """Send ``message`` to rank 0; without a connection it is dropped (the job fails by `fleet_lost`)."""
        if self._writer is not None:
            self._writer.write(link.encode_line(message))

    async def stop(self) -> None:
        """Stop the ranks in order, then by force."""
        assert self._process.stdin is not None
        if self._writer is None:
            # Nobody is there to take a message yet; the end of its stdin ends the fleet.
            self._process.stdin.close()
        self.send({"op": "stop"})
        for seconds, number in ((_STOP_SECONDS, signal.SIGTERM), (_KILL_SECONDS, signal.SIGKILL)):
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._process.wait(), seconds)
                break
            logger.warning("the ranks did not stop within %g s: %s", seconds, number.name)
            self._process.stdin.close()
            # Each rank has a session of its own: the fleet ends them, and the kernel when the fleet is killed.
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)
        if self._watcher is not None:
            await self._watcher
        self._server.close()

    async def _serve_link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        try:
            while line := await reader.readline():
                message = link.decode_line(line)
                try:
                    await self._listener.fleet_said(message)
                except Exception:
                    # Closing the link would end the ranks: only what is wrong with the link itself may do that.
                    logger.exception("%r of rank 0 could not be handled", message.get("op"))
        except ConnectionError as error:
            logger.info("the link to rank 0 broke: %s", error)
        finally:
            if self._writer is writer:
                self._writer = None
                self._listener.fleet_lost()
            writer.close()

    async def _watch(self) -> None:
        """Tell when the process has ended; what it wrote last is in the log by then."""
        reading = asyncio.create_task(self._keep_log())
        status = await self._process.wait()
        # A rank that outlives the fleet for a moment still holds the pipe: do not wait for it.
        await asyncio.wait([reading], timeout=_DRAIN_SECONDS)
        reading.cancel()
        self._listener.fleet_ended(status)

    async def _keep_log(self) -> None:
        assert self._process.stdout is not None
        rest = ""
        while block := await self._process.stdout.read(65536):
            *lines, rest = (rest + block.decode(errors="replace")).replace("\r", "\n").split("\n")
            rest = rest[-_LINE_LIMIT:]
            for line in filter(str.strip, lines):
                self._tail.append(line[:_LINE_LIMIT])
                fleet_logger.info("%s", line[:_LINE_LIMIT])


def _layout_flags(layout: ParallelOptions) -> list[str]:
    """Return the options of the fleet that say how the ranks share the work."""
    degrees = {
        "--ulysses-degree": layout.ulysses_degree,
        "--ring-degree": layout.ring_degree,
        "--tp-degree": layout.tp_degree,
        "--text-encoder-tp-degree": layout.text_encoder_tp_degree,
    }
    flags = [word for flag, degree in degrees.items() for word in (flag, str(degree))]
    if layout.rank_weights is not None:
        flags += ["--rank-weights", ",".join(map(repr, layout.rank_weights))]
    switches = {"--shard-weights": layout.shard_weights, "--compile": layout.compile}
    return flags + [flag for flag, on in switches.items() if on]


def _vae_flags(options: VaeOptions) -> list[str]:
    """Return the options of the fleet that say where the VAEs live."""
    flags: list[str] = []
    for name, value in dataclasses.asdict(options).items():
        flag = "--" + name.replace("_", "-")
        flags += ([flag] if value else []) if isinstance(value, bool) else [flag, str(value)]
    return flags
