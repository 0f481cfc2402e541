"""Results of stages that were made before, as files: bounded, least recently used out.

A result is filed under a key that says everything it was made from (`cache_keys`), so that it never goes stale; what it
was made with, the loaded weights, is in the key too. Entries last no longer than the process. Files are hard links, so
that keeping a result costs no copy, and one that is read while it is thrown out stays readable to who linked it.

Lives on the server's event loop. Raises nothing: what cannot be linked is not kept, or not found.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .contract.messages import Output, Warned

logger = logging.getLogger(__name__)

_SHARE_OF_ONE = 4
"""One result takes a quarter of the cache at most, so that a long video does not throw out everything else."""
_SHARE_OF_FOLDER = 4
"""The cache takes a quarter of its folder's room at most: jobs need the rest."""


@dataclass(frozen=True)
class Piece:
    """One output of a result: how it is announced, its part included, and its file."""

    output: Output
    file: Path


@dataclass(frozen=True)
class Entry:
    """A result.

    Attributes:
        pieces: in the order that they were given.
        facts: counts of the result, as the ranks told them.
        warnings: what they told the user.
    """

    pieces: tuple[Piece, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[Warned, ...] = ()

    @property
    def bytes(self) -> int:
        """Bytes of all pieces."""
        return sum(part.bytes for piece in self.pieces for part in piece.output.parts)


class ResultCache:
    """Entries by key, the least recently used first.

    Attributes:
        bytes: of all entries.
    """

    def __init__(self, folder: Path, *, capacity: int, free_bytes: Callable[[], int]) -> None:
        """Keep files in ``folder``, ``capacity`` bytes at most; ``free_bytes`` says what else it has room for."""
        self.bytes = 0
        self._folder = folder
        self._capacity = capacity
        self._free_bytes = free_bytes
        self._entries: OrderedDict[str, Entry] = OrderedDict()
        self._names = itertools.count()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def take(self, key: str, folder: Path) -> Entry | None:
        """Return the entry of ``key``, its files linked into ``folder`` and the caller's; None when there is none."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return self._linked(entry, folder)

    def add(self, key: str, entry: Entry) -> None:
        """Keep links to the files of ``entry``, if it is small enough; an entry that is there stays as it is."""
        room = min(self._capacity, (self.bytes + self._free_bytes()) // _SHARE_OF_FOLDER)
        if key in self._entries or not entry.pieces or entry.bytes > room // _SHARE_OF_ONE:
            return
        while self.bytes + entry.bytes > room:
            self._drop(next(iter(self._entries)))
        kept = self._linked(entry, self._folder)
        if kept is not None:
            self._entries[key] = kept
            self.bytes += kept.bytes

    def clear(self) -> None:
        """Forget everything."""
        for key in list(self._entries):
            self._drop(key)

    def _drop(self, key: str) -> None:
        entry = self._entries.pop(key)
        self.bytes -= entry.bytes
        _unlink(piece.file for piece in entry.pieces)

    def _linked(self, entry: Entry, folder: Path) -> Entry | None:
        made: list[Piece] = []
        try:
            for piece in entry.pieces:
                link = folder / f"cached-{next(self._names)}"
                os.link(piece.file, link)
                made.append(replace(piece, file=link))
        except OSError as error:
            logger.info("a result could not be linked into %s: %s", folder, error)
            _unlink(piece.file for piece in made)
            return None
        return replace(entry, pieces=tuple(made))


def _unlink(files: Iterable[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)
