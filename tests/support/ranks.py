"""A real fleet with real ranks, driven from the controller's side of the link.

Raises AssertionError when the ranks do not do what the test waits for; `Fleet.log` has what they wrote.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.link import decode_line, encode_line
from tests.support.engine_process import planted

from .received_masks import watching
from .side_folder import with_media_libraries

ROOT = Path(__file__).resolve().parents[2]
Message = dict[str, Any]


@dataclass
class Ended:
    """What came of a job: its messages in order, and the last one."""

    messages: list[Message] = field(default_factory=list)

    @property
    def error(self) -> Message | None:
        """The error of the ``end`` message."""
        return self.messages[-1]["error"]

    @property
    def facts(self) -> Message:
        """The facts of the ``end`` message."""
        return self.messages[-1]["facts"]

    def events(self, kind: str) -> list[Message]:
        """The events of one type."""
        return [m["event"] for m in self.messages if m["op"] == "event" and m["event"]["type"] == kind]

    def outputs(self, name: str) -> list[Path]:
        """The files of one output, in order."""
        return [Path(m["path"]) for m in self.messages if m["op"] == "output" and m["name"] == name]


class Fleet:
    """A running ``python -m engine.fleet``."""

    def __init__(
        self,
        model: Path,
        *,
        ranks: int = 2,
        data_timeout: float = 60,
        stages: str | None = None,
        layout: tuple[str, ...] | None = None,
        media: bool = False,
    ) -> None:
        """Start it; `wait_ready` waits for the ranks.

        Args:
            layout: more options, Ulysses over all ranks by default.
            media: whether the ranks find torchvision and torchaudio.
        """
        self.folder = Path(tempfile.mkdtemp(prefix="h3-ranks-", dir="/dev/shm"))
        self.fault_file = self.folder / "fault.json"
        self.masks = self.folder / "masks"
        self._inbox: queue.Queue[Message] = queue.Queue()
        self._connection: socket.socket | None = None
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.folder / "link"))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()
        self._log = (self.folder / "log").open("wb")
        stages = stages or "encode_prompt,denoise,decode_video,decode_audio"
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "H3_TEST_FAULT": str(self.fault_file),
        }
        environment = watching(environment, self.masks)
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "engine.fleet", "--model", str(model), "--nproc-per-node", str(ranks)),
                *(layout or ("--ulysses-degree", str(ranks))),
                *("--device", "cpu", "--dtype", "fp32", "--stages", stages),
                *("--run-dir", str(self.folder), "--link", str(self.folder / "link")),
                *("--data-timeout", str(data_timeout)),
            ],
            cwd=self.folder,
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=with_media_libraries(environment) if media else environment,
        )

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._connection, _ = self._listener.accept()
                with self._connection.makefile("rb") as lines:
                    for line in lines:
                        self._inbox.put(decode_line(line))
                self._inbox.put({"op": "lost"})

    @property
    def log(self) -> str:
        """What fleet and ranks wrote."""
        return (self.folder / "log").read_text(errors="replace")

    def send(self, message: Message) -> None:
        """Send one message to rank 0."""
        assert self._connection is not None
        self._connection.sendall(encode_line(message))

    def next(self, timeout: float = 60) -> Message:
        """Return rank 0's next message (``lost`` when its connection ended)."""
        end = time.monotonic() + timeout
        while True:
            try:
                return self._inbox.get(timeout=max(0, min(1, end - time.monotonic())))
            except queue.Empty:
                status = self.process.poll()
                if status is not None:
                    raise AssertionError(f"the fleet ended with {status}; log:\n{self.log[-4000:]}") from None
                if time.monotonic() >= end:
                    raise AssertionError(f"the ranks said nothing for {timeout} s; log:\n{self.log[-4000:]}") from None

    def wait_for(self, op: str, timeout: float = 90) -> Message:
        """Return the next message ``op``, skipping others."""
        end = time.monotonic() + timeout
        while (message := self.next(max(0.1, end - time.monotonic())))["op"] != op:
            continue
        return message

    def wait_ready(self) -> Message:
        """Wait until all ranks wait for jobs; return their info."""
        return self.wait_for("ready")["info"]

    def start(self, request: Message, inputs: dict[str, Path] | None = None) -> str:
        """Hand a job to the ranks; return its id."""
        job_id = str(uuid.uuid4())
        folder = self.folder / job_id
        folder.mkdir()
        paths = {name: str(path) for name, path in (inputs or {}).items()}
        self.send({"op": "run", "job_id": job_id, "request": request, "inputs": paths, "folder": str(folder)})
        return job_id

    def finish(
        self, job_id: str, *, timeout: float = 60, on_message: Callable[[Message], None] = lambda message: None
    ) -> Ended:
        """Collect what the job says until it ends; chunks of frames count as taken at once."""
        ended = Ended()
        limit = time.monotonic() + timeout
        while not ended.messages or ended.messages[-1]["op"] != "end":
            message = self.next(max(0.1, limit - time.monotonic()))
            assert message["op"] != "lost", f"rank 0 left during the job; log:\n{self.log[-4000:]}"
            assert message["job_id"] == job_id
            ended.messages.append(message)
            if message["op"] in ("output", "movie") and message["name"] == "frames":
                self.send({"op": "taken", "job_id": job_id})
            on_message(message)
        return ended

    def run(self, request: Message, inputs: dict[str, Path] | None = None, *, timeout: float = 60) -> Ended:
        """Run a job to its end."""
        return self.finish(self.start(request, inputs), timeout=timeout)

    @contextlib.contextmanager
    def fault(self, **what: Any) -> Iterator[None]:
        """Plant a fault in the ranks for the time of the block; see ``rank_faults/sitecustomize.py``."""
        with planted(self.fault_file, what):
            yield

    def stop(self) -> int:
        """Stop by the link, as the controller does; return the exit status."""
        with contextlib.suppress(OSError, AssertionError):
            self.send({"op": "stop"})
        try:
            return self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGTERM)
            return self.process.wait(20)

    def close(self) -> None:
        """Stop for certain and delete everything."""
        if self.process.poll() is None:
            self.stop()
        assert self.process.stdin is not None
        self.process.stdin.close()
        self._listener.close()
        self._log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def descendants(pid: int) -> list[int]:
    """Return the processes below ``pid``."""
    children = [
        int(child)
        for tasks in [Path(f"/proc/{pid}/task")]
        for task in (tasks.iterdir() if tasks.exists() else ())
        for child in (task / "children").read_text().split()
    ]
    return [*children, *(below for child in children for below in descendants(child))]


def is_running(pid: int) -> bool:
    """Return whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition: Callable[[], bool], *, seconds: float) -> bool:
    """Return whether ``condition`` came true in time."""
    limit = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > limit:
            return False
        time.sleep(0.05)
    return True


def listening_addresses(pids: list[int]) -> set[str]:
    """Return the addresses (hexadecimal, as the kernel shows them) on which the processes listen for TCP."""
    inodes = set()
    for pid in pids:
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                target = os.readlink(fd)
                if target.startswith("socket:["):
                    inodes.add(target[8:-1])
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pids[0]}/net/{table}").read_text().splitlines()[1:]:
            columns = line.split()
            if columns[3] == "0A" and columns[9] in inodes:
                found.add(columns[1].partition(":")[0])
    return found
