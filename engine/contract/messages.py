"""Every message of the websocket and the HTTP bodies, grouped by receiver.

A message is a JSON object whose ``type`` names its class here (`TO_ENGINE`, `TO_CLIENT`); `parse_to_engine` reads one
strictly. Tensors and files do not travel in messages but as parts (see `framing`); a message lists them in ``parts``.
``docs/protocol.md`` describes the same and a test compares both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from .errors import RequestError
from .fields import parse_object


@dataclass(frozen=True)
class Part:
    """A blob that follows its message in binary frames.

    Attributes:
        name: the part's name, unique within its message (``conditioning``, ``latents``, ``frames``, ``video``).
        bytes: its length.
        sha256: hexadecimal digest of its bytes.
    """

    name: str
    bytes: int
    sha256: str


# --- to the engine ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Submit:
    """Start a job.

    Attributes:
        protocol: the client's protocol version.
        job_id: a UUID that the client picks.
        request: one of the requests.
        message: number of this message; its parts' frames carry it. Needed with parts.
        parts: the parts that follow.
    """

    protocol: int
    job_id: str
    request: dict[str, Any]
    message: int = 0
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True)
class Cancel:
    """Cancel a job at its next step or chunk boundary."""

    job_id: str


@dataclass(frozen=True)
class Resume:
    """Go on listening to a job after a lost connection.

    Attributes:
        protocol: the client's protocol version.
        job_id: the job.
        after: the last event number that arrived; later ones are sent again.
    """

    protocol: int
    job_id: str
    after: int = 0


@dataclass(frozen=True)
class Received:
    """The client has all events up to ``after``, with their bytes: chunks of ``frames`` among them may be deleted.

    Attributes:
        job_id: the job.
        after: the last event number that arrived; `Resume` cannot go back before it any more.
    """

    job_id: str
    after: int


TO_ENGINE: dict[str, type[Any]] = {"submit": Submit, "cancel": Cancel, "resume": Resume, "received": Received}


def parse_to_engine(data: Mapping[str, Any]) -> Submit | Cancel | Resume | Received:
    """Read a client's message strictly.

    Raises:
        RequestError: ``unknown_message`` or as `parse_object`.
    """
    kind = data.get("type")
    cls = TO_ENGINE.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise RequestError(
            "unknown_message",
            f"There is no message {kind!r}.",
            field="type",
            value=kind,
            remedy=f"Use one of {', '.join(TO_ENGINE)}.",
        )
    message: Submit | Cancel | Resume | Received = parse_object(cls, data, path="", skip=("type",))
    return message


# --- to the client: events of a job, numbered by ``seq`` -------------------------------------------------------------


@dataclass(frozen=True)
class Queued:
    """The job waits. ``position`` 1 is next; ``reason`` says for what.

    ``media`` while its pictures and sound are read, else the engine's status (``loading``, ``busy``, ``restarting``).
    """

    position: int
    reason: str


@dataclass(frozen=True)
class Started:
    """The ranks took the job. ``stages`` lists what will run, ``facts`` what the request came to (snapped frames)."""

    stages: list[str]
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StageStarted:
    """A stage begins. ``progress`` is of the whole job, 0..1, and never goes back."""

    stage: str
    progress: float


@dataclass(frozen=True)
class Step:
    """A step (denoise) or chunk (decode) is done: ``step`` of ``total``; ``remaining_seconds`` of the whole stage."""

    stage: str
    step: int
    total: int
    remaining_seconds: float
    progress: float


@dataclass(frozen=True)
class StageFinished:
    """A stage is done after ``seconds``; ``cached``: its result was known already, and it never started."""

    stage: str
    seconds: float
    progress: float
    cached: bool = False


@dataclass(frozen=True)
class Warned:
    """Something the user should know; the job goes on. ``code`` is one of `WARNINGS`."""

    code: str
    message: str


@dataclass(frozen=True)
class Output:
    """A piece of the result; its bytes follow as ``parts``.

    Attributes:
        name: ``conditioning``, ``latents``, ``frames``, ``audio``, ``preview``, ``video`` or, for ``echo``, the
            input's name.
        index: 0, 1, … among the pieces of this name (``frames`` come chunk by chunk, to be joined in this order).
        last: whether it is the last piece of this name.
        format: ``safetensors`` or ``mp4``.
        message: number that the parts' frames carry.
        parts: the one part of this piece.
        output: which of the request's ``num_outputs`` the piece belongs to, from 0; ``index`` and ``last`` count in it.
    """

    name: str
    index: int
    last: bool
    format: Literal["safetensors", "mp4"]
    message: int = 0
    parts: tuple[Part, ...] = ()
    output: int = 0


@dataclass(frozen=True)
class Done:
    """The job is finished; ``facts`` are counts of the result (frames, width, height, seconds of sound)."""

    seconds: float
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Failed:
    """The job ended without a result; ``error`` is `EngineError.to_dict` (``cancelled`` included)."""

    error: dict[str, Any]


Event: TypeAlias = Queued | Started | StageStarted | Step | StageFinished | Warned | Output | Done | Failed
TO_CLIENT: dict[str, type[Any]] = {
    "queued": Queued,
    "started": Started,
    "stage_started": StageStarted,
    "step": Step,
    "stage_finished": StageFinished,
    "warning": Warned,
    "output": Output,
    "done": Done,
    "error": Failed,
}
_TYPE_OF = {cls: kind for kind, cls in TO_CLIENT.items()}

WARNINGS: dict[str, str] = {
    "frames_snapped": "the frame count was moved up to the lattice 17n+5",
    "untrained_length": "the duration is outside the trained range",
    "untrained_canvas": "the canvas is larger than the trained area",
    "media_cut": "a clip or sound was cut to what fits",
    "media_held": "a clip was lengthened by holding its last picture",
    "media_alpha": "a picture has transparent parts; their stored colours are shown",
    "large_reference": "a reference takes more rows than the model was trained with",
    "untrained_tiles": "the VAE's tiles are not those that it was trained on",
    "silent_audio": "the soundtrack is silent or constant",
    "mask_effect": "a mask changes nothing, or leaves nothing of the source",
    "nan_result": "the result holds values that are not numbers",
    "queue_wait": "the job waits for another one",
}


def event_to_dict(event: Event, *, job_id: str, seq: int) -> dict[str, Any]:
    """Return the JSON form: ``type``, ``job_id``, ``seq`` and the event's own fields."""
    return {"type": _TYPE_OF[type(event)], "job_id": job_id, "seq": seq, **dataclasses.asdict(event)}


def event_from_dict(data: Mapping[str, Any]) -> Event:
    """Read an event; fields that a newer engine added are ignored.

    Raises:
        RequestError: ``unknown_message`` for an unknown type.
    """
    cls = TO_CLIENT.get(str(data.get("type")))
    if cls is None:
        raise RequestError(
            "unknown_message",
            f"There is no event {data.get('type')!r}.",
            field="type",
            value=data.get("type"),
            remedy="Use a client as new as the engine.",
        )
    known = {f.name for f in dataclasses.fields(cls)}
    event: Event = parse_object(cls, {k: v for k, v in data.items() if k in known}, path="")
    return event
