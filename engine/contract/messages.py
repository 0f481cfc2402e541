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
from .limits import DEFAULT_STEPS

STAGES = ("encode_prompt", "denoise", "decode_video", "decode_audio")
"""The stages an engine may serve (``--stages``)."""


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


# --- requests: what a job is asked to do ---------------------------------------------------------------------------


@dataclass(frozen=True)
class EncodePrompt:
    """Text to conditioning. Gives part ``conditioning``: prompt_embeds [1, L, text_dim], token_tags [L] int64.

    Attributes:
        prompt: the prompt, verbatim.
    """

    task: Literal["encode_prompt"]
    prompt: str


@dataclass(frozen=True)
class Denoise:
    """Noise to latents. Takes part ``conditioning``; gives part ``latents``.

    ``latents`` holds video [1, C, T, H/16, W/16] and audio [1, Ca, 2, A].

    Attributes:
        width: pixels, a multiple of the canvas multiple.
        height: pixels, likewise.
        frames: pixel frames at 24 fps, 5 or more; snapped up to 17n+5.
        steps: forwards of the transformer, 1 or more.
        seed: 0 to 2^64 - 1.
        pad_seq_len: rows that the packed sequence is padded to, a multiple of 64 not below the used rows
            (`lengths.used_rows`); None: as many as are used.
    """

    task: Literal["denoise"]
    width: int
    height: int
    frames: int
    steps: int = DEFAULT_STEPS
    seed: int = 0
    pad_seq_len: int | None = None


@dataclass(frozen=True)
class Decode:
    """Latents to pictures and sound. Takes part ``latents``.

    Attributes:
        container: ``tensors`` gives parts ``frames`` [F, H, W, 3] and ``audio`` [1, 2, N] float32;
            ``mp4`` gives part ``video`` (H.264 + AAC).
        frame_dtype: of ``frames``: ``uint8`` (rounded as diffusers does) or ``float32`` in 0..1.
    """

    task: Literal["decode"]
    container: Literal["tensors", "mp4"] = "tensors"
    frame_dtype: Literal["uint8", "float32"] = "uint8"


@dataclass(frozen=True)
class Generate:
    """Text to a video with sound, all stages in one job. Gives part ``video`` (MP4), or what `Decode` gives.

    Attributes:
        prompt: the prompt, verbatim.
        seconds: duration; either this or ``frames``.
        frames: pixel frames at 24 fps; either this or ``seconds``. Absent both: 5 s.
        width: pixels; absent with ``height``: the checkpoint's default 16:9 canvas.
        height: pixels.
        steps: forwards of the transformer.
        seed: 0 to 2^64 - 1.
        container: see `Decode`.
        frame_dtype: see `Decode`.
        pad_seq_len: see `Denoise`.
    """

    task: Literal["generate"]
    prompt: str
    seconds: float | None = None
    frames: int | None = None
    width: int | None = None
    height: int | None = None
    steps: int = DEFAULT_STEPS
    seed: int = 0
    container: Literal["tensors", "mp4"] = "mp4"
    frame_dtype: Literal["uint8", "float32"] = "uint8"
    pad_seq_len: int | None = None


@dataclass(frozen=True)
class Echo:
    """Transport check: every input part comes back as it is, by way of rank 0 (``h3-engine ping``)."""

    task: Literal["echo"]


Request: TypeAlias = EncodePrompt | Denoise | Decode | Generate | Echo
REQUESTS: dict[str, type[Request]] = {
    "encode_prompt": EncodePrompt,
    "denoise": Denoise,
    "decode": Decode,
    "generate": Generate,
    "echo": Echo,
}
STAGES_OF: dict[str, tuple[str, ...]] = {
    "encode_prompt": ("encode_prompt",),
    "denoise": ("denoise",),
    "decode": ("decode_audio", "decode_video"),
    "generate": ("encode_prompt", "denoise", "decode_audio", "decode_video"),
    "echo": (),
}
"""The stages of each task, in the order they run."""
INPUT_PARTS: dict[str, tuple[str, ...]] = {
    "encode_prompt": (),
    "denoise": ("conditioning",),
    "decode": ("latents",),
    "generate": (),
    "echo": (),
}
"""The parts each task needs (``echo`` takes any)."""


def parse_request(data: Mapping[str, Any], *, path: str = "request") -> Request:
    """Read a request strictly.

    Raises:
        RequestError: ``missing_field`` without ``task``, ``unknown_message`` for an unknown one, else as
            `parse_object`.
    """
    task = data.get("task")
    if task is None:
        raise RequestError(
            "missing_field",
            "A request names its task.",
            field=f"{path}.task",
            remedy=f"Use one of {', '.join(REQUESTS)}.",
        )
    cls = REQUESTS.get(task) if isinstance(task, str) else None
    if cls is None:
        raise RequestError(
            "unknown_message",
            f"There is no task {task!r}.",
            field=f"{path}.task",
            value=task,
            remedy=f"Use one of {', '.join(REQUESTS)}.",
        )
    return parse_object(cls, data, path=path)


def request_to_dict(request: Request) -> dict[str, Any]:
    """Return the JSON form; a field that is None is absent, so that an older engine is not sent what it cannot know."""
    return {name: value for name, value in dataclasses.asdict(request).items() if value is not None}


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
    """The job waits. ``position`` 1 is next; ``reason`` says for what (``loading``, ``busy``, ``restarting``)."""

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
    """A stage is done after ``seconds``."""

    stage: str
    seconds: float
    progress: float


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
    """

    name: str
    index: int
    last: bool
    format: Literal["safetensors", "mp4"]
    message: int = 0
    parts: tuple[Part, ...] = ()


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
    "untrained_tiles": "the VAE's tiles are not those that it was trained on",
    "silent_audio": "the soundtrack is silent or constant",
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
