"""One engine of two ranks for all tests that only use it, and a client for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from engine.client import EngineClient
from tests.support.engine_process import EngineProcess
from tests.support.ranks import Fleet


@pytest.fixture(scope="session")
def engine(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """Return the shared engine. Tests leave it ready and change none of its options.

    It keeps no results: what one test asked for would be known to the next.
    """
    options = ("--max-prompt-tokens", "64", "--max-seconds", "20", "--max-queue", "4", "--cache-mb", "0")
    with EngineProcess(tiny_checkpoint, tmp_path_factory.mktemp("engine"), options=options, media=True) as process:
        yield process


@pytest.fixture
async def client(engine: EngineProcess) -> AsyncIterator[EngineClient]:
    """Return a client of the shared engine."""
    async with EngineClient(engine.url) as made:
        yield made


@pytest.fixture(scope="module")
def fleet(tiny_checkpoint: Path) -> Iterator[Fleet]:
    """Return two ranks without a server, for the tests of one file."""
    fleet = Fleet(tiny_checkpoint, ranks=2)
    try:
        fleet.wait_ready()
        yield fleet
    finally:
        fleet.close()
