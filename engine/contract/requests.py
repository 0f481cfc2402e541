"""What a job is asked to do: one class a task; `parse_request` reads one strictly.

A request is JSON; its tensors and media travel as parts. `stages_of` says what runs for it, `input_parts` what it takes
besides. `messages` puts requests into messages; ``docs/protocol.md`` describes the same and a test compares both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, TypeAlias

from .edits import SourceEdit
from .errors import RequestError
from .fields import parse_object
from .limits import DEFAULT_STEPS
from .media import Condition, EncodedReference, Guide, Keyframe, Media, Reference, Source, named_media

STAGES = ("encode_prompt", "encode_media", "denoise", "decode_video", "decode_audio")
"""The stages an engine may serve (``--stages``)."""


@dataclass(frozen=True)
class EncodePrompt:
    """Text, with keyframes or references, to conditioning. Takes the parts of its media; gives part ``conditioning``.

    ``conditioning`` holds prompt_embeds [1, L, text_dim], token_tags [L] int64, and of keyframes and references the
    tensors that `Condition` and `EncodedReference` name. The job's facts say ``conditions`` and ``references``.

    Attributes:
        prompt: the prompt, verbatim.
        width: of the video to come, pixels; absent with ``height``: follows the first keyframe, else the default
            canvas. height: pixels.
        frames: pixel frames of the video to come; needed with keyframes or references, snapped up to 17n+5.
        keyframes: at most one first and one last. references: in the order that the prompt names them; not both.
    """

    task: Literal["encode_prompt"]
    prompt: str
    width: int | None = None
    height: int | None = None
    frames: int | None = None
    keyframes: tuple[Keyframe, ...] = ()
    references: tuple[Reference, ...] = ()


@dataclass(frozen=True)
class EncodeMedia:
    """Pictures and sound to latents. Takes the parts of its media.

    Guides give part ``conditioning`` with ``conditions.<i>.video`` [1, C, t, h, w] and ``.audio`` [1, Ca, 2, a] and the
    fact ``conditions``; a source gives part ``latents``, as `Denoise` does.

    Attributes:
        width: canvas, pixels; absent with ``height``: the source's own, rounded to the canvas multiple.
        height: pixels.
        frames: pixel frames of the timeline, snapped up to 17n+5; absent: those of the source.
        guides: guides for one timeline. source: a clip to edit; either guides or a source.
    """

    task: Literal["encode_media"]
    width: int | None = None
    height: int | None = None
    frames: int | None = None
    guides: tuple[Guide, ...] = ()
    source: Source | None = None


@dataclass(frozen=True)
class Denoise:
    """Noise to latents. Takes part ``conditioning``; gives part ``latents``, one piece an output.

    ``latents`` holds video [1, C, T, H/16, W/16] and audio [1, Ca, 2, A]. An edit takes the source as part ``latents``
    too, and optionally part ``masks``: video_noise_mask [1, 1, T, H/16, W/16], audio_noise_mask [1, 1, 2, A] float32.

    Attributes:
        width: pixels, a multiple of the canvas multiple.
        height: pixels, likewise.
        frames: pixel frames at 24 fps, 5 or more; snapped up to 17n+5.
        steps: forwards of the transformer, 1 or more.
        seed: 0 to 2^64 - 1.
        pad_seq_len: rows that the packed sequence is padded to, a multiple of 64 not below the used rows
            (`lengths.used_rows`); None: as many as are used.
        conditions: the keyframes and guides in ``conditioning``. references: the references in it.
        num_outputs: 1 to 10 videos, of the seeds ``seed``, ``seed + 1``, …
        video_mask: of an edit, one number for the whole picture in place of a tensor: 0 keeps the source, 1
            regenerates, between is a blend; neither: 1. audio_mask: the same of the sound.
    """

    task: Literal["denoise"]
    width: int
    height: int
    frames: int
    steps: int = DEFAULT_STEPS
    seed: int = 0
    pad_seq_len: int | None = None
    conditions: tuple[Condition, ...] = ()
    references: tuple[EncodedReference, ...] = ()
    num_outputs: int = 1
    video_mask: float | None = None
    audio_mask: float | None = None


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
    """Text and media to a video with sound, all stages in one job. Gives part ``video`` (MP4), or what `Decode` gives.

    Attributes:
        prompt: the prompt, verbatim.
        seconds: duration; either this or ``frames``.
        frames: pixel frames at 24 fps; either this or ``seconds``. Absent both: 5 s.
        width: pixels; absent with ``height``: follows the first keyframe, else the checkpoint's default 16:9 canvas.
        height: pixels.
        steps: forwards of the transformer.
        seed: 0 to 2^64 - 1.
        container: see `Decode`.
        frame_dtype: see `Decode`.
        pad_seq_len: see `Denoise`.
        keyframes: see `EncodePrompt`. references: likewise. guides: see `EncodeMedia`.
        num_outputs: see `Denoise`; the pieces of output i carry ``output`` i.
        edit: a clip that is edited or continued; its length and, absent ``width`` and ``height``, its canvas are the
            video's.
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
    keyframes: tuple[Keyframe, ...] = ()
    references: tuple[Reference, ...] = ()
    guides: tuple[Guide, ...] = ()
    num_outputs: int = 1
    edit: SourceEdit | None = None


@dataclass(frozen=True)
class Echo:
    """Transport check: every input part comes back as it is, by way of rank 0 (``h3-engine ping``)."""

    task: Literal["echo"]


Request: TypeAlias = EncodePrompt | EncodeMedia | Denoise | Decode | Generate | Echo
REQUESTS: dict[str, type[Request]] = {
    "encode_prompt": EncodePrompt,
    "encode_media": EncodeMedia,
    "denoise": Denoise,
    "decode": Decode,
    "generate": Generate,
    "echo": Echo,
}


def media_of(request: Request) -> Iterator[tuple[str, Media]]:
    """Yield every `Media` of ``request`` with the path of its field (``keyframes[0].media``)."""
    if isinstance(request, EncodePrompt):
        return named_media(keyframes=request.keyframes, references=request.references)
    if isinstance(request, EncodeMedia):
        return named_media(guides=request.guides, source=request.source)
    if isinstance(request, Generate):
        conditions = named_media(keyframes=request.keyframes, references=request.references, guides=request.guides)
        return conditions if request.edit is None else chain(conditions, request.edit.media())
    return iter(())


def file_parts(request: Request) -> frozenset[str]:
    """Return the parts of ``request`` that are files, any bytes; all others are safetensors."""
    return frozenset(media.part for _, media in media_of(request) if media.format == "file")


def stages_of(request: Request) -> tuple[str, ...]:
    """Return the stages that ``request`` needs, in the order they run."""
    with_media = ("encode_media",) if next(media_of(request), None) is not None else ()
    if isinstance(request, EncodePrompt):
        return ("encode_prompt", *with_media)
    if isinstance(request, EncodeMedia):
        return ("encode_media",)
    if isinstance(request, Denoise):
        return ("denoise",)
    if isinstance(request, Decode):
        return ("decode_audio", "decode_video")
    if isinstance(request, Generate):
        return ("encode_prompt", *with_media, "denoise", "decode_audio", "decode_video")
    return ()


def input_parts(request: Request) -> tuple[str, ...]:
    """Return the safetensors parts that ``request`` takes, without its media (``echo`` takes any)."""
    if isinstance(request, Denoise):
        return ("conditioning",)
    return ("latents",) if isinstance(request, Decode) else ()


def optional_parts(request: Request) -> tuple[str, ...]:
    """Return the safetensors parts that ``request`` may have besides: those of an edit."""
    return ("latents", "masks") if isinstance(request, Denoise) else ()


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
    """Return the JSON form.

    A field that is None or empty is absent, so that an older engine is not sent what it cannot know.
    """
    return {name: value for name, value in dataclasses.asdict(request).items() if value not in (None, (), [])}
