"""The mask document: what is kept, and which values are refused by which field."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from engine.contract.errors import RequestError
from engine.contract.mask_document import (
    EMPTY_DOCUMENT,
    MAX_LAYERS,
    Canvas,
    check_document_fits,
    document_to_dict,
    parse_document,
    read_document,
)

GOOD: dict[str, Any] = {
    "version": 1,
    "mood": "blue",
    "canvas": {"width": 1344, "height": 768, "frames": 124, "lens": 35},
    "layers": [
        {
            "id": "face",
            "kind": "polygon",
            "range": [24, 72],
            "interpolate": "linear",
            "glow": [1],
            "keys": [
                {"frame": 24, "points": [[0.4, 0.2], [0.6, 0.2, 0.5], [0.5, 0.5]], "ease": 2},
                {"frame": 71, "offset": [0.1, 0], "scale": 1.2},
            ],
        },
        {"id": "track", "kind": "raster", "file": "track.png"},
    ],
    "video": {"base": 0, "lock": True, "ranges": [{"from": 0, "to": 12, "value": 0, "hue": 3}]},
    "audio": {"base": 1, "linked": False, "ranges": [{"from": 0.5, "to": 12, "value": 0.25, "channel": 1}]},
    "feather": 2,
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """Return `GOOD` with one field changed, ``None``: removed; ``path`` as ``layers.0.id``."""
    data = copy.deepcopy(GOOD)
    *way, last = [int(word) if word.isdigit() else word for word in path.split(".")]
    at: Any = data
    for word in way:
        at = at[word]
    if value is None:
        del at[last]
    else:
        at[last] = value
    return data


def test_a_document_is_read_and_written_with_what_it_does_not_know() -> None:
    document = parse_document(GOOD)
    assert document.canvas == Canvas(1344, 768, 124, {"lens": 35})
    face, track = document.layers
    assert (face.start, face.stop, face.keys[0].points) == (
        24, 72, ((0.4, 0.2, 1.0), (0.6, 0.2, 0.5), (0.5, 0.5, 1.0)))  # fmt: skip
    assert (face.mode, face.size, face.softness, face.strength, face.enabled) == ("paint", 64, 0, 1, True)
    assert (track.start, track.stop, track.keys) == (0, 124, ())
    written = document_to_dict(document)
    assert parse_document(json.loads(json.dumps(written))) == document
    assert written["mood"] == "blue"
    assert written["canvas"]["lens"] == 35
    assert written["video"]["lock"] is True
    assert written["video"]["ranges"][0]["hue"] == 3
    assert (written["layers"][0]["glow"], written["layers"][0]["keys"][0]["ease"]) == ([1], 2)


def test_an_empty_text_is_the_empty_document() -> None:
    assert read_document(" \n") == EMPTY_DOCUMENT == parse_document({"version": 1})
    assert parse_document(document_to_dict(EMPTY_DOCUMENT)) == EMPTY_DOCUMENT
    with pytest.raises(RequestError) as error:
        read_document("{", path="request.mask_document")
    assert (error.value.code, error.value.field) == ("invalid_json", "request.mask_document")


MANY = [{"id": str(i), "kind": "raster", "file": "x"} for i in range(MAX_LAYERS + 1)]
LONG = {"id": "a", "kind": "stroke", "keys": [{"frame": 0, "points": [[0.5, 0.5]] * 100_001}]}
MOVING = {"id": "a", "kind": "stroke", "interpolate": "linear",
          "keys": [{"frame": 0, "points": [[0.5, 0.5]] * 40_000}, {"frame": 9, "scale": 2}]}  # fmt: skip
BAD: list[tuple[str, Any, str, str]] = [
    ("version", 2, "version", "unsupported_version"),
    ("version", None, "version", "missing_field"),
    ("version", "1", "version", "wrong_type"),
    ("canvas", None, "canvas", "missing_field"),
    ("canvas", [1344, 768], "canvas", "wrong_type"),
    ("canvas.width", 0, "canvas.width", "out_of_range"),
    ("canvas.frames", 1.5, "canvas.frames", "wrong_type"),
    ("feather", -1, "feather", "out_of_range"),
    ("feather", float("nan"), "feather", "out_of_range"),
    ("layers", {}, "layers", "wrong_type"),
    ("layers", MANY, "layers", "out_of_range"),
    ("layers.0", 5, "layers[0]", "wrong_type"),
    ("layers.0.kind", "star", "layers[0].kind", "out_of_range"),
    ("layers.0.mode", "invert", "layers[0].mode", "out_of_range"),
    ("layers.0.id", "", "layers[0].id", "out_of_range"),
    ("layers.1.id", "face", "layers[1].id", "out_of_range"),
    ("layers.0.size", 0, "layers[0].size", "out_of_range"),
    ("layers.0.strength", 1.01, "layers[0].strength", "out_of_range"),
    ("layers.0.enabled", 1, "layers[0].enabled", "wrong_type"),
    ("layers.0.range", [24, 125], "layers[0].range", "out_of_range"),
    ("layers.0.range", [24, 24], "layers[0].range", "out_of_range"),
    ("layers.0.range", [24], "layers[0].range", "out_of_range"),
    ("layers.0.keys", [], "layers[0].keys", "out_of_range"),
    ("layers.0.keys.0.points", None, "layers[0].keys", "out_of_range"),
    ("layers.0.keys.0.points", [[0, 0], [1, 1]], "layers[0].keys[0].points", "out_of_range"),
    ("layers.0.keys.0.points.1", [0.5], "layers[0].keys[0].points[1]", "out_of_range"),
    ("layers.0.keys.0.points.1", [0.5, "x"], "layers[0].keys[0].points[1]", "out_of_range"),
    ("layers.0.keys.0.points.1", [0.5, float("inf")], "layers[0].keys[0].points[1]", "out_of_range"),
    ("layers.0.keys.0.points.1", [0.5, 0.5, 2], "layers[0].keys[0].points[1]", "out_of_range"),
    ("layers.0.keys.1.frame", 24, "layers[0].keys[1].frame", "out_of_range"),
    ("layers.0.keys.1.scale", 0, "layers[0].keys[1].scale", "out_of_range"),
    ("layers.0.keys.1.offset", [1], "layers[0].keys[1].offset", "out_of_range"),
    ("layers.1.file", None, "layers[1].file", "missing_field"),
    ("layers.0", LONG, "layers[0].keys[0].points", "out_of_range"),
    ("layers.0", MOVING, "layers[0].keys", "out_of_range"),
    ("video.base", 0.5, "video.base", "wrong_type"),
    ("video.ranges.0.to", 125, "video.ranges[0]", "out_of_range"),
    ("video.ranges.0.from", 0.5, "video.ranges[0].from", "wrong_type"),
    ("video.ranges.0.value", None, "video.ranges[0].value", "missing_field"),
    ("audio.ranges.0.channel", 2, "audio.ranges[0].channel", "out_of_range"),
    ("audio.ranges.0.from", 12, "audio.ranges[0]", "out_of_range"),
]


@pytest.mark.parametrize(("path", "value", "field", "code"), BAD, ids=[f"{bad[0]}-{i}" for i, bad in enumerate(BAD)])
def test_a_bad_value_is_refused_by_its_field(path: str, value: Any, field: str, code: str) -> None:
    with pytest.raises(RequestError) as error:
        parse_document(changed(path, value), path="doc")
    assert (error.value.field, error.value.code) == (f"doc.{field}", code)
    assert error.value.remedy


def test_a_document_fits_another_size_of_its_shot_and_no_other_shot() -> None:
    document = parse_document(GOOD)
    for width, height in ((1344, 768), (672, 384), (864, 480), (832, 480)):
        check_document_fits(document, width=width, height=height, frames=124)
    check_document_fits(EMPTY_DOCUMENT, width=64, height=640, frames=5)
    with pytest.raises(RequestError, match=r"124 frames, the latent has 141") as error:
        check_document_fits(document, width=1344, height=768, frames=141)
    assert (error.value.code, error.value.field) == ("bad_mask", "mask_document.canvas.frames")
    with pytest.raises(RequestError, match=r"1344x768, the latent's canvas is 768x1344") as error:
        check_document_fits(document, width=768, height=1344, frames=124)
    assert error.value.code == "bad_mask"
