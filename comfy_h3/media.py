"""Pictures, clips and sound on their way to the engine: what a graph's media nodes hand on, and the parts of a request.

An IMAGE becomes uint8 frames, rounded as diffusers rounds; an AUDIO float32; a VIDEO the bytes of its file, or, when it
is trimmed or was made of images, its frames and its sound. Nothing is converted before a request is made. Knows nothing
of ComfyUI's modules. Raises `RequestError` naming the node's input.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..engine.contract.errors import RequestError
from ..engine.contract.media import Media, Reference, ReferenceKind, ReferenceSize
from .convert import write_part

_COLOURS = 3
_FRAMES_AT_ONCE = 16


@dataclass(frozen=True)
class Clip:
    """Pictures with or without sound, as a graph holds them.

    Attributes:
        images: IMAGE, float [F, H, W, 3 or 4] in 0..1.
        fps: of ``images``.
        file: path or bytes of a video file, with its own sound; in place of ``images``.
        audio: AUDIO; of a ``file``, in place of its own sound.
    """

    images: torch.Tensor | None = None
    fps: float = 24.0
    file: str | io.BytesIO | None = None
    audio: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Keyframes:
    """What `H3EngineKeyframes` hands on.

    Attributes:
        first, last: IMAGE of one frame.
        width, height: canvas, pixels. frames: of the video, on the lattice.
    """

    first: torch.Tensor | None
    last: torch.Tensor | None
    width: int
    height: int
    frames: int


@dataclass(frozen=True)
class ReferenceItem:
    """One reference of the chain that the reference nodes hand on; the chain is a tuple of these."""

    kind: ReferenceKind
    clip: Clip
    size: ReferenceSize = "native"


@dataclass
class Uploads:
    """The media of one request.

    Attributes:
        parts: part name → bytes.
    """

    parts: dict[str, bytes] = field(default_factory=dict)

    def images(self, part: str, images: torch.Tensor, *, fps: float | None = None) -> Media:
        """Add an IMAGE as uint8 frames [F, H, W, 3]."""
        self.parts[part] = write_part({"frames": to_uint8(images)})
        return Media(part, "frames", fps=fps)

    def sound(self, part: str, audio: Mapping[str, Any]) -> Media:
        """Add an AUDIO, its waveform as [C, N] float32."""
        self.parts[part] = write_part({"waveform": audio["waveform"][0].float()})
        return Media(part, "audio", sample_rate=int(audio["sample_rate"]))

    def clip(self, part: str, clip: Clip) -> tuple[Media | None, Media | None]:
        """Add a clip; return its pictures and its sound (None for the own sound of a file)."""
        pictures = None
        if clip.file is not None:
            source = clip.file
            self.parts[part] = source.getvalue() if isinstance(source, io.BytesIO) else Path(source).read_bytes()
            pictures = Media(part)
        elif clip.images is not None:
            pictures = self.images(part, clip.images, fps=clip.fps)
        return pictures, None if clip.audio is None else self.sound(f"{part}.audio", clip.audio)

    def references(self, items: Sequence[ReferenceItem]) -> tuple[Reference, ...]:
        """Add a chain of references, in its order."""
        found = []
        for index, item in enumerate(items):
            media, audio = self.clip(f"reference.{index}", item.clip)
            if item.kind == "audio":
                media, audio = audio, None
            assert media is not None
            found.append(Reference(item.kind, media, audio, item.size))
        return tuple(found)


def may_be_trimmed(video: Any) -> bool:
    """Return whether a VIDEO of a file may be a part of it: then the file's bytes are more than it.

    ComfyUI 0.3.75 trims nothing. Later versions trim, and those of 2026 tell by ``get_active_trim_window``.
    """
    window = getattr(video, "get_active_trim_window", None)
    return hasattr(video, "as_trimmed") if window is None else any(window())


def to_uint8(images: torch.Tensor) -> torch.Tensor:
    """Return IMAGE [F, H, W, C] in 0..1 as uint8 [F, H, W, 3]: clamped, times 255, to the nearest (half to even).

    Grey is repeated, alpha is dropped. Some frames at a time, so that a clip is never held twice in float.
    """
    frames = torch.empty((*images.shape[:3], _COLOURS), dtype=torch.uint8)
    for start in range(0, len(images), _FRAMES_AT_ONCE):
        some = images[start : start + _FRAMES_AT_ONCE, ..., :_COLOURS]
        frames[start : start + len(some)] = some.float().clamp(0, 1).mul(255).round().to("cpu", torch.uint8)
    return frames


def check_images(images: torch.Tensor, *, name: str) -> torch.Tensor:
    """Return an IMAGE that holds something.

    Raises:
        RequestError: ``bad_tensor`` when it is no IMAGE or empty.
    """
    shape = list(images.shape)
    if len(shape) != 4 or min(shape) < 1:
        raise RequestError(
            "bad_tensor",
            "There is no picture in it: an IMAGE is [frames, height, width, 3].",
            field=name,
            value=shape,
            remedy="Connect a node that gives at least one picture.",
        )
    return images


def check_audio(audio: Mapping[str, Any], *, name: str) -> Mapping[str, Any]:
    """Return an AUDIO that holds something.

    Raises:
        RequestError: ``bad_tensor`` for a batch, no samples or no sample rate.
    """
    waveform, rate = audio["waveform"], audio["sample_rate"]
    shape = list(waveform.shape)
    if len(shape) == 3 and shape[0] == 1 and min(shape) >= 1 and rate > 0:
        return audio
    raise RequestError(
        "bad_tensor",
        "There is no sound in it: an AUDIO is one waveform [1, channels, samples] with its sample rate.",
        field=name,
        value=f"{shape} at {rate} Hz",
        remedy="Connect a node that gives one sound of at least one sample.",
    )
