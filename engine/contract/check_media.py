"""What can be checked of keyframes, references, guides and a source before anything is decoded.

How many there are and what each is made of (`media_limits` has the numbers), that a request's parts are the ones it
names, and where on the timeline a guide starts. Lengths and sizes are checked by the process that reads the media.
Raises `RequestError`.
"""

from __future__ import annotations

import dataclasses
from collections import Counter

from . import geometry, media_limits
from .errors import RequestError
from .media import Guide, Keyframe, Media, Reference, Source
from .requests import EncodeMedia, EncodePrompt, Generate, Request, input_parts, media_of, optional_parts
from .tensors import Headers, check_decoded_media

_MAX_RATE = 768_000
_MAX_FPS = 1000.0


def check_parts(request: Request, headers: Headers) -> None:
    """Check that ``headers`` has exactly the parts that ``request`` takes, and those of decoded media.

    Raises:
        RequestError: ``missing_field``, ``unknown_field`` or ``bad_tensor``.
    """
    for name in input_parts(request):
        if name not in headers:
            raise RequestError(
                "missing_field",
                f"The task {request.task!r} needs the part {name!r}.",
                field=f"parts.{name}",
                remedy=f"Send the part {name!r} as safetensors.",
            )
    named = {media.part: (path, media) for path, media in media_of(request)}
    for name, (path, media) in named.items():
        if name not in headers:
            raise RequestError(
                "missing_field",
                f"{path} names the part {name!r}, which was not sent.",
                field=f"request.{path}.part",
                value=name,
                remedy="Send a part of that name with the request.",
            )
        check_decoded_media(media, headers[name])
    wanted = (*input_parts(request), *optional_parts(request), *named)
    for name in headers:
        if name not in wanted and request.task != "echo":
            raise RequestError(
                "unknown_field",
                f"The task {request.task!r} takes no part {name!r}.",
                field=f"parts.{name}",
                remedy=f"It takes {', '.join(wanted) or 'no part'}; of media, the parts that the request names.",
            )


def check_media(request: EncodePrompt | EncodeMedia | Generate) -> None:
    """Check how many media there are and what each is made of.

    Raises:
        RequestError: ``media_limit``, ``bad_media``, ``missing_field`` or ``out_of_range``.
    """
    formats: dict[str, str] = {}
    for path, media in media_of(request):
        _check_one(media, f"request.{path}")
        if formats.setdefault(media.part, media.format) != media.format:
            raise _bad(f"request.{path}.format", media.format, f"The part {media.part!r} has two formats.", "Send two.")
    if isinstance(request, (EncodePrompt, Generate)):
        _check_keyframes(request.keyframes)
        _check_references(request.references)
        if request.keyframes and request.references:
            raise _bad(
                "request.references",
                len(request.references),
                "Keyframes and references do not go together.",
                "Use one or the other; guides hold pictures at any place of the timeline beside references.",
            )
    if isinstance(request, (EncodeMedia, Generate)):
        _check_guides(request.guides)
    if isinstance(request, EncodeMedia):
        _check_source(request.source, request.guides)


def _check_one(media: Media, path: str) -> None:
    for name, of, largest in (("fps", "frames", _MAX_FPS), ("sample_rate", "audio", _MAX_RATE)):
        value = getattr(media, name)
        if value is None:
            continue
        if media.format != of:
            message = f"{name} belongs to media in the format {of!r}; this is {media.format!r}."
            raise _bad(f"{path}.{name}", value, message, f"Leave {name} out.")
        if not 1 <= value <= largest:
            raise RequestError(
                "out_of_range",
                f"{name} must be 1 to {largest:g}.",
                field=f"{path}.{name}",
                value=value,
                remedy="Send the rate that the media were made at.",
            )


def _check_formats(owner: Reference | Guide | Source, path: str) -> None:
    if owner.media is not None and owner.media.format == "audio":
        message = "Pictures come as a file or as frames."
        raise _bad(f"{path}.media.format", "audio", message, "Give sound in the field audio.")
    if owner.audio is not None and owner.audio.format == "frames":
        message = "Sound comes as a file or as a waveform (audio)."
        raise _bad(f"{path}.audio.format", "frames", message, "Give pictures in the field media.")


def _check_keyframes(keyframes: tuple[Keyframe, ...]) -> None:
    ends = Counter(keyframe.at for keyframe in keyframes)
    for index, keyframe in enumerate(keyframes):
        path = f"request.keyframes[{index}]"
        if ends[keyframe.at] > 1:
            message = f"There are {ends[keyframe.at]} keyframes at {keyframe.at!r}."
            remedy = "Give one first and one last; use guides for other frames."
            raise RequestError("media_limit", message, field=f"{path}.at", value=keyframe.at, remedy=remedy)
        if keyframe.media.format == "audio":
            message = "A keyframe is a picture."
            raise _bad(f"{path}.media.format", "audio", message, "Send a picture: a file, or frames.")


def _check_references(references: tuple[Reference, ...]) -> None:
    media_limits.check_reference_counts([reference.kind for reference in references])
    for index, reference in enumerate(references):
        path = f"request.references[{index}]"
        wrong = "frames" if reference.kind == "audio" else "audio"
        if reference.media.format == wrong:
            message = f"A reference of the kind {reference.kind!r} cannot be in the format {wrong!r}."
            raise _bad(f"{path}.media.format", wrong, message, "Correct the kind or the format.")
        if reference.audio is None:
            continue
        if reference.kind != "video" or reference.media.format != "frames":
            message = "Only a video that comes as frames has its sound in a field of its own."
            raise _bad(f"{path}.audio", reference.audio.part, message, "Leave audio out; a file's own sound is taken.")
        _check_formats(reference, path)


def _check_guides(guides: tuple[Guide, ...]) -> None:
    media_limits.check_guide_count(len(guides))
    for index, guide in enumerate(guides):
        path = f"request.guides[{index}]"
        if guide.frame is not None and guide.seconds is not None:
            remedy = "Leave one of them out."
            raise RequestError(
                "out_of_range",
                "Give frame or seconds, not both.",
                field=f"{path}.frame",
                value=guide.frame,
                remedy=remedy,
            )
        _check_some(guide, path, "A guide holds pictures, sound or both.")


def _check_source(source: Source | None, guides: tuple[Guide, ...]) -> None:
    if (source is None) == (not guides):
        raise RequestError(
            "missing_field" if source is None else "out_of_range",
            "encode_media takes guides or a source, one of them.",
            field="request.source",
            remedy="Send guides, or a source.",
        )
    if source is not None:
        _check_some(source, "request.source", "A source has pictures, sound or both.")


def _check_some(owner: Guide | Source, path: str, message: str) -> None:
    if owner.media is None and owner.audio is None:
        raise RequestError("missing_field", message, field=f"{path}.media", remedy="Send media, audio or both.")
    _check_formats(owner, path)


def _bad(field: str, value: object, message: str, remedy: str) -> RequestError:
    return RequestError("bad_media", message, field=field, value=value, remedy=remedy)


def resolve_guides(guides: tuple[Guide, ...], frames: int) -> tuple[Guide, ...]:
    """Return ``guides`` with each start as a frame 0 to ``frames`` - 1 of the timeline.

    Raises:
        RequestError: ``out_of_range`` for a start outside of it.
    """
    return tuple(_resolve_guide(guide, f"request.guides[{index}]", frames) for index, guide in enumerate(guides))


def _resolve_guide(guide: Guide, path: str, frames: int) -> Guide:
    if guide.seconds is not None:
        name, value = "seconds", guide.seconds
        # Compared before it is multiplied: what is not finite, or huge, has no frame.
        start = round(value * geometry.FPS) if 0 <= value <= frames / geometry.FPS else -1
    else:
        name, value = "frame", guide.frame or 0
        start = int(value) if value >= 0 else frames + int(value)
    if not 0 <= start < frames:
        last = (frames - 1) / geometry.FPS
        span = (
            f"0 to {last:.3f} s" if name == "seconds" else f"frames 0 to {frames - 1}, or -{frames} to -1 from the end"
        )
        raise RequestError(
            "out_of_range",
            f"A guide starts inside the timeline: {span}.",
            field=f"{path}.{name}",
            value=value,
            remedy="Start it earlier, or make a longer video.",
        )
    return dataclasses.replace(guide, frame=start, seconds=None)
