"""A TCP proxy that breaks its first connection off after so many bytes, and passes later ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit


class CuttingProxy:
    """Counts connections; breaks the first one off. A limit of None never breaks."""

    def __init__(self, url: str, *, up: int | None = None, down: int | None = None) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname, parts.port)
        self._limits = (up, down)
        self.connections = 0
        self.url = ""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        up, down = self._limits if self.connections == 1 else (None, None)
        there_reader, there_writer = await asyncio.open_connection(*self._target)
        ways = [
            asyncio.create_task(_pass(reader, there_writer, up)),
            asyncio.create_task(_pass(there_reader, writer, down)),
        ]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        writer.transport.abort()
        there_writer.transport.abort()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int | None) -> None:
    passed = 0
    while data := await reader.read(65_536):
        passed += len(data)
        if limit is not None and passed > limit:
            return
        writer.write(data)
        await writer.drain()


@asynccontextmanager
async def cutting_proxy(url: str, *, up: int | None = None, down: int | None = None) -> AsyncIterator[CuttingProxy]:
    """Yield a proxy to ``url`` that breaks its first connection off after ``up`` or ``down`` bytes."""
    proxy = CuttingProxy(url, up=up, down=down)
    server = await asyncio.start_server(proxy._serve, "127.0.0.1", 0)
    proxy.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield proxy
