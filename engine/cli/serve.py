"""``serve``: the engine's life from its checks to its orderly end.

Everything that can be wrong with the options, the checkpoint or the port is found before a rank starts, and raised as
`ConfigError`. Once the port is bound the server answers, whatever the ranks do.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

from aiohttp import web

from ..checkpoint import open_checkpoint
from ..config import EngineConfig, build_config
from ..config_layout import check_layout
from ..config_vae import check_tiles, tile_warnings
from ..contract.errors import ConfigError
from ..contract.words import bytes_in_words
from ..controller.controller import Controller
from ..controller.folder import open_run_folder
from ..planner.capacity import find_capacity
from ..server.app import build_app
from .options import add_options, config_file, given_options
from .output import log_to_stderr, say, tell

logger = logging.getLogger(__name__)

_SHUTDOWN_SECONDS = 5.0
_POLL_SECONDS = 0.2
_REPORT_SECONDS = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add every option of `config.OPTIONS`, ``--config`` and ``--preset``."""
    add_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGINT, SIGTERM or, with ``--stop-on-eof``, the end of stdin.

    Raises:
        ConfigError: nothing was started.
    """
    log_to_stderr()
    config = build_config(given_options(arguments), config_file(arguments), preset=arguments.preset)
    checkpoint = open_checkpoint(config.model, stages=config.stages, options=config.model_options)
    check_layout(config.layout, checkpoint.facts)
    check_tiles(config.vae, checkpoint.facts)
    for warning in tile_warnings(config.vae):
        logger.warning("%s", warning.message)
    capacity = find_capacity(config, checkpoint)
    # Room for one request in and one result out of the largest allowed size.
    folder = open_run_folder(config.run_dir, room=2 * config.limits.max_body_bytes)
    try:
        asyncio.run(_serve(config, Controller(config, checkpoint, folder, capacity)))
    finally:
        folder.close()
    return 0


async def _serve(config: EngineConfig, controller: Controller) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    if config.stop_on_eof:
        _watch_stdin(lambda: loop.call_soon_threadsafe(stop.set))
    runner = web.AppRunner(build_app(controller), access_log=None, shutdown_timeout=_SHUTDOWN_SECONDS)
    await runner.setup()
    announced: str | None = None
    try:
        url = await _bind(runner, config)
        announced = _announce(config, url)
        await controller.start()
        reporting = asyncio.create_task(_report(controller))
        await stop.wait()
        logger.info("stopping")
        reporting.cancel()
        await controller.stop()
    finally:
        await runner.cleanup()
        if announced is not None:
            _withdraw(config, announced)


async def _bind(runner: web.AppRunner, config: EngineConfig) -> str:
    try:
        await web.TCPSite(runner, config.host, config.port).start()
    except (OSError, UnicodeError) as error:  # UnicodeError: a host that is no name, such as a..b
        raise ConfigError(
            "config_bad_value",
            f"The port cannot be bound: {getattr(error, 'strerror', None) or error}",
            field="port",
            value=f"{config.host}:{config.port}",
            remedy="Choose another --port, or 0 for any free one; --host is an address of this machine.",
        ) from error
    host, port = runner.addresses[0][:2]
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - an address to show, not to bind
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def _announce(config: EngineConfig, url: str) -> str | None:
    """Say ``url`` and write the ready file; return what it holds."""
    say(url)
    if config.ready_file is None:
        return None
    ready = {"url": url, "pid": os.getpid(), "token_needed": config.token is not None}
    text = json.dumps(ready)
    fresh = config.ready_file.parent / f".{config.ready_file.name}.{os.getpid()}"
    try:
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(config.ready_file)
    except OSError as error:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise ConfigError(
            "config_bad_value",
            f"The ready file cannot be written: {error.strerror}.",
            field="ready_file",
            value=str(config.ready_file),
            remedy="Give a path in a folder that exists and can be written.",
        ) from error
    return text


def _withdraw(config: EngineConfig, announced: str) -> None:
    """Remove the ready file, unless another engine has written its own over it."""
    assert config.ready_file is not None
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if config.ready_file.read_text(encoding="utf-8") == announced:
            config.ready_file.unlink()


async def _report(controller: Controller) -> None:
    """Tell on stderr how far loading is, and each change of status."""
    status, told = "", 0.0
    while True:
        health = controller.health()
        progress = health["progress"]
        if health["status"] != status:
            status = health["status"]
            tell(f"engine: {status}")
        if progress and time.monotonic() - told > _REPORT_SECONDS:
            told = time.monotonic()
            done, total = progress["bytes_done"], progress["bytes_total"]
            percent = f"{done / max(1, total):.0%}"
            tell(f"loading {progress['component']}: {bytes_in_words(done)} of {bytes_in_words(total)} ({percent})")
        await asyncio.sleep(_POLL_SECONDS)


def _watch_stdin(stop: Callable[[], object]) -> None:
    def wait() -> None:
        while os.read(sys.stdin.fileno(), 4096):
            pass
        stop()

    threading.Thread(target=wait, name="stdin", daemon=True).start()
