"""Making a shot longer: where its latents stand in a longer one, for picture and sound together.

A latent of F = 17n+5 frames has T = 5n+2 video latents, whose pixel frames cycle through (1, 4, 4, 4, 4), and
round(5F/3) audio latents per channel. Latents may only move by whole chunks, else each would stand for other frames
than it was made of; and only by `STRIDE_FRAMES`, three chunks, else the sound, 85/3 latents a chunk, would move by a
fraction of a latent against the picture, each time it is done. Promise: every video latent keeps its place in its
chunk; picture and sound start together, exactly, so that any number of extensions, joined, differ in length by at most
half an audio latent (12.5 ms). Pure arithmetic; raises `RequestError`.

A clip that was lengthened to the lattice, by holding its last picture and by silence, ends where it ended before: what
comes after it begins there, and latents that hold any of what was added are made anew.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from . import geometry
from .errors import RequestError

_CHUNKS = 3
STRIDE_FRAMES = _CHUNKS * geometry.FRAMES_PER_CHUNK
"""Pixel frames that latents move by, 51 (2.125 s): the fewest that are whole latents of both streams."""
STRIDE_LATENTS = _CHUNKS * geometry.LATENTS_PER_CHUNK
"""The same in video latents, 15."""
STRIDE_AUDIO = STRIDE_FRAMES * geometry.AUDIO_LATENTS_PER_SECOND // geometry.FPS
"""The same in audio latents, 85."""
_LONGEST_HELD = geometry.FRAMES_PER_CHUNK
"""No clip is lengthened by so many frames."""


@dataclass(frozen=True)
class OwnLength:
    """What of a latent is the clip's own, from its start: the rest is its last picture, held, and silence.

    Attributes:
        frames: pixel frames. audio_latents: of a channel, that hold nothing but its sound.
    """

    frames: int
    audio_latents: int

    @classmethod
    def whole(cls, frames: int) -> OwnLength:
        """Return that of a latent of ``frames`` pixel frames, all its own."""
        return cls(frames, geometry.audio_latents(frames))

    def fits(self, frames: int) -> bool:
        """Whether a latent of ``frames`` pixel frames, on the lattice, can be a clip of this length."""
        held = frames - self.frames
        return (
            0 <= held < _LONGEST_HELD and self.frames > 0 and 0 <= self.audio_latents <= geometry.audio_latents(frames)
        )


@dataclass(frozen=True)
class Extension:
    """A longer latent: what is taken of the source and where it is kept; everything else is new.

    The whole shot afterwards is: the source before ``taken``, the new latent, the source after ``taken``, joined end to
    end, latents or decoded frames and samples alike; of a source that grows after its end nothing comes after.

    Attributes:
        frames: pixel frames of the new latent, on the lattice 17n+5.
        own: what of it is no lengthening of the clip's; all of it when something comes after.
        taken_latents: video latents of the source, those that stay as context. kept_latents: where they stand in the
            new latent. taken_audio, kept_audio: the same in audio latents.
    """

    frames: int
    own: OwnLength
    taken_latents: range
    kept_latents: range
    taken_audio: range
    kept_audio: range

    @property
    def kept_frames(self) -> range:
        """Pixel frames of the new latent that the kept video latents cover."""
        start = geometry.frames_of_latents(self.kept_latents.start)
        return range(start, geometry.frames_of_latents(self.kept_latents.stop))

    @property
    def video_mask(self) -> tuple[float, ...]:
        """The mask of each of the T new video latents: 0 kept, 1 made."""
        return tuple(float(latent not in self.kept_latents) for latent in range(geometry.latent_frames(self.frames)))

    @property
    def audio_mask(self) -> tuple[float, ...]:
        """The mask of each of the A new audio latents of a channel."""
        return tuple(float(latent not in self.kept_audio) for latent in range(geometry.audio_latents(self.frames)))


def plan_extension(
    frames: int,
    *,
    own: OwnLength | None = None,
    before: float = 0.0,
    after: float = 0.0,
    overlap: int | None = None,
    path: str = "",
) -> Extension:
    """Return the extension of a latent of ``frames`` pixel frames, on the lattice 17n+5.

    Args:
        own: what of it is a clip's own; None: all of it.
        before: seconds to add before it; comes to whole strides of 51 frames, up.
        after: seconds to add after it, from where the clip ends; the new length snaps up to the lattice.
        overlap: pixel frames of the source that stay in the new latent as context, at the end that grows: for a source
            that is too long to run whole. Snaps up to 17k+5 where that keeps the sound in step, at most the source.
            None: all of it.
        path: goes before the fields' names in errors.

    Raises:
        RequestError: ``out_of_range``.
    """
    _check(frames, before, after, overlap, path)
    own = own or OwnLength.whole(frames)
    first, moved = 0, math.ceil(_whole_frames(before) / STRIDE_FRAMES)
    length = frames
    if overlap is not None and overlap < own.frames:
        if after:
            first = max(0, own.frames - geometry.snap_frames(overlap)) // STRIDE_FRAMES
            length = frames - first * STRIDE_FRAMES
        else:
            length = min(frames, geometry.snap_frames(overlap))
    left = OwnLength(
        min(own.frames - first * STRIDE_FRAMES, length),
        min(max(0, own.audio_latents - first * STRIDE_AUDIO), geometry.audio_latents(length)),
    )
    added = moved * STRIDE_FRAMES
    # Without anything after, the sum is on the lattice already, and what is held stays: it is the end.
    wanted = max(geometry.MIN_FRAMES, added + left.frames + _whole_frames(after))
    total = geometry.snap_frames(wanted) if after else added + length
    kept = _whole_latents(left.frames) if after else geometry.latent_frames(length)
    audio = left.audio_latents if after else geometry.audio_latents(length)
    return Extension(
        frames=total,
        own=OwnLength.whole(total)
        if after
        else OwnLength(added + left.frames, moved * STRIDE_AUDIO + left.audio_latents),
        taken_latents=_run(first * STRIDE_LATENTS, kept),
        kept_latents=_run(moved * STRIDE_LATENTS, kept),
        taken_audio=_run(first * STRIDE_AUDIO, audio),
        kept_audio=_run(moved * STRIDE_AUDIO, audio),
    )


def moved_by(before: float) -> tuple[int, int]:
    """Return by how many latents, of video and of sound, a source moves for ``before`` seconds in front of it."""
    strides = math.ceil(_whole_frames(before) / STRIDE_FRAMES)
    return strides * STRIDE_LATENTS, strides * STRIDE_AUDIO


def _whole_latents(frames: int) -> int:
    """Return how many video latents hold nothing but the first ``frames`` >= 1 pixel frames."""
    latents = 1
    while geometry.frames_of_latents(latents + 1) <= frames:
        latents += 1
    return latents


def _run(start: int, length: int) -> range:
    return range(start, start + length)


def _whole_frames(seconds: float) -> int:
    """Return the frames nearest to ``seconds``, at least one of more than nothing."""
    return max(round(seconds * geometry.FPS), int(seconds > 0))


def _check(frames: int, before: float, after: float, overlap: int | None, path: str) -> None:
    if frames < geometry.MIN_FRAMES or frames != geometry.snap_frames(frames):
        raise _out_of_range(
            f"{path}source",
            frames,
            f"A latent of {frames} frames is not of the model's lengths 17n+5.",
            "Extend a latent as it came from the sampler or the encoder.",
        )
    longest = geometry.MAX_SECONDS
    for name, seconds in (("before", before), ("after", after)):
        if not 0 <= seconds <= longest:
            message = f"{name} is a number of seconds, 0 or more."
            raise _out_of_range(f"{path}{name}", seconds, message, "Ask for a few seconds, as 4.")
    if not before and not after:
        raise _out_of_range(f"{path}after", after, "Nothing is to be added.", "Give seconds before or after.")
    if overlap is None:
        return
    if overlap < geometry.MIN_FRAMES:
        message = f"At least {geometry.MIN_FRAMES} frames of the source stay as context."
        raise _out_of_range(f"{path}overlap", overlap, message, "Keep 22 frames or more, or leave it out: all of it.")
    if before and after and overlap < frames:
        message = "A source that grows at both ends stays whole."
        raise _out_of_range(f"{path}overlap", overlap, message, "Leave overlap out, or extend one end after the other.")


def _out_of_range(field: str, value: object, message: str, remedy: str) -> RequestError:
    return RequestError("out_of_range", message, field=field, value=value, remedy=remedy)
