"""Modulation tables in bytes: what a run's tables take, and whether there are to be any.

A transformer's block is modulated by what its AdaLN projection makes of a forward's *levels*, its distinct times: for
each level and modality two shifts, two scales and two gates of the block's width. A run's tables lie in host memory;
the device holds that of the step that runs. Torch-free: ranks count by it before they compute anything, the planner
before anything is loaded. Raises nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

MODALITIES = 3
"""Video, text and sound: each has rows of its own in a table."""
FACTORS = 6
"""Shift, scale and gate, of the attention and of the feed-forward."""


def keeps_modulation_apart(*, modulation_tables_mb: int, shard_weights: bool) -> bool:
    """Return whether the projections are a stream of their own, off the device while tables are in use.

    Not with sharded weights: a block is gathered with its projection in one piece, which would be no smaller.
    """
    return modulation_tables_mb > 0 and not shard_weights


def modulation_table_bytes(levels: Iterable[int], *, blocks: int, width: int, element: int) -> int:
    """Return the bytes of a run's tables: sum of N over the tables, times B * M * 6 * C * E.

    Of the released transformer (50 blocks of width 5376, bf16) 9.7 MB a level; its projections take 26 GB.

    Args:
        levels: N of each table; steps of equal times share one. blocks: B. width: C, of the hidden states.
        element: E, bytes of a value of the type that blocks compute in.
    """
    return sum(levels) * blocks * MODALITIES * FACTORS * width * element


_STEPS_AT_LEAST = 4
"""A step's table may take this part of what a run's may: masks can bring hundreds of levels."""


def tables_fit(levels: Sequence[int], *, allowed: int, level_bytes: int) -> bool:
    """Return whether tables are made: all take at most ``allowed`` bytes, each at most `step_bytes_allowed`.

    Args:
        levels: N of each table. level_bytes: `modulation_table_bytes` of one level.
    """
    return sum(levels) * level_bytes <= allowed and max(levels) * level_bytes <= step_bytes_allowed(allowed)


def step_bytes_allowed(allowed: int) -> int:
    """Return the most bytes that the device holds of tables that may take ``allowed``: a fourth."""
    return allowed // _STEPS_AT_LEAST


def most_levels(*, pictures: bool, sound: bool) -> int:
    """Return the most levels that a step without masks has: both streams, and what it is conditioned on.

    Args:
        pictures: whether it is conditioned on pictures. sound: and on sound.
    """
    return 2 + pictures + sound
