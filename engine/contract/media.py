"""What a user puts into a shot besides the prompt: keyframes, references, guides, and a source to edit.

Each names the parts that its pictures and sound travel in. Of an image, video or sound file the part is the file, byte
for byte; of data that is decoded already it is safetensors. Plain data: `fields` reads it, `media_limits` checks it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

ReferenceKind = Literal["image", "video", "audio"]
ReferenceSize = Literal["native", "match", "max", "reference"]
REFERENCE_SIZES: tuple[ReferenceSize, ...] = ("native", "match", "max", "reference")


@dataclass(frozen=True)
class Media:
    """Pictures or sound in a part of their own.

    Attributes:
        part: the part's name.
        format: ``file``, an image, video or sound file; ``frames``, safetensors with ``frames`` [F, H, W, 3] uint8;
            ``audio``, safetensors with ``waveform`` [C, N] float32 in -1..1.
        fps: of ``frames``, pictures a second; None: 24.
        sample_rate: of ``audio``, Hz; None: the model's.
    """

    part: str
    format: Literal["file", "frames", "audio"] = "file"
    fps: float | None = None
    sample_rate: int | None = None


@dataclass(frozen=True)
class Keyframe:
    """A picture that the video starts or ends with; the text encoder sees it too.

    Attributes:
        media: one picture (of a clip, its first).
        at: the end of the video that it is held at.
    """

    media: Media
    at: Literal["first", "last"] = "first"


@dataclass(frozen=True)
class Reference:
    """Somebody or something to be like; its place in the request is its number in the prompt.

    Attributes:
        kind: what is taken of ``media``; a ``video`` file's own sound is taken with it.
        media: the picture, clip or sound.
        audio: the sound of a ``video`` in the format ``frames``; None: none.
        size: of an image, ``native`` its own size rounded to the canvas multiple, ``match`` shrunk to the output's
            area, ``max`` shrunk to the reference short edge, ``reference`` brought to it, up or down; of a video, its
            canvas' short edge, ``reference`` up or down, the others down only.
    """

    kind: ReferenceKind
    media: Media
    audio: Media | None = None
    size: ReferenceSize = "native"


@dataclass(frozen=True)
class Guide:
    """Pictures, sound or both, held at a place of the timeline; the text encoder does not see them.

    Attributes:
        frame: pixel frame where it starts, negative counts from the end; either this or ``seconds``. Neither: 0.
        seconds: where it starts.
        media: a picture or a clip; a video file's own sound is taken with it unless ``audio`` is given.
        audio: a sound, from the same frame on.
    """

    frame: int | None = None
    seconds: float | None = None
    media: Media | None = None
    audio: Media | None = None


@dataclass(frozen=True)
class Source:
    """A clip that will be edited.

    Attributes:
        media: its pictures; a video file's own sound is taken with them unless ``audio`` is given.
        audio: its sound.
    """

    media: Media | None = None
    audio: Media | None = None


@dataclass(frozen=True)
class Condition:
    """An encoded keyframe or guide, number i: the tensors ``conditions.<i>.video`` and ``.audio`` of a conditioning.

    Attributes:
        frame: pixel frame of the target where it starts, 0 or more.
    """

    frame: int


@dataclass(frozen=True)
class EncodedReference:
    """An encoded reference, number j: the tensors ``references.<j>.video`` and ``.audio`` of a conditioning.

    Attributes:
        kind: ``image`` and ``video`` have the first, ``audio`` the second, ``video_audio`` both.
    """

    kind: Literal["image", "video", "video_audio", "audio"]


def named_media(
    *,
    keyframes: tuple[Keyframe, ...] = (),
    references: tuple[Reference, ...] = (),
    guides: tuple[Guide, ...] = (),
    source: Source | None = None,
) -> Iterator[tuple[str, Media]]:
    """Yield every `Media` with the path of its field: ``keyframes[0].media``."""
    for index, keyframe in enumerate(keyframes):
        yield f"keyframes[{index}].media", keyframe.media
    owners: list[tuple[str, Reference | Guide | Source]] = []
    owners += [(f"references[{index}]", reference) for index, reference in enumerate(references)]
    owners += [(f"guides[{index}]", guide) for index, guide in enumerate(guides)]
    owners += [("source", source)] if source is not None else []
    for path, owner in owners:
        for name, media in (("media", owner.media), ("audio", owner.audio)):
            if media is not None:
                yield f"{path}.{name}", media
