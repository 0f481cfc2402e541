"""A plain reading of ``docs/mask-document.md``, sample by sample, and the golden masks that it computes.

It shares no code with the engine or the page: both are held to ``tests/golden_masks``. Write that folder with
``python -m tests.support.mask_oracle --write``; a test computes some of it anew.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "golden_masks"
Json = dict[str, Any]
Size = tuple[int, int, int]
TOKEN = (1, 4, 4, 4, 4)


def shape_at(layer: Json, frame: int, canvas: Json) -> tuple[list[tuple[float, float, float]], float, float, float]:
    """Return points in pixels with pressure, offset x and y, scale."""
    keys = layer.get("keys") or [{"frame": 0}]
    points: list[list[list[float]]] = []
    for key in keys:
        own = key.get("points")
        points.append([[*p, 1][:3] for p in own] if own else (points[-1] if points else []))
    at = max([i for i, key in enumerate(keys) if key["frame"] <= frame], default=-1)
    u, b = 0.0, max(at, 0)
    if at >= 0 and at + 1 < len(keys) and layer.get("interpolate") == "linear":
        b = at + 1
        u = (frame - keys[at]["frame"]) / (keys[b]["frame"] - keys[at]["frame"])
    a = max(at, 0)

    def mix(one: float, two: float) -> float:
        return one + (two - one) * u

    ox, oy = (mix(*pair) for pair in zip(keys[a].get("offset", [0, 0]), keys[b].get("offset", [0, 0]), strict=True))
    scale = mix(keys[a].get("scale", 1), keys[b].get("scale", 1))
    first, second = points[a], points[b] if len(points[b]) == len(points[a]) else points[a]
    mixed = [[mix(*pair) for pair in zip(p, q, strict=True)] for p, q in zip(first, second, strict=True)]
    if not mixed:
        return [], ox, oy, scale
    cx, cy = ((min(p[i] for p in mixed) + max(p[i] for p in mixed)) / 2 for i in (0, 1))
    placed = [
        ((cx + (x - cx) * scale + ox) * canvas["width"], (cy + (y - cy) * scale + oy) * canvas["height"], pressure)
        for x, y, pressure in mixed
    ]
    return placed, ox, oy, scale


def to_piece(x: float, y: float, start: tuple[float, ...], end: tuple[float, ...]) -> float:
    """Return how far a point lies outside of a piece from (x, y, radius) to (x, y, radius)."""
    (x0, y0, r0), (x1, y1, r1) = start, end
    dx, dy = x1 - x0, y1 - y0
    length = dx * dx + dy * dy
    u = min(max(((x - x0) * dx + (y - y0) * dy) / length, 0), 1) if length else 0.0
    return math.sqrt((x - x0 - u * dx) ** 2 + (y - y0 - u * dy) ** 2) - (r0 + (r1 - r0) * u)


def winding(x: float, y: float, points: list[tuple[float, float, float]]) -> int:
    """Return how often a polygon turns about a point, by the angles."""
    turned = 0.0
    for (x0, y0, _), (x1, y1, _) in zip(points, points[1:] + points[:1], strict=True):
        a, b = (x0 - x, y0 - y), (x1 - x, y1 - y)
        turned += math.atan2(a[0] * b[1] - a[1] * b[0], a[0] * b[0] + a[1] * b[1])
    return round(turned / (2 * math.pi))


def distance(
    layer: Json, points: list[tuple[float, float, float]], scale: float, *, x: float, y: float, reach: float
) -> float:
    """Return how far a point lies outside of a shape, pixels of the document's canvas."""
    kind = layer["kind"]
    if kind == "stroke":
        line = [(px, py, max(layer.get("size", 64) / 2 * scale * p, reach)) for px, py, p in points]
        return min(to_piece(x, y, a, b) for a, b in zip(line, line[1:] or line, strict=False))
    if kind == "polygon":
        edges = zip(points, points[1:] + points[:1], strict=True)
        return 0.0 if winding(x, y, points) else min(to_piece(x, y, (*a[:2], 0), (*b[:2], 0)) for a, b in edges)
    (x0, y0, _), (x1, y1, _) = points
    a, b = max(abs(x0 - x1) / 2, reach), max(abs(y0 - y1) / 2, reach)
    dx, dy = x - (x0 + x1) / 2, y - (y0 + y1) / 2
    box = math.sqrt(max(abs(dx) - a, 0) ** 2 + max(abs(dy) - b, 0) ** 2)
    if kind == "rect":
        return box
    k = math.sqrt((dx / a) ** 2 + (dy / b) ** 2)
    return 0.0 if k <= 1 else max(box, k * (k - 1) / math.sqrt((dx / a**2) ** 2 + (dy / b**2) ** 2))


def raster_value(raster: Json, shown: int, box: tuple[float, float, float, float], move: tuple[float, ...]) -> float:
    """Return the largest pixel under a square (left, top, right, bottom) in fractions of the canvas."""
    ox, oy, scale = move
    left, right = (0.5 + (x - 0.5 - ox) / scale for x in (box[0], box[2]))
    top, bottom = (0.5 + (y - 0.5 - oy) / scale for y in (box[1], box[3]))
    width, height = raster["width"], raster["height"]

    def run(low: float, high: float, length: int) -> range:
        first = math.floor(low * length + 1e-6)
        end = max(math.ceil(high * length - 1e-6), first + 1)
        return range(max(first, 0), min(end, length))

    places = [(shown * height + y) * width + x for y in run(top, bottom, height) for x in run(left, right, width)]
    return max((raster["bytes"][place] / 255 for place in places), default=0.0)


def frame_cells(document: Json, size: Json, frame: int, rasters: Json) -> list[list[float]]:
    """Return the mask of one pixel frame, rows of cells."""
    rows, columns = size["height"] // 16, size["width"] // 16
    video = document.get("video", {})
    base = video.get("base", 0)
    for run in reversed(video.get("ranges", [])):
        if run["from"] <= frame < run["to"]:
            return [[run["value"]] * columns for _ in range(rows)]
    canvas = document["canvas"]
    shapes = [
        (layer, *shape_at(layer, frame, canvas))
        for layer in document.get("layers", [])
        if layer.get("enabled", True) and layer.get("range", [0, canvas["frames"]])[0] <= frame
        and frame < layer.get("range", [0, canvas["frames"]])[1]
    ]  # fmt: skip
    reach = math.sqrt((2 * canvas["width"] / size["width"]) ** 2 + (2 * canvas["height"] / size["height"]) ** 2)
    cells = [[0.0] * columns for _ in range(rows)]
    for row in range(rows * 4):
        for column in range(columns * 4):
            u, v = (4 * column + 2) / size["width"], (4 * row + 2) / size["height"]
            mask = float(base)
            for layer, points, ox, oy, scale in shapes:
                if layer["kind"] == "raster":
                    raster = rasters[layer["file"]]
                    shown = min(frame - layer.get("range", [0])[0], raster["frames"] - 1)
                    box = (4 * column / size["width"], 4 * row / size["height"],
                           4 * (column + 1) / size["width"], 4 * (row + 1) / size["height"])  # fmt: skip
                    value = raster_value(raster, shown, box, (ox, oy, scale))
                else:
                    away = distance(layer, points, scale, x=u * canvas["width"], y=v * canvas["height"], reach=reach)
                    soft = max(layer.get("softness", 0) + document.get("feather", 0), 1e-6)
                    value = min(1.0, max(0.0, 1 - away / soft))
                value *= layer.get("strength", 1)
                mask = mask * (1 - value) if layer.get("mode") == "erase" else max(mask, value)
            cells[row // 4][column // 4] = max(cells[row // 4][column // 4], mask)
    return cells


def video_cells(document: Json, size: Json, rasters: Json) -> list[list[list[float]]]:
    """Return the picture's mask, tokens of rows of cells."""
    tokens, start, number = [], 0, 0
    while start < size["frames"]:
        frames = [frame_cells(document, size, frame, rasters) for frame in range(start, start + TOKEN[number % 5])]
        tokens.append([[max(values) for values in zip(*rows, strict=True)] for rows in zip(*frames, strict=True)])
        start, number = start + TOKEN[number % 5], number + 1
    return tokens


def audio_cells(document: Json, frames: int) -> list[list[float]]:
    """Return the sound's mask, two channels of latents, by looking at many moments of each latent."""
    audio = document.get("audio", {})
    count, moments = round(frames * 40 / 24), 600
    cells = [[0.0] * count for _ in range(2)]
    for channel in range(2):
        runs = [r for r in audio.get("ranges", []) if audio.get("linked", True) or r.get("channel") in (None, channel)]
        for latent in range(count):
            end = frames if latent + 1 == count else 0.6 * (latent + 1)
            for moment in range(moments):
                time = 0.6 * latent + (moment + 0.5) / moments * (end - 0.6 * latent)
                value = ([audio.get("base", 0)] + [r["value"] for r in runs if r["from"] <= time < r["to"]])[-1]
                cells[channel][latent] = max(cells[channel][latent], value)
    return cells


def cases() -> dict[str, Json]:
    """Return the inputs of the golden masks by name: ``document``, ``size`` and ``rasters``."""
    rng = random.Random(5)
    lasso = [
        [0.45 + r * math.cos(2 * math.pi * i / 20), 0.5 + r * 1.3 * math.sin(2 * math.pi * i / 20)]
        for i, r in ((i, 0.2 + 0.07 * math.sin(3 * i)) for i in range(20))
    ]
    moved = [[x + 0.13 + 0.01 * (i % 3), y - 0.07] for i, (x, y) in enumerate(lasso)]
    path = [[0.1 + 0.08 * i, 0.3 + 0.25 * math.sin(i), 0.3 + 0.07 * i] for i in range(10)]
    blob = {"width": 20, "height": 12, "frames": 1, "bytes": [rng.choice([0, 0, 40, 255]) for _ in range(240)]}
    places = [(x - 15 - 10 * f, y - 20) for f in range(3) for y in range(48) for x in range(64)]
    dots = [255 if x * x + y * y < 45 else 0 for x, y in places]
    track = {"width": 64, "height": 48, "frames": 3, "bytes": dots}

    def case(
        layers: list[Json],
        *,
        size: Size = (128, 96, 22),
        canvas: Size | None = None,
        rasters: Json | None = None,
        **fields: Any,
    ) -> Json:
        names = ("width", "height", "frames")
        document = {"version": 1, "canvas": dict(zip(names, canvas or size, strict=True)), "layers": layers, **fields}
        return {"document": document, "size": dict(zip(names, size, strict=True)), "rasters": rasters or {}}

    def still(kind: str, points: list[list[float]], number: int = 0, **fields: Any) -> Json:
        return {"id": f"{kind}-{number}", "kind": kind, "keys": [{"frame": 0, "points": points}], **fields}

    eight = [[0.2, 0.2], [0.8, 0.8], [0.8, 0.2], [0.2, 0.8]]
    loops = [[0.5 + r * math.cos(a), 0.5 + r * math.sin(a)] for r, a in ((0.2 + 0.01 * i, 0.7 * i) for i in range(22))]
    return {
        "empty": case([]),
        "stroke_with_pressure": case([still("stroke", path, size=22, softness=6.5, strength=0.6, range=[3, 9])]),
        "stroke_of_one_point": case([still("stroke", [[0.31, 0.62]], size=30, softness=10)]),
        "rect_and_erased_ellipse": case([
            still("rect", [[0.75, 0.8], [0.125, 0.1667]], strength=0.9),
            still("ellipse", [[0.3, 0.3], [0.6, 0.55]], mode="erase", softness=8, strength=0.8),
        ]),
        "flat_ellipse": case([still("ellipse", [[0.3, 0.5], [0.7, 0.52]], softness=20)]),
        "lasso_moves_by_keys": case([{
            "id": "face", "kind": "polygon", "interpolate": "linear", "softness": 5, "range": [1, 20],
            "keys": [{"frame": 3, "points": lasso}, {"frame": 9, "points": moved, "offset": [0.1, -0.05], "scale": 0.7},
                     {"frame": 17, "offset": [-0.2, 0.1], "scale": 1.4}]}]),
        "stroke_moves_by_keys": case([{
            "id": "hand", "kind": "stroke", "interpolate": "linear", "size": 12, "softness": 4,
            "keys": [{"frame": 0, "points": path}, {"frame": 21, "points": path[::-1], "scale": 1.5}]}]),
        "keys_of_different_points": case([
            {"id": "held", "kind": "polygon",
             "keys": [{"frame": 2, "points": lasso}, {"frame": 8, "points": eight[:3]}]},
            {"id": "grown", "kind": "polygon", "interpolate": "linear", "strength": 0.5,
             "keys": [{"frame": 4, "points": lasso}, {"frame": 14, "points": eight[:3], "offset": [0.2, 0.1]}]}]),
        "polygons_that_cross_themselves": case([
            still("polygon", eight, 0, strength=0.7), still("polygon", loops, 1, softness=3, range=[9, 22])]),
        "feather": case([still("rect", [[0.25, 0.25], [0.5, 0.5]], softness=3),
                         still("stroke", path, size=10, mode="erase")], feather=9),
        "thin_shapes": case([
            still("stroke", [[0.02, 0.9], [0.97, 0.93]], size=1),
            still("rect", [[0.5, 0.1], [0.501, 0.7]], range=[7, 8]),
            still("ellipse", [[0.2, 0.2], [0.2, 0.6]], range=[21, 22])]),
        "beside_and_switched_off": case([
            still("stroke", [[-0.5, -0.5], [0.1, 0.1]], size=20), still("rect", [[1.2, 0.1], [1.6, 0.7]]),
            still("ellipse", [[0.8, 0.8], [1.4, 1.3]]), still("polygon", lasso, enabled=False)]),
        "ranges_at_odd_frames": case(
            [still("rect", [[0.25, 0.25], [0.5, 0.5]])], size=(64, 64, 39),
            video={"base": 1, "ranges": [{"from": 0, "to": 11, "value": 0}, {"from": 5, "to": 6, "value": 0.25},
                                         {"from": 18, "to": 39, "value": 0}]},
            audio={"base": 0, "linked": False, "ranges": [{"from": 7, "to": 19, "value": 1, "channel": 0},
                                                          {"from": 11.3, "to": 12.45, "value": 0.5, "channel": 1},
                                                          {"from": 13, "to": 14, "value": 0, "channel": None},
                                                          {"from": 38, "to": 39, "value": 1}]}),
        "keep_the_start": case([], size=(64, 64, 56), video={"base": 1, "ranges": [{"from": 0, "to": 24, "value": 0}]},
                               audio={"base": 1, "ranges": [{"from": 0, "to": 24, "value": 0}]}),
        "smaller_than_painted": case([still("polygon", lasso, softness=20), still("stroke", path, size=3)],
                                     canvas=(512, 384, 22)),
        "larger_than_painted": case([still("polygon", lasso, softness=5), still("stroke", path, size=3)],
                                    canvas=(64, 48, 22)),
        "rasters": case(
            [{"id": "blob", "kind": "raster", "file": "blob.png", "strength": 0.8, "interpolate": "linear", "keys": [
                {"frame": 0, "scale": 0.5}, {"frame": 10, "offset": [0.2, -0.1], "scale": 1.1}]},
             {"id": "track", "kind": "raster", "file": "track.png", "range": [4, 14]},
             {"id": "hole", "kind": "raster", "file": "blob.png", "mode": "erase", "range": [12, 22]}],
            rasters={"blob.png": blob, "track.png": track}),
    }  # fmt: skip


def golden(case: Json) -> Json:
    """Return a case with its masks: ``video`` (tokens x rows x columns) and ``audio`` (2 x latents), flat, 6 digits."""
    video = video_cells(case["document"], case["size"], case["rasters"])
    audio = audio_cells(case["document"], case["size"]["frames"])
    return {
        **case,
        "video": [round(value, 6) for rows in video for row in rows for value in row],
        "audio": [round(value, 6) for channel in audio for value in channel],
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", required=True)
    parser.parse_args()
    for name, inputs in cases().items():
        (FOLDER / f"{name}.json").write_text(json.dumps(golden(inputs), separators=(",", ":")) + "\n")
