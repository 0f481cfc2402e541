"""The document of a mask edit, version 1: what an artist painted, as JSON (``docs/mask-document.md``).

`parse_document` is strict about values: every error names the field's path, its value and the remedy. Fields that it
does not know are kept in ``extra`` and written back by `document_to_dict`, so that a newer editor's work is not lost;
another ``version`` is refused. What a document means as a mask is in ``mask_cells``. Raises `RequestError`; holds no
state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from .errors import RequestError
from .fields import Fields, bounded, out_of_range, parse_json, read_value

VERSION = 1
MAX_SIDE = 16_384
MAX_FRAMES = 100_000
MAX_LAYERS = 1024
MAX_RANGES = 1_000
MAX_POINTS = 100_000
"""Points of all keys of all layers together."""
MAX_MOVING_POINTS = 4_000_000
"""Points that are computed for all frames of all interpolated layers together."""

MAX_FRACTION = 1_000
"""Largest coordinate, offset and scale: a shape may lie beside the canvas."""
ASPECT_SLACK = 1.05
"""By how much the aspect of another size of the same shot may differ: both sides were rounded to 32."""

LayerKind = Literal["stroke", "rect", "ellipse", "polygon", "raster"]
LayerMode = Literal["paint", "erase"]
Interpolation = Literal["hold", "linear"]
Point = tuple[float, float, float]
"""x and y as fractions of the canvas (outside of 0..1: beside it); the pen's pressure 0..1, 1 where none is given."""

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
        start, stop: pixel frames [start, stop), ``from`` and ``to`` in JSON: whole ones for video.
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
    fields = Fields(data, path)
    version = fields.take("version", int)
    if version != VERSION:
        raise RequestError(
            "unsupported_version",
            f"The mask document has version {version}; this is version {VERSION}.",
            field=f"{path}.version",
            value=version,
            remedy="Update the engine and the nodes, or use the editor that wrote it.",
        )
    canvas = None if fields.get("canvas") is None else _canvas(fields.object("canvas"))
    if canvas is None:
        _check_bare(fields)
    frames = canvas.frames if canvas else 0
    layers = tuple(_layer(item, frames) for item in fields.objects("layers", MAX_LAYERS))
    document = MaskDocument(
        canvas=canvas,
        layers=layers,
        video=_video_lane(fields.object("video"), frames),
        audio=_audio_lane(fields.object("audio"), frames),
        feather=fields.number("feather", 0.0, high=MAX_SIDE),
        extra=fields.rest("canvas"),
    )
    _check_layers(layers, path)
    return document


def document_to_dict(document: MaskDocument) -> dict[str, Any]:
    """Return the JSON form, unknown fields included; the inverse of `parse_document`."""
    canvas, video, audio = document.canvas, document.video, document.audio
    return {
        **document.extra,
        "version": document.version,
        "canvas": canvas and {**canvas.extra, "width": canvas.width, "height": canvas.height, "frames": canvas.frames},
        "layers": [_layer_to_dict(layer) for layer in document.layers],
        "video": {
            **video.extra,
            "base": video.base,
            "ranges": [{**r.extra, "from": int(r.start), "to": int(r.stop), "value": r.value} for r in video.ranges],
        },
        "audio": {
            **audio.extra,
            "base": audio.base,
            "linked": audio.linked,
            "ranges": [
                {**r.extra, "from": r.start, "to": r.stop, "value": r.value, "channel": r.channel} for r in audio.ranges
            ],
        },
        "feather": document.feather,
    }


def check_document_fits(
    document: MaskDocument, *, width: int, height: int, frames: int, path: str = "mask_document"
) -> None:
    """Check that the document was painted on this shot: the same number of frames, the same aspect within 5%.

    One without layers and ranges fits every shot.

    Args:
        width, height: of the latent's canvas, pixels. frames: its pixel frames.

    Raises:
        RequestError: ``bad_mask`` naming both canvases or both lengths.
    """
    canvas = document.canvas
    if canvas is None or not (document.layers or document.video.ranges or document.audio.ranges):
        return
    if canvas.frames != frames:
        raise RequestError(
            "bad_mask",
            f"The mask was painted on {canvas.frames} frames, the latent has {frames}.",
            field=f"{path}.canvas.frames",
            value=canvas.frames,
            remedy="Use the latent that it was painted on, or move the edit to this one in the editor.",
        )
    ratio = canvas.width * height / (canvas.height * width)
    if not 1 / ASPECT_SLACK <= ratio <= ASPECT_SLACK:
        raise RequestError(
            "bad_mask",
            f"The mask was painted on {canvas.width}x{canvas.height}, the latent's canvas is {width}x{height}: "
            "another aspect.",
            field=f"{path}.canvas",
            value=f"{canvas.width}x{canvas.height}",
            remedy="Use a latent of the same aspect, or move the edit to this one in the editor.",
        )


def _check_bare(fields: Fields) -> None:
    """Without a canvas there is nothing for layers and ranges to lie on."""
    lanes = [fields.get(name) for name in ("video", "audio")]
    if fields.get("layers") or any(isinstance(lane, dict) and lane.get("ranges") for lane in lanes):
        raise RequestError(
            "missing_field",
            "Layers and ranges need the canvas that they were painted on.",
            field=fields.at("canvas"),
            remedy='Send "canvas": {"width": …, "height": …, "frames": …}.',
        )


def _canvas(fields: Fields) -> Canvas:
    width, height = (fields.whole(side, low=1, high=MAX_SIDE) for side in ("width", "height"))
    return Canvas(width, height, fields.whole("frames", low=1), extra=fields.rest())


def _layer(fields: Fields, frames: int) -> Layer:
    kind: LayerKind = fields.take("kind", LayerKind)
    start, stop = _frame_range(fields, frames)
    layer = Layer(
        id=fields.take("id", str),
        kind=kind,
        mode=fields.take("mode", LayerMode, "paint"),
        size=fields.number("size", Layer.size, high=MAX_SIDE, above=True),
        softness=fields.number("softness", 0.0, high=MAX_SIDE),
        strength=fields.number("strength", 1.0),
        start=start,
        stop=stop,
        interpolate=fields.take("interpolate", Interpolation, "hold"),
        keys=tuple(_key(item, kind) for item in fields.objects("keys", MAX_FRAMES)),
        file=fields.take("file", str, "") if kind != "raster" else fields.take("file", str),
        enabled=fields.take("enabled", bool, True),
        name=fields.take("name", str, ""),
        extra=fields.rest(),
    )
    _check_keys(layer, fields)
    return layer


def _frame_range(fields: Fields, frames: int) -> tuple[int, int]:
    path = fields.at("range")
    both = fields.take("range", list[int], [0, frames])
    if len(both) != 2 or not 0 <= both[0] < both[1] <= frames:
        raise out_of_range(path, both, f"is [from, to) in frames 0 to {frames}", f"Send [0, {frames}].")
    return both[0], both[1]


def _key(fields: Fields, kind: LayerKind) -> Key:
    points = _points(fields, kind) if fields.get("points") is not None else None
    offset = fields.take("offset", list[float], [0.0, 0.0])
    if len(offset) != 2:
        raise out_of_range(fields.at("offset"), offset, "is [x, y] in fractions of the canvas", "Send [0, 0].")
    x, y = (bounded(value, fields.at("offset"), low=-MAX_FRACTION, high=MAX_FRACTION) for value in offset)
    return Key(
        frame=fields.whole("frame"),
        points=points,
        offset=(x, y),
        scale=fields.number("scale", 1.0, high=MAX_FRACTION, above=True),
        extra=fields.rest("points"),
    )


def _points(fields: Fields, kind: LayerKind) -> tuple[Point, ...]:
    path = fields.at("points")
    items = read_value(list, fields.get("points"), path=path)
    fewest, most = _POINTS_OF[kind]
    if not fewest <= len(items) <= most:
        wanted = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        raise out_of_range(path, len(items), f"of a {kind} has {wanted} points", f"Send {wanted} points.")
    return tuple(_point(item, path, i) for i, item in enumerate(items))


def _point(item: Any, path: str, index: int) -> Point:
    """Read one point. There may be thousands, so a path is made only for an error."""
    numbers = isinstance(item, list) and len(item) in (2, 3) and all(type(value) in (int, float) for value in item)
    if numbers and all(-MAX_FRACTION <= value <= MAX_FRACTION for value in item):
        pressure = float(item[2]) if len(item) == 3 else 1.0
        if 0 <= pressure <= 1:
            return float(item[0]), float(item[1]), pressure
    raise out_of_range(
        f"{path}[{index}]",
        item,
        f"is [x, y] or [x, y, pressure]: fractions within {MAX_FRACTION}, a pressure of 0 to 1",
        "Send two or three numbers.",
    )


def _video_lane(fields: Fields, frames: int) -> VideoLane:
    ranges = tuple(_range(item, frames, int) for item in fields.objects("ranges", MAX_RANGES))
    return VideoLane(fields.whole("base", 0, high=1), ranges, extra=fields.rest())


def _audio_lane(fields: Fields, frames: int) -> AudioLane:
    ranges = tuple(_range(item, frames, float) for item in fields.objects("ranges", MAX_RANGES))
    return AudioLane(fields.whole("base", 0, high=1), fields.take("linked", bool, True), ranges, extra=fields.rest())


def _range(fields: Fields, frames: int, hint: type[int] | type[float]) -> Range:
    start, stop = fields.take("from", hint), fields.take("to", hint)
    if not 0 <= start < stop <= frames:
        raise out_of_range(
            fields.path,
            [start, stop],
            f"is [from, to) in frames 0 to {frames}",
            "Send from below to, both on the canvas.",
        )
    channel = None
    if hint is float and fields.get("channel") is not None:
        channel = fields.whole("channel", high=1)
    known = ("channel",) if hint is float else ()
    return Range(start, stop, fields.number("value"), channel, extra=fields.rest(*known))


def _check_keys(layer: Layer, fields: Fields) -> None:
    """A shape needs a first key with points, and keys by rising frame."""
    path = fields.at("keys")
    if layer.kind != "raster" and not (layer.keys and layer.keys[0].points):
        raise out_of_range(path, len(layer.keys), "begins with a key that has points", "Send the shape's points.")
    for i, (before, after) in enumerate(zip(layer.keys, layer.keys[1:], strict=False), 1):
        if after.frame <= before.frame:
            raise out_of_range(
                f"{path}[{i}].frame", after.frame, f"is above the key's before, {before.frame}", "Sort keys by frame."
            )


def _check_layers(layers: tuple[Layer, ...], path: str) -> None:
    """Ids are unique, and what all layers cost is bounded."""
    seen: set[str] = set()
    points = moving = 0
    for i, layer in enumerate(layers):
        if not layer.id or layer.id in seen:
            raise out_of_range(f"{path}.layers[{i}].id", layer.id, "is a name of its own", "Name each layer apart.")
        seen.add(layer.id)
        counts = [len(key.points or ()) for key in layer.keys]
        points += sum(counts)
        if layer.interpolate == "linear" and len(counts) > 1:
            moving += max(counts) * (layer.stop - layer.start)
        if points > MAX_POINTS or moving > MAX_MOVING_POINTS:
            what, most = (points, MAX_POINTS) if points > MAX_POINTS else (moving, MAX_MOVING_POINTS)
            raise out_of_range(
                f"{path}.layers[{i}].keys", what, f"makes more than {most} points to compute", "Use fewer points."
            )


def _layer_to_dict(layer: Layer) -> dict[str, Any]:
    return {
        **layer.extra,
        "id": layer.id,
        "name": layer.name,
        "kind": layer.kind,
        "mode": layer.mode,
        "enabled": layer.enabled,
        "size": layer.size,
        "softness": layer.softness,
        "strength": layer.strength,
        "range": [layer.start, layer.stop],
        "interpolate": layer.interpolate,
        "keys": [_key_to_dict(key) for key in layer.keys],
        **({"file": layer.file} if layer.file else {}),
    }


def _key_to_dict(key: Key) -> dict[str, Any]:
    points = [[x, y] if pressure == 1 else [x, y, pressure] for x, y, pressure in key.points or ()]
    return {
        **key.extra,
        "frame": key.frame,
        **({} if key.points is None else {"points": points}),
        "offset": list(key.offset),
        "scale": key.scale,
    }
