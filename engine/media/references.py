"""References, each at its own geometry: pictures, clips with their sound, sounds.

A reference picture is stretched to the size that `geometry.reference_image_size` gives; a clip is brought to 24 fps,
cut to the output's frames and stretched to the canvas of its own shape; a sound is cut to the output's duration at its
own rate and resampled once. This is diffusers' preparation, bit for bit where that takes the medium at all (``size``
``reference``). All of a clip's frames are kept, for the text encoder; the VAE takes the first 17k+5.
Durations are those of what was decoded: of each medium no more is decoded than tells that it is too long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..contract import geometry, media_limits
from ..contract.media import Reference
from ..contract.media_limits import MEDIA_LIMITS
from .files import bad_media, reading
from .fit import stretch
from .job import MediaJob, seconds_of, write_clip
from .sound import Sound, Waveform, to_model

_READ_SECONDS = MEDIA_LIMITS.max_seconds + 0.5
"""Enough of a medium to see that it is too long."""


@dataclass(frozen=True)
class _Output:
    """The video that the references are for: pixels and frames."""

    area: int
    frames: int


def prepare_references(
    job: MediaJob, references: Sequence[Reference], *, width: int, height: int, frames: int
) -> list[dict[str, Any]]:
    """Make the parts ``references.<j>``; return of each its facts.

    Args:
        width, height: of the output, pixels. frames: of the output, 17n+5.

    Returns:
        kind (``video_audio`` for a clip with sound), width, height, frames that are encoded, audio_latents and rows.

    Raises:
        RequestError: as the rules of `media_limits`, or for media that cannot be read.
    """
    output = _Output(width * height, frames)
    soundtracks: list[float] = []
    sounds: list[float] = []
    made = []
    for index, reference in enumerate(references):
        if reference.kind == "image":
            made.append(_image(job, reference, index, output))
        elif reference.kind == "video":
            made.append(_video(job, reference, index, output, soundtracks))
        else:
            made.append(_audio(job, reference, index, output, sounds))
    media_limits.check_budgets(soundtracks=soundtracks, sounds=sounds)
    return made


def _image(job: MediaJob, reference: Reference, index: int, output: _Output) -> dict[str, Any]:
    path = f"references[{index}]"
    pixels = job.picture(reference.media, f"{path}.media")
    own_height, own_width = pixels.shape[:2]
    media_limits.check_aspect(own_width, own_height, field=f"request.{path}.media")
    short_edge = job.facts.reference_short_edge
    width, height = geometry.reference_image_size(
        own_width,
        own_height,
        size=reference.size,
        area=output.area,
        short_edge=short_edge,
        multiple=job.facts.canvas_multiple,
        max_side=job.limits.max_side,
    )
    if min(width, height) > short_edge:
        job.warn(
            "large_reference",
            f"{path} keeps {width}x{height}, more than the short edge of {short_edge} pixels that the model was "
            "trained with; the size 'max' or 'match' is quicker.",
        )
    part = job.part(f"references.{index}")
    part.add(stretch(pixels, width, height))
    part.finish()
    return _facts("image", job, width=width, height=height, frames=1)


def _video(
    job: MediaJob, reference: Reference, index: int, output: _Output, soundtracks: list[float]
) -> dict[str, Any]:
    path = f"references[{index}]"
    field = f"request.{path}.media"

    def size(width: int, height: int) -> tuple[int, int]:
        if reference.size == "reference":
            media_limits.check_aspect(width, height, field=field)
        made = geometry.reference_video_size(
            width,
            height,
            size=reference.size,
            short_edge=job.facts.canvas_short_edge,
            max_pixels=job.facts.canvas_max_pixels,
            multiple=job.facts.canvas_multiple,
        )
        media_limits.check_aspect(*made, field=field)
        return made

    part = job.part(f"references.{index}")
    with reading(field):
        clip = job.clip(reference.media, f"{path}.media")
        until = round(_READ_SECONDS * geometry.FPS)
        found = write_clip(clip, part, size=size, fit=stretch, keep=output.frames, until=until)
    media_limits.check_frames(found.frames, field=field)
    media_limits.check_duration(seconds_of(found.frames), field=field, what="video", promised=clip.promised)
    sound = job.sound(reference, path, seconds=_READ_SECONDS)
    waveform = None
    if sound is not None:
        sound_field = field if reference.audio is None else f"request.{path}.audio"
        waveform = _normalised(job, sound, output, field=sound_field, what="soundtrack")
        soundtracks.append(sound.seconds)
    part.finish(waveform)
    kept = geometry.floor_frames(part.frames)
    if kept < found.frames:
        job.warn("media_cut", f"{path} has {found.frames} frames at 24 fps; the first {kept} of them are encoded.")
    kind = "video" if waveform is None else "video_audio"
    return _facts(kind, job, width=part.width, height=part.height, frames=kept, waveform=waveform)


def _audio(job: MediaJob, reference: Reference, index: int, output: _Output, sounds: list[float]) -> dict[str, Any]:
    path = f"references[{index}]"
    field = f"request.{path}.media"
    sound = job.standalone_sound(reference.media, f"{path}.media", seconds=_READ_SECONDS)
    waveform = _normalised(job, sound, output, field=field, what="sound")
    sounds.append(sound.seconds)
    if sound.seconds > seconds_of(output.frames) + MEDIA_LIMITS.slack_seconds:
        job.warn(
            "media_cut",
            f"{path} lasts {sound.seconds:.2f} s; the first {seconds_of(output.frames):.2f} s of it are encoded.",
        )
    job.part(f"references.{index}").finish(waveform)
    return _facts("audio", job, width=0, height=0, frames=0, waveform=waveform)


def _normalised(job: MediaJob, sound: Sound, output: _Output, *, field: str, what: str) -> Waveform:
    """Return a sound as the model takes it, [2, N], when its duration is right."""
    media_limits.check_duration(sound.seconds, field=field, what=what, promised=sound.promised)
    waveform = to_model(sound, seconds=seconds_of(output.frames), rate=job.facts.sample_rate, field=field)
    if not waveform.shape[1]:
        raise bad_media("Nothing of this sound falls into the video.", field=field)
    return waveform


def _facts(
    kind: str, job: MediaJob, *, width: int, height: int, frames: int, waveform: Waveform | None = None
) -> dict[str, Any]:
    multiple = job.facts.canvas_multiple
    audio = 0 if waveform is None else geometry.latents_of_samples(waveform.shape[1])
    latents = frames if frames <= 1 else geometry.latent_frames(frames)
    rows = latents * (width // multiple) * (height // multiple) + geometry.AUDIO_CHANNELS * audio
    return {"kind": kind, "width": width, "height": height, "frames": frames, "audio_latents": audio, "rows": rows}
