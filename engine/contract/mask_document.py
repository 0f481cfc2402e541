"""The document of a mask edit, version 1: what an artist painted, as JSON (``docs/mask-document.md``).

`parse_document` is strict about values: every error names the field's path, its value and the remedy. Fields that it does
not know are kept in ``extra`` and written back by `document_to_dict`, so that a newer editor's work is not lost; another
``version`` is refused. What a document means as a mask is in ``mask_cells``. Raises `RequestError`; holds no state.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from .errors import RequestError
from .fields import parse_json

VERSION = 1
MAX_SIDE = 16_384
MAX_FRAMES = 100_000
MAX_LAYERS = 256
MAX_RANGES = 1_000
MAX_POINTS = 100_000
"""Points of all keys of all layers together."""

LayerKind = Literal["stroke", "rect", "ellipse", "polygon", "raster"]
LayerMode = Literal["paint", "erase"]
Interpolation = Literal["hold", "linear"]
Point = tuple[float, float, float]
"""x and y as fractions of the canvas (outside of 0..1: beside it), and the pen's pressure 0..1 (1 where none was given)."""

_POINTS_OF: dict[str, tuple[int, int]] = {
    "stroke": (1, MAX_POINTS),
    "rect": (2, 2),
    "ellipse": (2, 2),
    "polygon": (3, MAX_POINTS),
    "raster": (0, 0),
}
"""Fewest and most points of a key."""


@dataclass(frozen=True)
class Canvas:
    """What the document was painted on: pixels and pixel frames."""

    width: int
    height: int
    frames: int
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Key:
    """A layer's shape from ``frame`` on.

    Attributes:
        frame: pixel frame, from 0.
        points: of a stroke its path, of a rect or an ellipse two opposite corners of its box, of a polygon its corners;
            None: the points of the last key before that has some.
        offset: moves the shape, fractions of the canvas (x, y).
        scale: enlarges the shape about the middle of its box, > 0; a stroke's width too.
    """

    frame: int
    points: tuple[Point, ...] | None = None
    offset: tuple[float, float] = (0.0, 0.0)
    scale: float = 1.0
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Layer:
    """One shape that lives over a range of frames.

    Attributes:
        id: its name among the layers, not empty, unique.
        size: a stroke's width in pixels of the document's canvas; other kinds ignore it.
        softness: pixels of the document's canvas over which the value falls from 1 to 0; a raster ignores it.
        strength: 0..1, times the value.
        start, stop: pixel frames [start, stop); ``range`` in JSON.
        interpolate: between keys.
        keys: at least one, by rising frame (a raster needs none).
        file: of a raster, the name of an uploaded file.
        enabled: False: the layer is kept, but does nothing.
        name: what the artist calls it.
    """

    id: str
    kind: LayerKind
    mode: LayerMode = "paint"
    size: float = 64.0
    softness: float = 0.0
    strength: float = 1.0
    start: int = 0
    stop: int = 0
    interpolate: Interpolation = "hold"
    keys: tuple[Key, ...] = ()
    file: str = ""
    enabled: bool = True
    name: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Range:
    """A run of time with one value.

    Attributes:
        start, stop: pixel frames [start, stop) (``from`` and ``to`` in JSON): whole ones of video, fractions too of audio.
        value: 0 keeps, 1 regenerates.
        channel: of audio: 0 left, 1 right, None both. Video has none.
    """

    start: float
    stop: float
    value: float
    channel: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class VideoLane:
    """What the picture starts from (0 keep, 1 regenerate), and runs of frames that are one value all over."""

    base: int = 0
    ranges: tuple[Range, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class AudioLane:
    """What the sound starts from (0 keep, 1 regenerate), and its runs; ``linked``: each run is of both channels."""

    base: int = 0
    linked: bool = True
    ranges: tuple[Range, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class MaskDocument:
    """A whole edit.

    Attributes:
        canvas: what it was painted on; None as long as it has no layers and no ranges.
        layers: painted in this order.
        feather: pixels of the canvas, added to every drawn layer's softness.
    """

    canvas: Canvas | None = None
    layers: tuple[Layer, ...] = ()
    video: VideoLane = field(default_factory=VideoLane)
    audio: AudioLane = field(default_factory=AudioLane)
    feather: float = 0.0
    version: int = VERSION
    extra: Mapping[str, Any] = field(default_factory=dict)


EMPTY_DOCUMENT = MaskDocument()
"""Nothing painted: everything is kept."""


def read_document(text: str, *, path: str = "mask_document") -> MaskDocument:
    """Return the document in a widget's text; an empty text is `EMPTY_DOCUMENT`.

    Raises:
        RequestError: ``invalid_json``, or as `parse_document`.
    """
    return parse_document(parse_json(text, field=path), path=path) if text.strip() else EMPTY_DOCUMENT


def parse_document(data: Mapping[str, Any], *, path: str = "mask_document") -> MaskDocument:
    """Read a document; ``path`` goes before the fields' names in errors.

    Raises:
        RequestError: ``unsupported_version``, ``missing_field``, ``wrong_type`` or ``out_of_range``, naming the field.
    """
    raise NotImplementedError


def document_to_dict(document: MaskDocument) -> dict[str, Any]:
    """Return the JSON form, unknown fields included; the inverse of `parse_document`."""
    raise NotImplementedError


def check_document_fits(
    document: MaskDocument, *, width: int, height: int, frames: int, path: str = "mask_document"
) -> None:
    """Check that the document was painted on this shot: the same number of frames, the same aspect within 5%.

    Args:
        width, height: of the latent's canvas, pixels. frames: its pixel frames.

    Raises:
        RequestError: ``bad_mask`` naming both canvases or both lengths.
    """
    raise NotImplementedError
