"""The size of a request, as far as memory and time depend on it: rows of its packed sequence, pictures that are read.

Promise: the rows are those that `packing.build_layout` lays out for the same sizes, in the same order; nothing is
opened. Torch-free arithmetic; raises nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from ..contract import geometry
from ..contract.limits import DEFAULT_STEPS, ModelFacts

TEXT, VIDEO, AUDIO, PADDING = "text", "video", "audio", "padding"
VISION_CELL = 32
"""Pixels along the side of what becomes one text row: a patch of 16, two of them merged."""
VISION_LABEL_ROWS = 16
"""Text rows that the label, the time and the two marks of a vision block take, at most, in the released vocabulary."""
Run = tuple[str, int]
"""Rows of one kind that lie behind each other."""


@dataclass(frozen=True)
class MediumSize:
    """The latents of a keyframe, guide or reference.

    Attributes:
        video: latent frames, height and width in cells; None: no pictures.
        audio: latents of each channel; 0: no sound.
        reference: whether it is a reference; its sound then lies before its pictures.
    """

    video: tuple[int, int, int] | None = None
    audio: int = 0
    reference: bool = False


@dataclass(frozen=True, kw_only=True)
class RequestSize:
    """A request to denoise, or to generate.

    Attributes:
        width, height: pixels, multiples of the canvas multiple. frames: pixel frames on the lattice 17n+5.
        text_rows: tokens of the prompt with those of its pictures (`vision_rows`).
        media: keyframes and guides, then references.
        vision: (time, height, width) in patches of what the text encoder is shown.
        pad_seq_len: the pinned length, rows. steps: forwards.
        mask_levels: times that rows of an edit have besides their stream's.
    """

    width: int
    height: int
    frames: int
    text_rows: int = 256
    media: tuple[MediumSize, ...] = ()
    vision: tuple[tuple[int, int, int], ...] = ()
    pad_seq_len: int | None = None
    steps: int = DEFAULT_STEPS
    mask_levels: int = 0

    @property
    def latent_frames(self) -> int:
        """Latent frames of the video."""
        return geometry.latent_frames(self.frames)

    @property
    def audio_latents(self) -> int:
        """Audio latents of each channel."""
        return geometry.audio_latents(self.frames)

    @property
    def with_references(self) -> bool:
        """Whether the transformer for references runs."""
        return any(medium.reference for medium in self.media)

    @property
    def levels(self) -> int:
        """Distinct times of a step, at most: of pictures and sound, of held pictures, of held sound, and of masks."""
        held = (any(medium.video for medium in self.media), any(medium.audio for medium in self.media))
        return 2 + sum(held) + self.mask_levels

    @property
    def vision_patches(self) -> int:
        """Patches that the text encoder's vision tower sees, all together."""
        return sum(math.prod(grid) for grid in self.vision)

    def runs(self, facts: ModelFacts) -> tuple[Run, ...]:
        """Return the packed sequence as runs of rows of one kind, in order."""
        found: list[Run] = [(TEXT, self.text_rows)]
        for medium in self.media:
            pictures = (VIDEO, 0 if medium.video is None else _video_rows(*medium.video, facts))
            sound = (AUDIO, geometry.AUDIO_CHANNELS * medium.audio)
            found += [sound, pictures] if medium.reference else [pictures, sound]
        ratio = facts.spatial_ratio
        target = _video_rows(self.latent_frames, self.height // ratio, self.width // ratio, facts)
        found += [(AUDIO, geometry.AUDIO_CHANNELS * self.audio_latents), (VIDEO, target)]
        used = sum(rows for _, rows in found)
        return (*found, (PADDING, max(0, (self.pad_seq_len or used) - used)))

    def target_rows(self, facts: ModelFacts) -> dict[str, int]:
        """Return the rows that are made: of pictures and of sound."""
        *_, audio, video, _ = self.runs(facts)
        return dict((audio, video))


def count_rows(runs: Iterable[Run], bounds: tuple[int, int] | None = None) -> dict[str, int]:
    """Return the rows of each kind between ``bounds`` (first row, one after the last), all by default."""
    counts = dict.fromkeys((TEXT, VIDEO, AUDIO, PADDING), 0)
    start = 0
    for kind, rows in runs:
        low, high = (start, start + rows) if bounds is None else (max(start, bounds[0]), min(start + rows, bounds[1]))
        counts[kind] += max(0, high - low)
        start += rows
    return counts


def vision_grid(
    width: int, height: int, *, frames: int = 1, fewest: int = 2**16, most: int = 2**24
) -> tuple[int, int, int]:
    """Return the (time, height, width) in patches of a picture or clip that the text encoder is shown.

    Both sides are rounded to multiples of 32 pixels, then shrunk or grown, keeping their ratio, into the processor's
    limits; pairs of frames become one.

    Args:
        frames: that are sampled of a clip, two a second; 1: a picture.
        fewest, most: pixels of a picture, or of all frames of a clip, that the processor's configuration allows.
    """
    sides = [max(VISION_CELL, round(side / VISION_CELL) * VISION_CELL) for side in (height, width)]
    area = math.prod(sides) * frames
    if area > most or area < fewest:
        scale = math.sqrt((most if area > most else fewest) / (frames * height * width))
        fit = math.floor if area > most else math.ceil
        sides = [max(VISION_CELL, fit(side * scale / VISION_CELL) * VISION_CELL) for side in (height, width)]
    patch = VISION_CELL // 2
    return -(-frames // 2), sides[0] // patch, sides[1] // patch


def vision_rows(grids: Iterable[tuple[int, int, int]]) -> int:
    """Return the text rows, at most, that the vision blocks of ``grids`` become, one block for each pair of frames."""
    return sum(time * (height * width // 4 + VISION_LABEL_ROWS) for time, height, width in grids)


def _video_rows(frames: int, height: int, width: int, facts: ModelFacts) -> int:
    """Return the rows of ``frames`` latent frames of ``height`` x ``width`` cells."""
    return frames * (height // facts.patch) * (width // facts.patch)
