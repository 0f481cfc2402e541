"""One job of reading media: what is asked, what was found, and the clips and sounds on their way to prepared parts.

`MediaJob` is shared by the modules that prepare each kind of media; it names every medium on standard output before it
opens it, so that whoever started this process knows which one was being read if it dies.
Raises `RequestError` for what cannot be read, `JobError` when the disk is full.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..contract import geometry
from ..contract.limits import Limits, ModelFacts
from ..contract.media import Guide, Media, Reference, Source
from ..contract.messages import Warned
from .clock import Clip, Pixels, held_pictures
from .files import bad_media, reading
from .pictures import first_picture, open_clip
from .sound import Sound, aligned, read_sound
from .store import PreparedPart

Size = Callable[[int, int], tuple[int, int]]
"""From a picture's own (width, height) to those it is prepared at."""
Fit = Callable[[Pixels, int, int], Pixels]
"""Brings a picture to (width, height)."""


@dataclass
class MediaJob:
    """The job.

    Attributes:
        parts: name → file that the client sent. out: folder of the prepared parts.
        warnings: for the user. made: prepared part → file.
    """

    parts: Mapping[str, Path]
    out: Path
    facts: ModelFacts
    limits: Limits
    warnings: list[Warned] = field(default_factory=list)
    made: dict[str, Path] = field(default_factory=dict)

    def warn(self, code: str, message: str) -> None:
        """Tell the user something, once."""
        warning = Warned(code, message)
        if warning not in self.warnings:
            self.warnings.append(warning)

    def part(self, name: str) -> PreparedPart:
        """Start the prepared part ``name``."""
        path = self.out / f"{name}.safetensors"
        self.made[name] = path
        return PreparedPart(path)

    def clip(self, media: Media, path: str) -> Clip:
        """Return the pictures of the medium at ``path`` of the request; use inside `reading`."""
        self._announce(path)

        def on_alpha() -> None:
            self.warn("media_alpha", f"{path} is transparent in places; its stored colours are shown.")

        return open_clip(media, self.parts[media.part], field=f"request.{path}", on_alpha=on_alpha)

    def picture(self, media: Media, path: str) -> Pixels:
        """Return the picture at ``path`` of the request [H, W, 3]: of a clip the first, and the user is told."""
        with reading(f"request.{path}"):
            clip = self.clip(media, path)
            pixels = first_picture(clip, field=f"request.{path}")
            if next(clip.pictures, None) is not None:
                self.warn("media_cut", f"{path} is a clip or an animation; its first picture alone is used.")
            return pixels

    def sound(self, owner: Reference | Guide | Source, path: str, *, seconds: float) -> Sound | None:
        """Return the sound given beside the pictures of ``owner``, else the one in their file; None without any.

        Args:
            path: of ``owner`` in the request. seconds: reading stops soon after so many.

        Raises:
            RequestError: ``bad_media`` when a sound was given that holds none.
        """
        if owner.audio is not None:
            return self.standalone_sound(owner.audio, f"{path}.audio", seconds=seconds)
        if owner.media is None or owner.media.format != "file":
            return None
        with reading(f"request.{path}.media"):
            found = read_sound(
                owner.media, self.parts[owner.media.part], seconds=seconds, field=f"request.{path}.media"
            )
        return None if found is None else aligned(found)

    def standalone_sound(self, media: Media, path: str, *, seconds: float) -> Sound:
        """Return the sound at ``path`` of the request, by itself: it has no pictures to keep in step with.

        Raises:
            RequestError: ``bad_media`` when there is none.
        """
        self._announce(path)
        with reading(f"request.{path}"):
            found = read_sound(media, self.parts[media.part], seconds=seconds, field=f"request.{path}")
            if found is None:
                raise bad_media("There is no sound in it.", field=f"request.{path}")
        return dataclasses.replace(found, delay=0.0)

    def _announce(self, path: str) -> None:
        sys.stdout.write(f"{path}\n")
        sys.stdout.flush()


@dataclass(frozen=True)
class Found:
    """A clip that was read.

    Attributes:
        frames: found at 24 fps, as far as it was read; the part may hold fewer.
        last: its last picture that the part holds, as prepared; None: there is none.
    """

    frames: int
    last: Pixels | None


def write_clip(clip: Clip, part: PreparedPart, *, size: Size, fit: Fit, keep: int, until: int) -> Found:
    """Bring a clip to 24 fps and its size, and write it.

    Args:
        size, fit: called for the first picture, and for each. keep: frames that are written at most.
        until: frames after which reading stops; what is beyond ``keep`` is counted without being converted.
    """
    found = 0
    last: Pixels | None = None
    target: tuple[int, int] | None = None
    for picture, count in held_pictures(clip):
        room = min(count, keep - part.frames)
        if room > 0:
            pixels = picture.pixels()
            target = target or size(pixels.shape[1], pixels.shape[0])
            last = fit(pixels, *target)
            part.add(last, room)
        found += count
        if found >= until:
            break
    return Found(found, last)


def facts_of(values: Mapping[str, Any], cls: type[Any]) -> Any:
    """Return the dataclass ``cls`` made of those ``values`` that it has."""
    names = {spec.name for spec in dataclasses.fields(cls)}
    return cls(**{name: value for name, value in values.items() if name in names})


def seconds_of(frames: int) -> float:
    """Return the duration of ``frames`` at 24 fps."""
    return frames / geometry.FPS
