"""Values of a mask document's layers at sample points: the geometry of ``docs/mask-document.md``, in numpy.

A shape is computed only where it can be above 0: in the box around it, of a line in the runs of samples near it.
Everything is in pixels of the document's canvas and in 64-bit floats, in the same order as
``web/mask_editor/shapes.js``. Raises nothing, holds no state.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .mask_document import Canvas, Key, Layer

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Values = npt.NDArray[np.float32]

SAMPLES = 4
"""Samples of a cell's side."""
SHARPEST = 1e-6
"""Width of the edge of a shape without softness, pixels: what is continuous comes out the same in two languages."""
_BLOCK = 1 << 20
"""Samples that are computed at once."""


@dataclass(frozen=True)
class Grid:
    """The samples of a latent's canvas, in pixels of the document's canvas.

    Attributes:
        canvas: the document's.
        columns, rows: how many samples; 4 for each cell of 16 pixels.
    """

    canvas: Canvas
    columns: int
    rows: int

    @property
    def step(self) -> tuple[float, float]:
        """Distance of two samples, x and y."""
        return self.canvas.width / self.columns, self.canvas.height / self.rows

    @property
    def reach(self) -> float:
        """Half the diagonal of a sample's square."""
        x, y = self.step
        return float(np.sqrt((x / 2) ** 2 + (y / 2) ** 2))

    def x(self, columns: Ints) -> Floats:
        """Return the x of columns."""
        return (columns + 0.5) / self.columns * self.canvas.width

    def y(self, rows: Ints) -> Floats:
        """Return the y of rows."""
        return (rows + 0.5) / self.rows * self.canvas.height


@dataclass(frozen=True)
class Window:
    """A run of rows and one of columns of a grid, ends excluded."""

    top: int
    bottom: int
    left: int
    right: int

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.bottom - self.top, self.right - self.left

    @property
    def sides(self) -> tuple[int, int, int, int]:
        """Top, bottom, left, right."""
        return self.top, self.bottom, self.left, self.right


@dataclass(frozen=True)
class Poses:
    """A drawn layer's shape at n frames, in pixels of the document's canvas.

    Attributes:
        x, y: of the points [n, P]; of fewer points than the most the last is repeated.
        radius: of a stroke at its points [n, P].
    """

    x: Floats
    y: Floats
    radius: Floats


def keys_at(layer: Layer, frame: int) -> tuple[int, float]:
    """Return the number of the key that holds at a frame, and how far the shape is on its way to the next, 0 to 1."""
    at = bisect_right(layer.keys, frame, key=lambda key: key.frame) - 1
    if layer.interpolate == "hold" or at < 0 or at + 1 == len(layer.keys):
        return max(at, 0), 0.0
    first, second = layer.keys[at].frame, layer.keys[at + 1].frame
    return at, (frame - first) / (second - first)


def moves(layer: Layer, frames: Sequence[int]) -> Floats:
    """Return a layer's offset x and y (fractions of the canvas) and scale at each frame, [n, 3]."""
    if not layer.keys:
        return np.tile([0.0, 0.0, 1.0], (len(frames), 1))
    table = np.array([(*key.offset, key.scale) for key in layer.keys])
    found = [keys_at(layer, frame) for frame in frames]
    at = np.array([key for key, _ in found])
    u = np.array([u for _, u in found])[:, None]
    first, second = table[at], table[np.minimum(at + 1, len(table) - 1)]
    return np.asarray(first + (second - first) * u)


def poses(layer: Layer, frames: Sequence[int], grid: Grid) -> Poses:
    """Return a drawn layer's shape at ``frames``."""
    keys = _points_of_keys(layer.keys)
    found = []
    for frame in frames:
        at, u = keys_at(layer, frame)
        first, second = keys[at], keys[min(at + 1, len(keys) - 1)]
        found.append(first + (second - first) * u if u and len(first) == len(second) else first)
    most = max(len(points) for points in found)
    points = np.stack([np.concatenate([item, item[-1:].repeat(most - len(item), 0)]) for item in found])  # [n, P, 3]
    move = moves(layer, frames)
    scale = move[:, 2:]
    lengths = (grid.canvas.width, grid.canvas.height)
    x, y = (_placed(points[:, :, axis], move[:, axis : axis + 1], scale) * lengths[axis] for axis in (0, 1))
    return Poses(x, y, np.maximum(layer.size / 2 * scale * points[:, :, 2], grid.reach))


def _placed(values: Floats, offset: Floats, scale: Floats) -> Floats:
    """Return one axis [n, P] of points, enlarged about its middle and moved; ``offset`` and ``scale`` are [n, 1]."""
    middle = (values.min(1, keepdims=True) + values.max(1, keepdims=True)) / 2
    return np.asarray(middle + (values - middle) * scale + offset)


def _points_of_keys(keys: Sequence[Key]) -> list[Floats]:
    """Return each key's points [P, 3]: its own, else those of the key before."""
    found: list[Floats] = []
    for key in keys:
        found.append(np.array(key.points, dtype=np.float64) if key.points is not None else found[-1])
    return found


def values(layer: Layer, frames: Sequence[int], grid: Grid, *, feather: float) -> tuple[Window, Values]:
    """Return the window in which a drawn layer can be above 0, and its values [n, rows, columns] there.

    Args:
        feather: pixels of the document's canvas, added to the layer's softness.
    """
    pose = poses(layer, frames, grid)
    edge = max(layer.softness + feather, SHARPEST)
    spread = edge + (float(pose.radius.max()) if layer.kind == "stroke" else grid.reach)
    window = Window(
        *_span(pose.y.min() - spread, pose.y.max() + spread, step=grid.step[1], count=grid.rows),
        *_span(pose.x.min() - spread, pose.x.max() + spread, step=grid.step[0], count=grid.columns),
    )
    if 0 in window.shape:
        return window, np.zeros((len(frames), *window.shape), np.float32)
    if layer.kind in ("rect", "ellipse"):
        found = _box_values(layer, pose, grid, window, edge=edge)
    else:
        closed = layer.kind == "polygon"
        found = _inside(pose, grid, window) if closed else np.zeros((len(frames), *window.shape), np.float32)
        _draw_lines(found, pose, grid, window, edge=edge, closed=closed)
    return window, found * np.float32(layer.strength)


def _span(low: float, high: float, *, step: float, count: int) -> tuple[int, int]:
    """Return the samples [first, end) whose middle may lie in [low, high]."""
    first = min(max(math.floor(low / step - 0.5), 0), count)
    return first, max(first, min(math.ceil(high / step + 0.5), count))


def _box_values(layer: Layer, pose: Poses, grid: Grid, window: Window, *, edge: float) -> Values:
    """Return the values [n, rows, columns] of a rect or ellipse; the points are two corners of its box."""
    a, b = (np.maximum(abs(axis[:, 0] - axis[:, 1]) / 2, grid.reach)[:, None] for axis in (pose.x, pose.y))
    x = grid.x(np.arange(window.left, window.right)) - (pose.x[:, :1] + pose.x[:, 1:]) / 2  # [n, columns]
    y = grid.y(np.arange(window.top, window.bottom)) - (pose.y[:, :1] + pose.y[:, 1:]) / 2  # [n, rows]
    px, py = np.maximum(abs(x) - a, 0), np.maximum(abs(y) - b, 0)
    away = np.sqrt((px * px)[:, None, :] + (py * py)[:, :, None])
    if layer.kind == "ellipse":
        k = np.sqrt(((x / a) ** 2)[:, None, :] + ((y / b) ** 2)[:, :, None])
        slope = np.sqrt(((x / a / a) ** 2)[:, None, :] + ((y / b / b) ** 2)[:, :, None])
        outside = k > 1
        away = np.where(outside, np.maximum(away, k * (k - 1) / np.where(outside, slope, 1.0)), 0.0)
    return np.asarray(np.clip(1 - away / edge, 0, 1), np.float32)


def _inside(pose: Poses, grid: Grid, window: Window) -> Values:
    """Return 1 within polygons, 0 elsewhere [n, rows, columns], by non-zero winding."""
    count = len(pose.x)
    frame = np.repeat(np.arange(count), pose.x.shape[1])
    x0, y0 = pose.x.ravel(), pose.y.ravel()
    x1, y1 = np.roll(pose.x, -1, 1).ravel(), np.roll(pose.y, -1, 1).ravel()
    step = grid.step[1]
    first = np.clip(np.floor(np.minimum(y0, y1) / step - 0.5), window.top, window.bottom)
    end = np.clip(np.ceil(np.maximum(y0, y1) / step + 0.5), window.top, window.bottom)
    line, row = _runs(first.astype(np.int64), end.astype(np.int64))
    y = grid.y(row)
    crossed = (np.minimum(y0, y1)[line] <= y) & (y < np.maximum(y0, y1)[line])
    line, row, y = line[crossed], row[crossed], y[crossed]
    at = x0[line] + (y - y0[line]) / (y1[line] - y0[line]) * (x1[line] - x0[line])
    # A sample right of the line has crossed it: column c with middle > at.
    column = np.clip(np.floor(at / grid.step[0] - 0.5) + 1, window.left, window.right).astype(np.int64)
    rows, columns = window.shape
    turns = np.zeros((count, rows, columns + 1), np.int32)
    places = (frame[line] * rows + row - window.top) * (columns + 1) + column - window.left
    np.add.at(turns.reshape(-1), places, np.where(y1[line] > y0[line], 1, -1).astype(np.int32))
    return np.asarray(np.cumsum(turns[:, :, :-1], axis=2, dtype=np.int32) != 0, np.float32)


def _draw_lines(found: Values, pose: Poses, grid: Grid, window: Window, *, edge: float, closed: bool) -> None:
    """Raise ``found`` [n, rows, columns] to the values of the lines between points, with a stroke's radius or none."""
    count, points = pose.x.shape
    last = np.roll(np.arange(points), -1) if closed else np.minimum(np.arange(points) + 1, points - 1)
    used = points if closed or points == 1 else points - 1
    ends = [(axis[:, :used], axis[:, last[:used]]) for axis in (pose.x, pose.y)]
    radius = np.zeros_like(pose.radius) if closed else pose.radius
    lines = _Lines(
        frame=np.repeat(np.arange(count), used),
        x=ends[0][0].ravel(),
        y=ends[1][0].ravel(),
        dx=(ends[0][1] - ends[0][0]).ravel(),
        dy=(ends[1][1] - ends[1][0]).ravel(),
        radius=radius[:, :used].ravel(),
        growth=(radius[:, last[:used]] - radius[:, :used]).ravel(),
    )
    flat = found.reshape(-1)
    for line, row, column in lines.near(grid, window, edge=edge):
        at = (lines.frame[line] * window.shape[0] + row - window.top) * window.shape[1] + column - window.left
        low = flat[at] < 1
        away = lines.distance(line[low], grid.x(column[low]), grid.y(row[low]))
        np.maximum.at(flat, at[low], (1 - np.maximum(away, 0) / edge).astype(np.float32))


@dataclass(frozen=True)
class _Lines:
    """m lines of all frames: where they start, how far they go, the radius at the start and what it grows by."""

    frame: Ints
    x: Floats
    y: Floats
    dx: Floats
    dy: Floats
    radius: Floats
    growth: Floats

    def distance(self, line: Ints, x: Floats, y: Floats) -> Floats:
        """Return how far points lie outside of lines, pixels."""
        dx, dy = self.dx[line], self.dy[line]
        px, py = x - self.x[line], y - self.y[line]
        length = dx * dx + dy * dy
        u = np.clip((px * dx + py * dy) / np.where(length > 0, length, 1), 0, 1)
        qx, qy = px - u * dx, py - u * dy
        return np.asarray(np.sqrt(qx * qx + qy * qy) - (self.radius[line] + self.growth[line] * u))

    def near(self, grid: Grid, window: Window, *, edge: float) -> Iterator[tuple[Ints, Ints, Ints]]:
        """Yield samples that may be above 0, in blocks: line, row, column."""
        spread = np.maximum(self.radius, self.radius + self.growth) + edge
        ends = self.y, self.y + self.dy
        low, high = np.minimum(*ends) - spread, np.maximum(*ends) + spread
        first, end = _spans(low, high, grid.step[1], window.top, window.bottom)
        for lines in _blocks(end - first):
            owner, row = _runs(first[lines], end[lines])
            line = lines[owner]
            left, right = self._columns(line, spread[line], grid.y(row) - self.y[line], grid, window)
            for part in _blocks(right - left):
                owner, column = _runs(left[part], right[part])
                yield line[part][owner], row[part][owner], column

    def _columns(self, line: Ints, spread: Floats, away: Floats, grid: Grid, window: Window) -> tuple[Ints, Ints]:
        """Return the columns [first, end) near lines in rows that lie ``away`` of their starts.

        They are those near the part of each line that is within ``spread`` of the row.
        """
        dy = self.dy[line]
        slope = np.where(dy == 0, 1, dy)
        u0, u1 = (np.clip((away + side * spread) / slope, 0, 1) for side in (-1, 1))
        u0, u1 = np.where(dy == 0, 0, u0), np.where(dy == 0, 1, u1)
        ends = self.x[line] + u0 * self.dx[line], self.x[line] + u1 * self.dx[line]
        return _spans(np.minimum(*ends) - spread, np.maximum(*ends) + spread, grid.step[0], window.left, window.right)


def _blocks(counts: Ints) -> list[Ints]:
    """Return the numbers of the counts, in blocks of about `_BLOCK` counted things each."""
    total = np.cumsum(counts)
    cuts = np.searchsorted(total, np.arange(_BLOCK, int(total[-1]) if len(total) else 0, _BLOCK)) + 1
    return np.split(np.arange(len(counts)), cuts)


def _spans(low: Floats, high: Floats, step: float, start: int, stop: int) -> tuple[Ints, Ints]:
    """Return the samples [first, end) whose middle may lie in [low, high], within [start, stop)."""
    first = np.clip(np.floor(low / step - 0.5), start, stop).astype(np.int64)
    return first, np.maximum(np.clip(np.ceil(high / step + 0.5), start, stop).astype(np.int64), first)


def _runs(first: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Return all numbers of the runs [first, end) one after the other, and the run that each belongs to."""
    counts = np.maximum(end - first, 0)
    owner = np.repeat(np.arange(len(counts)), counts)
    return owner, np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts) + first[owner]


def raster_values(raster: npt.NDArray[Any], move: Floats, grid: Grid) -> Values:
    """Return the largest pixel under each sample's square [rows, columns]; 0 beside the raster.

    Args:
        raster: [h, w], bool, uint8 of 255 or float of 1. move: offset x and y (fractions) and scale [3].
    """
    height, width = raster.shape
    top, bottom = _pixels(grid.rows, offset=move[1], scale=move[2], length=height)
    left, right = _pixels(grid.columns, offset=move[0], scale=move[2], length=width)
    shares = raster.astype(np.float32) / np.float32(255 if raster.dtype == np.uint8 else 1)
    return _largest(_largest(shares, top, bottom).T, left, right).T


def _pixels(samples: int, *, offset: float, scale: float, length: int) -> tuple[Ints, Ints]:
    """Return the pixels [first, end) of one axis under each sample's square; first = end beside the raster."""
    edges = 0.5 + (np.arange(samples + 1) / samples - 0.5 - offset) / scale
    first = np.floor(edges[:-1] * length + 1e-6).astype(np.int64)
    end = np.maximum(np.ceil(edges[1:] * length - 1e-6).astype(np.int64), first + 1)
    first, end = np.clip(first, 0, length), np.clip(end, 0, length)
    return first, np.maximum(end, first)


def _largest(shares: Values, first: Ints, end: Ints) -> Values:
    """Return the maximum of each run [first, end) of the first axis; 0 for an empty one."""
    padded = np.concatenate([shares, np.zeros_like(shares[:1])])
    found = np.maximum.reduceat(padded, np.stack([first, end], 1).ravel(), axis=0)[::2]
    found[end <= first] = 0
    return found
