"""A real engine for tests: ``python -m engine serve`` with its fleet and ranks, on a free port."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from .received_masks import FAULTS, watching
from .side_folder import with_media_libraries

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 120.0
STOP_SECONDS = 40.0


class EngineProcess:
    """An engine that stops when this object does. ``with EngineProcess(model, folder) as engine: engine.url``."""

    def __init__(
        self,
        model: Path,
        folder: Path,
        *,
        ranks: int = 2,
        options: Sequence[str] = (),
        token: str | None = None,
        media: bool = False,
        faults: bool = False,
    ) -> None:
        """Describe it. What its ranks receive of edits lies in ``masks``; see `received_masks`.

        Args:
            media: whether it finds torchvision and torchaudio, which pictures and sound need.
            faults: let `fault` plant some in the ranks.
        """
        self.folder = folder
        self.masks = folder / "masks"
        self._media = media
        self.fault_file = folder / "fault.json" if faults else None
        self.token = token
        self._ready = folder / "ready.json"
        self.log = folder / "engine.log"
        self.command = [
            *(sys.executable, "-m", "engine", "serve", "--model", str(model), "--port", "0", "--device", "cpu"),
            *("--nproc-per-node", str(ranks), "--ready-file", str(self._ready), "--stop-on-eof", *options),
        ]
        self.url = ""

    def __enter__(self) -> EngineProcess:
        self.launch()
        self.wait_for("ready")
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def launch(self) -> None:
        """Start the process and read its address; the ranks may still be loading."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("H3_ENGINE_")}
        if self.token is not None:
            environment["H3_ENGINE_TOKEN"] = self.token
        environment = watching(environment, self.masks)
        if self._media:
            environment = with_media_libraries(environment)
        if self.fault_file is not None:
            path = os.pathsep.join(filter(None, (str(FAULTS), environment.get("PYTHONPATH"))))
            environment |= {"PYTHONPATH": path, "H3_TEST_FAULT": str(self.fault_file)}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=ROOT, env=environment
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._ready.exists():
            assert self.process.poll() is None, self.log_text()
            assert time.monotonic() < deadline, self.log_text()
            time.sleep(0.05)
        self.url = json.loads(self._ready.read_text())["url"]

    def wait_for(self, status: str, seconds: float = START_SECONDS) -> None:
        """Wait until ``/v1/health`` shows ``status``."""
        deadline = time.monotonic() + seconds
        while (health := self.get("/v1/health"))["status"] != status:
            assert time.monotonic() < deadline, f"{health} is not {status!r}\n{self.log_text()}"
            assert status == "dead" or health["status"] != "dead", self.log_text()
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop it by the end of its stdin; a process that stays is killed and fails the test."""
        children = self.descendants()
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            self.process.wait(STOP_SECONDS)
        finally:
            for process in (self.process, *children):
                try:
                    process.kill()
                except psutil.NoSuchProcess:
                    continue
            self.process.wait()

    def call(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, dict[str, Any]]:
        """Call a JSON route; return (status, answer). ``body`` bytes are sent as they are."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        request = urllib.request.Request(self.url + path, data=data, method=method, headers={**sent, **(headers or {})})
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def get(self, path: str) -> dict[str, Any]:
        """Return the JSON of a route that answers 200."""
        status, answer = self.call("GET", path)
        assert status == 200, answer
        return answer

    def fetch(self, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, Mapping[str, str], bytes]:
        """Return (status, headers, body) of a route that gives bytes."""
        with urllib.request.urlopen(urllib.request.Request(self.url + path, headers=dict(headers or {}))) as answer:
            return answer.status, dict(answer.headers), answer.read()

    def metric(self, name: str) -> float:
        """Return the value of one sample of ``/metrics``, for example ``jobs_started_total``."""
        text = self.fetch("/metrics")[2].decode()
        return next(
            float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(f"h3_engine_{name} ")
        )

    @contextlib.contextmanager
    def fault(self, **what: Any) -> Iterator[None]:
        """Plant a fault in the ranks for the time of the block; see ``rank_faults/sitecustomize.py``."""
        assert self.fault_file is not None
        with planted(self.fault_file, what):
            yield

    def descendants(self) -> list[psutil.Process]:
        """Return the processes below the server: the fleet and its ranks."""
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def log_text(self) -> str:
        """Return what the engine wrote."""
        return self.log.read_text(errors="replace")[-8000:]


@contextlib.contextmanager
def planted(fault_file: Path, what: Mapping[str, Any]) -> Iterator[None]:
    """Keep a fault planted for the time of the block; it is there as a whole or not at all."""
    fresh = fault_file.with_suffix(".new")
    fresh.write_text(json.dumps(what))
    fresh.replace(fault_file)
    try:
        yield
    finally:
        fault_file.unlink(missing_ok=True)
