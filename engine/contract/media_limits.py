"""How many media a request may carry, how long and how large: one table, and a function for each rule.

`check_media` counts before anything is read; the rest is called with what reading found (``engine/media/``).
Durations are those of the decoded frames at 24 fps and of the decoded samples. All raise `RequestError` naming field,
value and remedy: ``media_limit``, or ``bad_aspect``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from . import geometry
from .errors import RequestError
from .media import ReferenceKind


@dataclass(frozen=True)
class MediaLimits:
    """The released model's limits.

    Attributes:
        images, videos, audios: reference images, videos and standalone sounds of a request. references: of all kinds.
        guides: guides of a request.
        min_seconds, max_seconds: of a reference video, its soundtrack and a standalone sound, each.
        soundtrack_seconds: of all reference videos' soundtracks. audio_seconds: of all standalone sounds.
        slack_seconds: by how much a duration may miss a limit: coders pad, and frames are 42 ms long.
        aspect: longer side of a reference image over its shorter one.
        pixels: of one picture, as it is stored.
    """

    images: int = 9
    videos: int = 3
    audios: int = 3
    references: int = 12
    guides: int = 64
    min_seconds: float = 2.0
    max_seconds: float = 15.0
    soundtrack_seconds: float = 15.0
    audio_seconds: float = 15.0
    slack_seconds: float = 0.05
    aspect: float = 4.0
    pixels: int = 2**27


MEDIA_LIMITS = MediaLimits()
_LAST_SECONDS = MEDIA_LIMITS.max_seconds + MEDIA_LIMITS.slack_seconds


def check_reference_counts(kinds: Sequence[ReferenceKind]) -> None:
    """Check how many references of each kind there are, and that they are not sounds alone.

    Raises:
        RequestError: ``media_limit``.
    """
    limits = MEDIA_LIMITS
    counted: tuple[tuple[ReferenceKind, int], ...] = (
        ("image", limits.images),
        ("video", limits.videos),
        ("audio", limits.audios),
    )
    for kind, most in counted:
        if kinds.count(kind) > most:
            raise _too_many(f"{kind} references", kinds.count(kind), most)
    if len(kinds) > limits.references:
        raise _too_many("references", len(kinds), limits.references)
    if kinds and set(kinds) == {"audio"}:
        raise RequestError(
            "media_limit",
            "Reference sounds alone are not enough: the model wants an image or a video beside them.",
            field="request.references",
            value=f"{len(kinds)} audio",
            remedy="Add an image or video reference.",
        )


def check_guide_count(count: int) -> None:
    """Check how many guides there are.

    Raises:
        RequestError: ``media_limit``.
    """
    if count > MEDIA_LIMITS.guides:
        raise _too_many("guides", count, MEDIA_LIMITS.guides, "request.guides")


def _too_many(what: str, count: int, most: int, field: str = "request.references") -> RequestError:
    return RequestError(
        "media_limit",
        f"At most {most} {what} fit a request; there are {count}.",
        field=field,
        value=count,
        remedy=f"Remove {count - most}.",
    )


def check_duration(seconds: float, *, field: str, what: str, promised: float | None = None) -> None:
    """Check one reference video, soundtrack or sound.

    Args:
        seconds: as decoded; reading stops soon after the limit. what: ``video``, ``soundtrack`` or ``sound``.
        promised: what a file says of its own length, for the message.

    Raises:
        RequestError: ``media_limit`` naming 2 or 15 s.
    """
    limits = MEDIA_LIMITS
    if seconds < limits.min_seconds - limits.slack_seconds:
        raise RequestError(
            "media_limit",
            f"A reference {what} lasts at least {limits.min_seconds:g} s; this one lasts {seconds:.2f} s.",
            field=field,
            value=round(seconds, 3),
            remedy=f"Use one of {limits.min_seconds:g} to {limits.max_seconds:g} s.",
        )
    if seconds > _LAST_SECONDS:
        length = max(seconds, promised or 0.0)
        raise RequestError(
            "media_limit",
            f"A reference {what} lasts at most {limits.max_seconds:g} s; this one lasts {length:.2f} s or more.",
            field=field,
            value=round(length, 3),
            remedy=f"Cut it to {limits.max_seconds:g} s.",
        )


def check_frames(frames: int, *, field: str) -> None:
    """Check that a reference video has enough frames at 24 fps to be encoded at all.

    Raises:
        RequestError: ``media_limit`` that says how many were found.
    """
    if frames < geometry.MIN_FRAMES:
        raise RequestError(
            "media_limit",
            f"A reference video has at least {geometry.MIN_FRAMES} frames at 24 fps; {frames} "
            f"{'was' if frames == 1 else 'were'} found.",
            field=field,
            value=frames,
            remedy=f"Use a clip of {MEDIA_LIMITS.min_seconds:g} to {MEDIA_LIMITS.max_seconds:g} s.",
        )


def check_budgets(*, soundtracks: Sequence[float], sounds: Sequence[float]) -> None:
    """Check the sums of durations, seconds: of the reference videos' soundtracks, and of the standalone sounds.

    Raises:
        RequestError: ``media_limit`` naming the sum and the 15 s.
    """
    limits = MEDIA_LIMITS
    for what, lengths, most in (
        ("soundtracks of the reference videos", soundtracks, limits.soundtrack_seconds),
        ("reference sounds", sounds, limits.audio_seconds),
    ):
        if sum(lengths) > most + limits.slack_seconds:
            raise RequestError(
                "media_limit",
                f"The {what} last {sum(lengths):.2f} s together; at most {most:g} s fit.",
                field="request.references",
                value=round(sum(lengths), 3),
                remedy=f"Cut or remove some, to {most:g} s in all.",
            )


def check_aspect(width: int, height: int, *, field: str) -> None:
    """Check the shape of a reference, pixels.

    Raises:
        RequestError: ``bad_aspect``.
    """
    if max(width, height) > MEDIA_LIMITS.aspect * min(width, height):
        raise RequestError(
            "bad_aspect",
            f"A reference is between 1:4 and 4:1; this one is {width}x{height}.",
            field=field,
            value=f"{width}x{height}",
            remedy="Crop it.",
        )


def check_pixels(width: int, height: int, *, field: str) -> None:
    """Check the size of a picture before its pixels are decoded.

    Raises:
        RequestError: ``media_limit``.
    """
    if width * height > MEDIA_LIMITS.pixels:
        raise RequestError(
            "media_limit",
            f"A picture has at most {MEDIA_LIMITS.pixels / 1e6:.0f} million pixels; this one is {width}x{height}.",
            field=field,
            value=f"{width}x{height}",
            remedy="Make it smaller.",
        )


def guide_length(found: int, *, start: int, frames: int, path: str, whole: bool = True) -> int:
    """Return how many frames of a guide's clip are used: 17k+5, or of fewer than 5 the first.

    Args:
        found: frames of the clip at 24 fps, 1 or more. start: where it starts, 0 or more. frames: of the timeline.
        whole: whether the clip has no more than were found.

    Raises:
        RequestError: ``media_limit`` when they reach beyond the end.
    """
    length = geometry.floor_frames(found)
    if start + length > frames:
        cut = f"Cut it to {geometry.floor_frames(frames - start)} frames"
        raise RequestError(
            "media_limit",
            f"A guide of {length} frames{'' if whole else ' or more'} at frame {start} does not fit in the video's "
            f"{frames} frames.",
            field=f"{path}.media",
            value=found if whole else f"{found} or more",
            remedy=f"{cut}, or start it at frame {frames - length}." if whole and length <= frames else f"{cut}.",
        )
    return length


def guide_audio_latents(*, start: int, frames: int) -> int:
    """Return the most audio latents that a guide's sound may have: floor(A - 5/3 * start), at least 1."""
    per_frame = Fraction(geometry.AUDIO_LATENTS_PER_SECOND, geometry.FPS)
    return max(1, math.floor(geometry.audio_latents(frames) - per_frame * start))
