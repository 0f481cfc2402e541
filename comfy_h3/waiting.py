"""The one place where a node waits: for an engine to be ready, and for its job.

Both waits show on the node what happens, stop at once when the user interrupts (which cancels the job on the engine),
and end in the engine's own error otherwise. Raises `EngineError` and ComfyUI's interrupt.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from ..engine.contract.errors import EngineDeadError, EngineError
from ..engine.contract.limits import ModelFacts
from ..engine.contract.messages import Event, Output, StageFinished, StageStarted, Step, Warned
from ..engine.contract.requests import Request
from . import host
from .address import Address, get_json
from .client import Job, Result
from .convert import ImageStream, piece_to_preview
from .launcher import EngineSpec, LocalEngine, engine_for, using
from .texts import event_text, loading_text

log = logging.getLogger(__name__)
T = TypeVar("T")

_POLL_SECONDS = 0.1
_running: set[asyncio.Task[Any]] = set()
"""What nodes wait for now. ComfyUI runs a node for all entries of a list at once, tells one of them that the user
interrupts, and waits for the others."""


@dataclass(frozen=True)
class ReadyEngine:
    """An engine that takes jobs.

    Attributes:
        address: where it listens.
        facts: of its checkpoint.
        local: its process, when it is ours.
    """

    address: Address
    facts: ModelFacts
    local: LocalEngine | None


async def ready_engine(spec: EngineSpec) -> ReadyEngine:
    """Return the engine of ``spec``, started and loaded.

    Raises:
        EngineError: when it does not start, cannot be reached, or is dead.
    """
    with using(spec):
        return await _interruptible(_ready(spec, _Shown(host.NodeDisplay())))


async def run_job(
    spec: EngineSpec,
    request: Request,
    parts: Mapping[str, bytes] | None = None,
    *,
    notes: Sequence[str] = (),
    report: Callable[[dict[str, Any]], str] = lambda _: "",
    images: ImageStream | None = None,
) -> Result:
    """Run a job on the engine of ``spec``; pictures of what is decoded are shown on the node as they come.

    Args:
        notes: shown on the node beside the engine's warnings.
        report: of the finished job's facts, makes the text to show of its result.
        images: takes the frames as they arrive, which are then not in the result.

    Raises:
        EngineError: the job's error, or why the engine cannot be used.
    """
    shown = _Shown(host.NodeDisplay())
    for note in notes:
        shown.note(note)
    with using(spec):
        result = await _interruptible(_run(spec, request, parts or {}, shown, images))
    shown.text("\n".join(filter(None, [f"Done in {result.seconds:.1f} s", report(result.facts)])))
    return result


async def _interruptible(work: Coroutine[Any, Any, T]) -> T:
    """Await ``work``, cancelling it, and all that other nodes wait for, when the user interrupts."""
    task = asyncio.create_task(work)
    _running.add(task)
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=_POLL_SECONDS)
            try:
                host.raise_if_interrupted()
            except host.Interrupted:
                for other in _running:
                    other.cancel()
                raise
        if task.cancelled():
            raise host.Interrupted
        return task.result()
    finally:
        _running.discard(task)
        task.cancel()
        await asyncio.wait({task})


async def _ready(spec: EngineSpec, shown: _Shown) -> ReadyEngine:
    while True:
        local = None if spec.url else await _local(spec, shown)
        address = await _address(spec, local, shown)
        health = await _ask(address, "/v1/health", local)
        status = health.get("status")
        if status in ("ready", "busy"):
            info = await _ask(address, "/v1/info", local)
            return ReadyEngine(address, _facts(info), local)
        if status == "dead":
            await _bury(address, local, str(health.get("reason") or "unknown"))
        shown.text(loading_text(health))
        await asyncio.sleep(_POLL_SECONDS)


async def _local(spec: EngineSpec, shown: _Shown) -> LocalEngine:
    engine, is_new = await asyncio.to_thread(engine_for, spec, host.engine_home())
    if is_new:
        for other in engine.beside:
            shown.note(f"the engine of {other.model_name} still works on a job and stays loaded beside this one.")
        if spec.device != "cpu":
            host.unload_models()
    return engine


async def _address(spec: EngineSpec, local: LocalEngine | None, shown: _Shown) -> Address:
    if local is None:
        return Address(spec.url, host.token())
    address = local.address()
    while address is None:
        shown.text("Starting the engine")
        await asyncio.sleep(_POLL_SECONDS)
        address = local.address()
    return address


async def _ask(address: Address, path: str, local: LocalEngine | None) -> dict[str, Any]:
    try:
        return await asyncio.to_thread(get_json, address, path)
    except EngineError as error:
        raise _exited(local) or error from error


async def _bury(address: Address, local: LocalEngine | None, reason: str) -> None:
    """Raise the error of an engine that is dead for good; stop a local one, so that the next run starts another."""
    if local is not None:
        await asyncio.to_thread(local.stop)
    raise EngineDeadError(
        "engine_dead",
        f"The engine at {address.url} is dead: {reason}",
        remedy="Run again: a new one is started." if local else "Restart it where it runs.",
    )


def _facts(info: Mapping[str, Any]) -> ModelFacts:
    """Return the checkpoint's facts from ``/v1/info``; those that it does not name are the released ones."""
    known = {f.name for f in fields(ModelFacts)}
    facts = info.get("facts", {})
    return ModelFacts(**{name: value for name, value in facts.items() if name in known})


async def _run(
    spec: EngineSpec, request: Request, parts: Mapping[str, bytes], shown: _Shown, images: ImageStream | None
) -> Result:
    engine = await _ready(spec, shown)

    async def take_piece(output: Output, data: bytearray, facts: Mapping[str, Any]) -> bool:
        if output.name == "preview":
            picture = piece_to_preview(data)
        elif output.name == "frames" and images is not None:
            picture = images.take(output.index, data, total=facts["frames"])
        else:
            return False
        await shown.display.preview(picture)
        return True

    def exited() -> EngineError | None:
        return _exited(engine.local)

    job = Job(engine.address, request, parts, on_event=shown.take, given_up=exited, on_piece=take_piece)
    try:
        result = await job.run()
    except EngineError as error:
        if engine.local is not None and error.code == "rank_lost":
            error.remedy = f"{error.remedy or ''} The engine's log is {engine.local.log}.".lstrip()
        raise
    await shown.display.progress(1.0)
    return result


class _Shown:
    """Puts a job's events on the node."""

    def __init__(self, display: host.NodeDisplay) -> None:
        self.display = display
        self._notes: list[str] = []

    def note(self, text: str) -> None:
        """Keep ``text`` on the node until the job is over, and after."""
        log.warning("%s", text)
        self._notes.append(f"Note: {text}")

    def text(self, text: str) -> None:
        """Show ``text`` above the notes."""
        self.display.text("\n".join([text, *self._notes]))

    async def take(self, event: Event) -> None:
        """Show one event."""
        if isinstance(event, Warned):
            self.note(event.message)
            return
        text = event_text(event)
        if text is not None:
            self.text(text)
        if isinstance(event, (Step, StageStarted, StageFinished)):
            await self.display.progress(event.progress)


def _exited(local: LocalEngine | None) -> EngineError | None:
    return None if local is None else local.exited()
