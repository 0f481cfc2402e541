"""An edit in one request: a clip, what of it is made anew, and how much longer it gets.

Plain data: `fields` reads it, `check_edits` checks it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .media import Media, Source


@dataclass(frozen=True)
class Span:
    """A run of time, seconds from the source's start; sound is made anew in it, outward to whole latents of 25 ms."""

    start: float
    stop: float


@dataclass(frozen=True)
class MaskFile:
    """A picture or a clip that a raster layer of the document paints with.

    Attributes:
        name: the layer's ``file``.
        media: white is made anew, black stays.
    """

    name: str
    media: Media


@dataclass(frozen=True)
class SourceEdit:
    """What becomes of a clip: 0 keeps, 1 makes anew, between is a blend; a stream that nothing is said of is kept.

    Attributes:
        source: the clip; encoded as `EncodeMedia` does.
        frames: pixel frames of it, snapped up to 17n+5: a longer one is cut, of a shorter one the last picture is held;
            None: its own.
        video_mask: one number for the whole picture. video_mask_media: or a picture or clip, cropped as the source is;
            white is made anew.
        audio_mask: one number for all of the sound. audio_spans: or where it is made anew.
        document: or the mask document of both (``docs/mask-document.md``). files: of its raster layers.
        before, after: seconds to add, as `extend.plan_extension` does; made anew.
    """

    source: Source
    frames: int | None = None
    video_mask: float | None = None
    audio_mask: float | None = None
    video_mask_media: Media | None = None
    audio_spans: tuple[Span, ...] = ()
    document: dict[str, Any] | None = None
    files: tuple[MaskFile, ...] = ()
    before: float = 0.0
    after: float = 0.0

    @property
    def extends(self) -> bool:
        """Whether something is added."""
        return self.before > 0 or self.after > 0

    def masks(self) -> Iterator[str]:
        """Yield the fields that say what is made anew, of those that were given."""
        given = {
            "video_mask": self.video_mask,
            "video_mask_media": self.video_mask_media,
            "audio_mask": self.audio_mask,
            "audio_spans": self.audio_spans or None,
            "document": self.document,
        }
        return (name for name, value in given.items() if value is not None)

    def media(self) -> Iterator[tuple[str, Media]]:
        """Yield every `Media` with the path of its field."""
        for name, media in (("media", self.source.media), ("audio", self.source.audio)):
            if media is not None:
                yield f"edit.source.{name}", media
        if self.video_mask_media is not None:
            yield "edit.video_mask_media", self.video_mask_media
        yield from ((f"edit.files[{index}].media", file.media) for index, file in enumerate(self.files))
