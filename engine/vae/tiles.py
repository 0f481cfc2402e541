"""How a picture is cut into overlapping tiles, and put together again.

Promise: the same tiles as diffusers' video VAE lays for the same size and overlap, known without the VAE, so that every
rank counts them alike. Sizes are pixels, multiples of the VAE's spatial ratio. Pure arithmetic but for `Grid.stitch`;
raises nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
        starts: first pixel of each tile. length: pixels of each. overlaps: pixels that tile i shares with tile i + 1.
    """

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
            return cls((0,), side, ())
        seams = -(-(side - overlap) // (size - overlap)) - 1
        steps = ((seams + 1) * size - seams * overlap - side) // ratio
        overlaps = tuple(overlap + ratio * (steps // seams + (seam < steps % seams)) for seam in range(seams))
        starts = [0]
        for shared in overlaps:
            starts.append(starts[-1] + size - shared)
        return cls(tuple(starts), size, overlaps)


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

    def stitch(self, vae: Any, tiles: Sequence[torch.Tensor], *, scale: int = 1) -> torch.Tensor:
        """Blend all ``tiles`` [..., h, w], in order, into one picture [..., H, W] of new memory, as ``vae`` does.

        Args:
            scale: pixels of the canvas along the side of a value of the tiles.
        """
        width = len(self.columns.starts)
        rows = [list(tiles[first : first + width]) for first in range(0, len(tiles), width)]
        seams = ([overlap // scale for overlap in axis.overlaps] for axis in (self.rows, self.columns))
        stitched: torch.Tensor = vae._stitch_tiles(rows, *seams)
        return stitched
