"""Local engines: one process for each configuration, started on first use, shared by all graphs, stopped at exit.

`engine_for` returns at once; a thread makes the demo checkpoint if asked for, starts the engine and waits for its
ready file. The engine stops when its stdin ends, so that it cannot outlive this process, however that ends. Its
output goes to a log file whose end is in every error. Knows nothing of ComfyUI.

A new engine takes the place of idle ones of other configurations on the same kind of device: two models rarely fit one
accelerator. One that works on a job, or that a node waits for (`using`), stays, and so does one that serves other
stages: whoever splits the encoders from the generator uses both in turn.

Raises `ConfigError` when no Python can run the engine, `EngineDeadError` when the engine exits.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import logging
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO

from ..engine.contract.errors import ConfigError, EngineDeadError, EngineError
from .address import Address, get_json
from .environment import find_python, inherited_token
from .errors import with_log

log = logging.getLogger(__name__)

PACK = Path(__file__).resolve().parent.parent
DEMO = "demo"
_READY_SECONDS = 120.0
_STOP_SECONDS = 15.0
_LOG_TAIL_BYTES = 4000


@dataclass(frozen=True)
class ParallelSpec:
    """How the ranks share the work; each field is an option of ``h3-engine serve``.

    Weights that differ in spaces alone are one specification, so that they mean one engine.

    Attributes:
        ulysses_degree: 0 takes the rest. ring_degree, tp_degree, text_encoder_tp_degree: 1 or more.
        shard_weights, compile: on or off.
        rank_weights: positive numbers separated by commas, without spaces around them; empty: alike.
    """

    ulysses_degree: int = 0
    ring_degree: int = 1
    tp_degree: int = 1
    text_encoder_tp_degree: int = 1
    shard_weights: bool = False
    compile: bool = False
    rank_weights: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "rank_weights", ",".join(word.strip() for word in self.rank_weights.split(",")))

    def flags(self) -> list[str]:
        """Return the options that differ from their defaults."""
        return _flags(self)


@dataclass(frozen=True)
class MemorySpec:
    """Where the weights live; each field is an option of ``h3-engine serve``, and its default the engine's.

    Attributes:
        offload: families separated by commas; empty: none.
        resident_blocks: a whole number or ``auto``.
        gpu_memory, host_memory: GB of 1e9 bytes; None: what is free on the GPU, and what the host has.
        block_storage: ``full``, ``fp8`` or ``int8``. modulation_tables_mb: MB of 1e6 bytes.
        vae_resident: on or off.
    """

    offload: str = ""
    resident_blocks: str = "0"
    gpu_memory: float | None = None
    host_memory: float | None = None
    block_storage: str = "full"
    modulation_tables_mb: int = 4000
    vae_resident: bool = False

    def flags(self) -> list[str]:
        """Return the options that differ from their defaults."""
        return _flags(self)


def _flags(spec: ParallelSpec | MemorySpec) -> list[str]:
    words = []
    for field in fields(spec):
        value = getattr(spec, field.name)
        if value != field.default:
            words.append("--" + field.name.replace("_", "-"))
            words += [] if value is True else [str(value)]
    return words


@dataclass(frozen=True)
class EngineSpec:
    """What `H3_ENGINE` carries through a graph: which engine to use, resolved at each use.

    Attributes:
        url: a running engine; empty for a local one, which the rest describes.
        model: checkpoint folder, or `DEMO`.
        ranks: processes of the engine; 0 is one per GPU, or one.
        device: ``auto``, ``cpu``, ``cuda``, ``xpu`` or ``npu``.
        dtype: ``auto``, ``fp32`` or ``bf16``.
        parallel: how the ranks share the work.
        stages: that it serves; empty for all.
        memory: where the weights live.
    """

    url: str = ""
    model: str = DEMO
    ranks: int = 0
    device: str = "auto"
    dtype: str = "auto"
    parallel: ParallelSpec = ParallelSpec()
    stages: tuple[str, ...] = ()
    memory: MemorySpec = MemorySpec()

    @property
    def model_name(self) -> str:
        """What a person calls the model."""
        return Path(self.model).name


class LocalEngine:
    """A local engine from its start to its end.

    Args:
        spec: what to start.
        home: folder for the log and the demo checkpoint.
        beside: engines on the same kind of device that could not be stopped for this one.
    """

    def __init__(self, spec: EngineSpec, home: Path, *, beside: tuple[LocalEngine, ...] = ()) -> None:
        self.spec = spec
        self.beside = tuple(engine.spec for engine in beside)
        self._home = home
        self.log = home / f"engine-{hashlib.sha256(repr(spec).encode()).hexdigest()[:12]}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._address: Address | None = None
        self._error: EngineError | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._start, name="h3-engine-start", daemon=True)
        self._thread.start()

    def address(self) -> Address | None:
        """Return where it listens, None while it starts.

        Raises:
            EngineError: when it did not start or has exited.
        """
        if self._error is not None:
            raise self._error
        exited = self.exited() if self._address is not None else None
        if exited is not None:
            raise exited
        return self._address

    def exited(self) -> EngineError | None:
        """Return the error to show when the process has ended, else None."""
        if self._process is None or self._process.poll() is None:
            return None
        error = EngineDeadError(
            "connection_lost",
            f"The local engine ended (exit status {self._process.returncode}).",
            remedy=f"Run again: it is started anew. Its whole log is {self.log}.",
        )
        return with_log(error, self._log_tail())

    @property
    def is_usable(self) -> bool:
        """Whether it runs or is on its way; a failed or ended one is replaced at the next use."""
        return self._error is None and self.exited() is None

    @property
    def is_busy(self) -> bool:
        """Whether it works on a job, be it this process's or another client's. Asks it: blocks for seconds at worst."""
        if self._address is None or not self.is_usable:
            return False
        try:
            return get_json(self._address, "/v1/health").get("status") == "busy"
        except EngineError:
            return False

    def end(self) -> None:
        """Tell it to stop, by the end of its stdin."""
        self._stopping.set()
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()

    def stop(self) -> None:
        """Stop it in order: end its stdin, wait, then kill."""
        self.end()
        process = self._process
        if process is None:
            return
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            log.warning("the engine (pid %d) did not stop in %g s and is killed", process.pid, _STOP_SECONDS)
            process.kill()
            process.wait()

    def _start(self) -> None:
        try:
            self._home.mkdir(parents=True, exist_ok=True)
            python = find_python(PACK)
            with tempfile.TemporaryDirectory(prefix="h3-engine-") as folder, self.log.open("wb") as output:
                ready = Path(folder) / "ready.json"
                model = self._demo(python, output) if self.spec.model == DEMO else self.spec.model
                if not self._stopping.is_set():
                    self._process = _popen([python, "-m", "engine", "serve", *self._options(model, ready)], output)
                    self._address = self._wait_for(ready)
        except EngineError as error:
            self._error = error
        except OSError as error:
            self._error = ConfigError("start_failed", f"The engine cannot be started: {error}.")
        finally:
            if self._address is None and self._error is None:
                self._error = self._start_error("The local engine was stopped while it started.")

    def _demo(self, python: str, output: IO[bytes]) -> str:
        """Make the demo checkpoint unless this version of it is there; return its folder."""
        version = hashlib.sha256((PACK / "engine" / "tiny.py").read_bytes()).hexdigest()[:12]
        folder = self._home / f"demo-{version}"
        if not folder.exists():
            made = _popen([python, "-m", "engine", "make-tiny", str(folder)], output)
            if made.wait() != 0:
                raise self._start_error("The demo checkpoint could not be made.")
        return str(folder)

    def _options(self, model: str, ready: Path) -> list[str]:
        spec = self.spec
        options = ["--model", model, "--port", "0", "--ready-file", str(ready), "--stop-on-eof"]
        options += ["--device", spec.device, "--dtype", spec.dtype, *spec.parallel.flags(), *spec.memory.flags()]
        options += ["--stages", ",".join(spec.stages)] if spec.stages else []
        return [*options, "--nproc-per-node", str(spec.ranks)] if spec.ranks else options

    def _wait_for(self, ready: Path) -> Address:
        assert self._process is not None
        end = time.monotonic() + _READY_SECONDS
        while not ready.exists():
            if self._stopping.is_set():
                self.stop()
            if self._process.poll() is not None:
                raise self._start_error("The local engine did not start.")
            if time.monotonic() > end:
                self.stop()
                raise self._start_error(f"The local engine did not answer within {_READY_SECONDS:g} s.")
            time.sleep(0.05)
        return Address(json.loads(ready.read_text())["url"], inherited_token())

    def _start_error(self, message: str) -> EngineError:
        error = ConfigError("start_failed", message, remedy=f"Its whole log is {self.log}.")
        return with_log(error, self._log_tail())

    def _log_tail(self) -> str:
        with self.log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _LOG_TAIL_BYTES))
            return file.read().decode(errors="replace").strip()


def _popen(command: list[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start ``command`` in the pack's folder; a session of its own keeps the terminal's Ctrl-C from it."""
    return subprocess.Popen(
        command, cwd=PACK, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
    )


_engines: dict[EngineSpec, LocalEngine] = {}
_users: Counter[EngineSpec] = Counter()
_lock = threading.Lock()


def engine_for(spec: EngineSpec, home: Path) -> tuple[LocalEngine, bool]:
    """Return the running (or starting) engine of ``spec``, and whether it was started just now.

    Blocks while idle engines make room for a new one.

    Raises:
        ConfigError: where a local engine cannot run.
    """
    if sys.platform != "linux":
        raise ConfigError(
            "start_failed",
            f"The engine runs on Linux, not on {sys.platform}.",
            field="url",
            remedy="Start it on a Linux machine and give this node its URL.",
        )
    with _lock:
        engine = _engines.get(spec)
        if engine is not None and engine.is_usable:
            return engine, False
        engine = _engines[spec] = LocalEngine(spec, home, beside=_make_room(spec))
        return engine, True


@contextmanager
def using(spec: EngineSpec) -> Iterator[None]:
    """Keep the engine of ``spec`` from being stopped to make room."""
    with _lock:
        _users[spec] += 1
    try:
        yield
    finally:
        with _lock:
            _users[spec] -= 1


def _make_room(spec: EngineSpec) -> tuple[LocalEngine, ...]:
    """Stop the idle engines on the same kind of device as ``spec``; return those that are not idle."""
    rivals = [engine for other, engine in _engines.items() if _are_rivals(other, spec) and engine.is_usable]
    busy = tuple(engine for engine in rivals if _users[engine.spec] > 0 or engine.is_busy)
    for engine in [engine for engine in rivals if engine not in busy]:
        log.info("stopping the idle engine of %s to make room", engine.spec.model)
        engine.stop()
        del _engines[engine.spec]
    return busy


def _are_rivals(one: EngineSpec, other: EngineSpec) -> bool:
    share_work = not (one.stages and other.stages) or not set(one.stages).isdisjoint(other.stages)
    return _kind(one) == _kind(other) and share_work


def _kind(spec: EngineSpec) -> str:
    # The names of accelerators, "auto" included, all mean the one kind that a machine has.
    return "cpu" if spec.device == "cpu" else "accelerator"


def stop_all() -> None:
    """Stop every local engine, all at the same time."""
    with _lock:
        for engine in _engines.values():
            engine.end()
        for engine in _engines.values():
            engine.stop()
        _engines.clear()


atexit.register(stop_all)
