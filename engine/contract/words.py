"""Numbers as people read them, the same on a node and in a terminal. Raises nothing."""

from __future__ import annotations


def bytes_in_words(count: float) -> str:
    """Return ``count`` bytes in GB, MB or kB (powers of ten)."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} bytes"
