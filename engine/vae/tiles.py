"""How a picture is cut into overlapping tiles, and put together again.

Promise: the same tiles and the same blend as diffusers' video VAE, bit for bit, known without the VAE, so that every
rank counts them alike. Sizes are pixels, multiples of the VAE's spatial ratio. Pure arithmetic; raises nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..contract import geometry


@dataclass(frozen=True)
class TileGeometry:
    """The side of a square tile and the least overlap of neighbours, pixels; by default what the VAE was trained on."""

    size: int = geometry.TRAINED_TILE
    overlap: int = geometry.TRAINED_TILE_OVERLAP


@dataclass(frozen=True)
class Axis:
    """The tiles along one side of a picture.

    Attributes:
        side: pixels. starts: first pixel of each tile. length: pixels of each.
        overlaps: pixels that tile i shares with tile i + 1.
    """

    side: int
    starts: tuple[int, ...]
    length: int
    overlaps: tuple[int, ...]

    @classmethod
    def divide(cls, side: int, tiles: TileGeometry, *, ratio: int) -> Axis:
        """Cover ``side`` pixels with the fewest tiles.

        n tiles of size s cover n*s - (n-1)*o pixels, so n = ceil((side - o) / (s - o)); what they cover too much widens
        the overlaps, the first ones first, in steps of ``ratio``.
        """
        size, overlap = tiles.size, tiles.overlap
        if size >= side:
            return cls(side, (0,), side, ())
        seams = -(-(side - overlap) // (size - overlap)) - 1
        steps = ((seams + 1) * size - seams * overlap - side) // ratio
        overlaps = tuple(overlap + ratio * (steps // seams + (seam < steps % seams)) for seam in range(seams))
        starts = [0]
        for shared in overlaps:
            starts.append(starts[-1] + size - shared)
        return cls(side, tuple(starts), size, overlaps)

    def part(self, tile: int, *, scale: int = 1) -> tuple[int, int, int]:
        """Return where ``tile`` begins, where the next one does (or the side ends), and what it shares with the one
        before, in units of ``scale`` pixels.
        """
        ends = (*self.starts[1:], self.side)
        shared = self.overlaps[tile - 1] if tile else 0
        return self.starts[tile] // scale, ends[tile] // scale, shared // scale


@dataclass(frozen=True)
class Grid:
    """The tiles of one picture, numbered row by row."""

    rows: Axis
    columns: Axis

    @classmethod
    def cover(cls, height: int, width: int, tiles: TileGeometry, *, ratio: int) -> Grid:
        """Cover ``height`` x ``width`` pixels; ``ratio``: pixels along the side of a latent."""
        return cls(Axis.divide(height, tiles, ratio=ratio), Axis.divide(width, tiles, ratio=ratio))

    @property
    def count(self) -> int:
        """How many tiles."""
        return len(self.rows.starts) * len(self.columns.starts)

    def window(self, tile: int, *, scale: int = 1) -> tuple[slice, slice]:
        """Return the rows and columns of ``tile``, in units of ``scale`` pixels."""
        row, column = divmod(tile, len(self.columns.starts))
        top, left = self.rows.starts[row] // scale, self.columns.starts[column] // scale
        return slice(top, top + self.rows.length // scale), slice(left, left + self.columns.length // scale)

    def stitch(self, tiles: Sequence[torch.Tensor], *, scale: int = 1) -> torch.Tensor:
        """Blend all ``tiles`` [..., h, w], in order, into one picture [..., H, W] of new memory.

        A tile fades in over the overlap with the one above, then over that with the one on its left, both as they were
        decoded: each value is computed as in diffusers and has the same bits.

        Args:
            scale: pixels of the canvas along the side of a value of the tiles.
        """
        width = len(self.columns.starts)
        picture = tiles[0].new_empty((*tiles[0].shape[:-2], self.rows.side // scale, self.columns.side // scale))
        for index, tile in enumerate(tiles):
            row, column = divmod(index, width)
            top, bottom, above = self.rows.part(row, scale=scale)
            left, right, before = self.columns.part(column, scale=scale)
            height, breadth = bottom - top, right - left
            place = picture[..., top:bottom, left:right]
            place.copy_(tile[..., :height, :breadth])
            if above:
                fade_in(tiles[index - width][..., -above:, :breadth], place, dim=-2)
            if before:
                fade_in(tiles[index - 1][..., :height, -before:], place, dim=-1)
        return picture


def fade_in(old: torch.Tensor, new: torch.Tensor, *, dim: int) -> None:
    """Let ``new`` fade in, in place, over its first values along ``dim``, of which ``old`` has n: value i of n becomes
    old * (1 - i/n) + new * (i/n). Where ``new`` is shorter than n, the rest is left out.
    """
    extent = old.shape[dim]
    span = min(extent, new.shape[dim])
    shape = [1] * new.ndim
    shape[dim] = span
    share = torch.arange(span, device=new.device, dtype=new.dtype) / extent
    start = new.narrow(dim, 0, span)
    start.copy_(old.narrow(dim, 0, span) * (1 - share).view(shape) + start * share.view(shape))
