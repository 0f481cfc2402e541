"""Keyframes, guides and a source to edit, on the canvas of the video.

Keyframes, as diffusers does it: the first given is stretched to the canvas, which follows its shape unless the request
names one; a follower is cover-cropped. Guides are cover-cropped, their clips floored to 17k+5 frames or cut to the
first, their sound cut to the latents that the timeline has left.
A source to edit keeps its own size, rounded to the canvas multiple, unless the request names one, and is cover-cropped;
it loses no picture: its last one is held until the frame count is on the lattice (a request's own count cuts it), and
its sound is cut or followed by silence to the same end.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from ..contract import geometry, media_limits
from ..contract.edits import SourceEdit
from ..contract.errors import RequestError
from ..contract.extend import OwnLength
from ..contract.media import Guide, Keyframe, Source
from .files import bad_media, reading
from .fit import cover_crop, stretch
from .job import Found, MediaJob, seconds_of, write_clip
from .sound import Waveform, fitted, to_model
from .store import PreparedPart

_ROUNDING = geometry.SAMPLE_RATE // 1000
"""Samples by which a sound that ends with its pictures may seem shorter: it was cut, or brought to another rate."""


@dataclasses.dataclass(frozen=True)
class Canvas:
    """The video that media are prepared for: pixels, and pixel frames 17n+5.

    Attributes:
        own: of a source, what of it is the clip's. own_size: of its pictures, (width, height), before they were fitted.
    """

    width: int
    height: int
    frames: int
    own: OwnLength | None = None
    own_size: tuple[int, int] | None = None


def in_packed_order(keyframes: Sequence[Keyframe]) -> tuple[Keyframe, ...]:
    """Return the first keyframe, then the last, whatever order they were sent in."""
    return tuple(sorted(keyframes, key=lambda keyframe: keyframe.at != "first"))


def prepare_keyframes(
    job: MediaJob, keyframes: Sequence[Keyframe], *, width: int | None, height: int | None, frames: int
) -> tuple[Canvas, list[dict[str, Any]]]:
    """Make the parts ``keyframes.<i>``; return the canvas and of each keyframe its facts.

    Args:
        keyframes: one or more, as `in_packed_order`. width, height: of the request; None: the first one decides.
    """
    facts = []
    for index, keyframe in enumerate(keyframes):
        field = f"request.keyframes[{index}].media"
        pixels = job.picture(keyframe.media, f"keyframes[{index}].media")
        if width is None or height is None:
            own_height, own_width = pixels.shape[:2]
            media_limits.check_aspect(own_width, own_height, field=field)
            width, height = geometry.default_canvas(
                own_width,
                own_height,
                short_edge=job.facts.canvas_short_edge,
                max_pixels=job.facts.canvas_max_pixels,
                multiple=job.facts.canvas_multiple,
            )
        part = job.part(f"keyframes.{index}")
        part.add(cover_crop(pixels, width, height, field=field) if index else stretch(pixels, width, height))
        part.finish()
        facts.append({"frame": 0 if keyframe.at == "first" else frames - 1, "frames": 1, "audio_latents": 0})
    assert width is not None
    assert height is not None
    return Canvas(width, height, frames), facts


def prepare_guides(job: MediaJob, guides: Sequence[Guide], canvas: Canvas) -> list[dict[str, Any]]:
    """Make the parts ``guides.<i>``; return of each guide its frame, frames and audio_latents.

    Args:
        guides: with their starts resolved to frames of the canvas.
    """
    return [_guide(job, guide, index, canvas) for index, guide in enumerate(guides)]


def _guide(job: MediaJob, guide: Guide, index: int, canvas: Canvas) -> dict[str, Any]:
    path, start = f"guides[{index}]", guide.frame or 0
    part = job.part(f"guides.{index}")
    length = 0
    if guide.media is not None:
        length = _guide_pictures(job, guide, part, path, canvas)
    most = media_limits.guide_audio_latents(start=start, frames=canvas.frames)
    seconds = Fraction(most, geometry.AUDIO_LATENTS_PER_SECOND)
    sound = job.sound(guide, path, seconds=float(seconds) + 1)
    waveform: Waveform | None = None
    if sound is not None:
        field = f"request.{path}.{'media' if guide.audio is None else 'audio'}"
        waveform = to_model(sound, seconds=seconds, rate=job.facts.sample_rate, field=field)
        waveform = waveform[:, : most * geometry.SAMPLES_PER_AUDIO_LATENT]
        if guide.audio is not None and sound.seconds > seconds:
            job.warn("media_cut", f"The sound of {path} was cut to {float(seconds):.2f} s, where the video ends.")
        if not waveform.shape[1]:
            waveform = None
    if waveform is None and guide.media is None:
        raise bad_media("There is no sound in it.", field=f"request.{path}.audio")
    part.finish(waveform, frames=length)
    audio = 0 if waveform is None else geometry.latents_of_samples(waveform.shape[1])
    return {"frame": start, "frames": length, "audio_latents": audio}


def _guide_pictures(job: MediaJob, guide: Guide, part: PreparedPart, path: str, canvas: Canvas) -> int:
    """Write a guide's pictures; return how many are used."""
    assert guide.media is not None
    start, field = guide.frame or 0, f"request.{path}.media"
    room = canvas.frames - start
    with reading(field):
        clip = job.clip(guide.media, f"{path}.media")
        # So many more frames that what floors to more than fits is seen, and whether it ends there.
        until = room + geometry.FRAMES_PER_CHUNK + 1
        fit = functools.partial(cover_crop, field=field)
        found = write_clip(clip, part, size=lambda *_: (canvas.width, canvas.height), fit=fit, keep=room, until=until)
    if not found.frames:
        raise bad_media("There is no picture in it.", field=field)
    length = media_limits.guide_length(
        found.frames, start=start, frames=canvas.frames, path=f"request.{path}", whole=found.frames < until
    )
    if length != found.frames:
        job.warn(
            "media_cut", f"{path} has {found.frames} frames at 24 fps; {length} of them are used (17k+5, or the first)."
        )
    return length


def prepare_source(
    job: MediaJob,
    source: Source,
    *,
    width: int | None,
    height: int | None,
    frames: int | None,
    edit: SourceEdit | None = None,
) -> Canvas:
    """Make the part ``source``; return its canvas.

    Args:
        width, height: of the request; None: the source's own. frames: likewise, 17n+5; None: the source's.
        edit: whose source it is; None: it is the request's own.
    """
    path = "source" if edit is None else "edit.source"
    part = job.part("source")
    if source.media is None:
        return _source_sound_alone(job, source, part, width=width, height=height, frames=frames, path=path)
    found, size = _source_pictures(job, source, part, width=width, height=height, frames=frames, path=path)
    total = frames or geometry.snap_frames(max(found.frames, geometry.MIN_FRAMES))
    if found.frames > total:
        job.warn("media_cut", f"The source was cut to {total} frames ({seconds_of(total):.2f} s).")
    if found.frames < total:
        assert found.last is not None
        part.add(found.last, total - part.frames)
        _tell_of_held(job, found.frames, total, edit)
    sound, samples = _source_sound(job, source, total, path=path)
    part.finish(sound)
    return Canvas(part.width, part.height, total, _own_length(min(found.frames, total), samples, total), size)


def _tell_of_held(job: MediaJob, frames: int, total: int, edit: SourceEdit | None) -> None:
    if edit is not None and edit.after and total - frames < geometry.FRAMES_PER_CHUNK:
        return  # Nothing of it stays, and `media.masks` tells what does.
    message = f"The source has {frames} frames at 24 fps; its last picture is held to make {total} "
    message += f"({seconds_of(total):.2f} s)."
    if edit is not None and not edit.after:
        message += f" The video ends with these {total - frames} frames, which are not the source's."
    job.warn("media_held", message)


def _own_length(frames: int, samples: int | None, total: int) -> OwnLength:
    """Return what of a source of ``total`` frames is the clip's own.

    One that `frames` of the request makes longer by a chunk or more is that long because that was asked for.

    Args:
        frames: of its pictures. samples: of its sound, at the model's rate; None: it has none, and its silence is its
            own as long as its pictures are.
    """
    if total - frames >= geometry.FRAMES_PER_CHUNK:
        return OwnLength.whole(total)
    end = geometry.audio_latents(total)
    if frames < total:
        end = frames * geometry.AUDIO_LATENTS_PER_SECOND // geometry.FPS
    if samples is not None and samples + _ROUNDING < frames * geometry.SAMPLE_RATE // geometry.FPS:
        end = min(end, samples // geometry.SAMPLES_PER_AUDIO_LATENT)
    return OwnLength(frames, end)


def _source_pictures(
    job: MediaJob,
    source: Source,
    part: PreparedPart,
    *,
    width: int | None,
    height: int | None,
    frames: int | None,
    path: str,
) -> tuple[Found, tuple[int, int]]:
    """Write the pictures; return what was found, and their size (width, height) as they came."""
    assert source.media is not None
    came: list[tuple[int, int]] = []
    field = f"request.{path}.media"
    longest = geometry.snap_frames(max(geometry.MIN_FRAMES, round(job.limits.max_seconds * geometry.FPS)))

    def size(own_width: int, own_height: int) -> tuple[int, int]:
        came.append((own_width, own_height))
        if width is not None and height is not None:
            return width, height
        multiple = job.facts.canvas_multiple
        made = tuple(max(multiple, round(side / multiple) * multiple) for side in (own_width, own_height))
        geometry.check_canvas(made[0], made[1], multiple=multiple, path="request.")
        return made[0], made[1]

    with reading(field):
        clip = job.clip(source.media, f"{path}.media")
        keep = frames or longest
        fit = functools.partial(cover_crop, field=field)
        found = write_clip(clip, part, size=size, fit=fit, keep=keep, until=keep + 1)
    if not found.frames:
        raise bad_media("There is no picture in it.", field=field)
    if frames is None and found.frames > longest:
        length = max(seconds_of(found.frames), clip.promised or 0.0)
        raise RequestError(
            "media_limit",
            f"This engine makes at most {job.limits.max_seconds:g} s; the source lasts {length:.2f} s or more.",
            field=field,
            value=round(length, 3),
            remedy="Cut it, send frames to use its start alone, or raise --max-seconds.",
        )
    return found, came[0]


def _source_sound(job: MediaJob, source: Source, frames: int, *, path: str) -> tuple[Waveform | None, int | None]:
    """Return the sound as long as ``frames``, and how many samples of it there were; None without any."""
    sound = job.sound(source, path, seconds=seconds_of(frames) + 1)
    if sound is None:
        return None, None
    field = f"request.{path}.media" if source.audio is None else f"request.{path}.audio"
    waveform = to_model(sound, seconds=seconds_of(frames), rate=job.facts.sample_rate, field=field)
    fit = fitted(waveform, geometry.audio_latents(frames) * geometry.SAMPLES_PER_AUDIO_LATENT)
    return fit, waveform.shape[1]


def _source_sound_alone(
    job: MediaJob,
    source: Source,
    part: PreparedPart,
    *,
    width: int | None,
    height: int | None,
    frames: int | None,
    path: str,
) -> Canvas:
    """Make the part of a sound without pictures: the canvas is the default one, the length the sound's, snapped up."""
    assert source.audio is not None
    if width is None or height is None:
        width, height = geometry.default_canvas(
            short_edge=job.facts.canvas_short_edge,
            max_pixels=job.facts.canvas_max_pixels,
            multiple=job.facts.canvas_multiple,
        )
    if frames is None:
        most = job.limits.max_seconds
        found = job.standalone_sound(source.audio, f"{path}.audio", seconds=most + 1)
        frames = geometry.snap_frames(max(geometry.MIN_FRAMES, round(min(found.seconds, most) * geometry.FPS)))
    sound, samples = _source_sound(job, source, frames, path=path)
    part.finish(sound)
    own = max(1, round((samples or 0) * geometry.FPS / geometry.SAMPLE_RATE))
    return Canvas(width, height, frames, _own_length(min(own, frames), samples, frames))
