"""Parts between a connection and the disk: bytes go straight to files, hashed on the way, never whole in memory.

Blocking functions, to be called from a thread. `PartWriter` raises `RequestError` for slices that are out of order, too
long or do not hash to what was announced; an `OSError` of the disk passes through. `told_full` is what users are told
of one that says that there is no room.
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from .contract import framing
from .contract.errors import JobError, RequestError
from .contract.messages import Part

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def told_full(error: Exception, folder: Path) -> JobError | None:
    """Return ``disk_full`` when ``error`` says that ``folder`` has no room for a file; None when it says another thing.

    Args:
        error: an `OSError`, or one of safetensors', which has its number in the text alone.
    """
    if getattr(error, "errno", None) not in _FULL and not any(f"(os error {code})" in str(error) for code in _FULL):
        return None
    return JobError(
        "disk_full",
        f"There is no room for what was made in {folder}: {error}",
        field="run_dir",
        value=str(folder),
        remedy="Give --run-dir a larger folder, ask for a smaller video, or make room: DELETE /v1/jobs/{id} removes a "
        "job's results, --cache-mb says how much is kept.",
    )


def hash_file(path: Path) -> tuple[int, str]:
    """Return (bytes, sha256 in hexadecimal) of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256") if hasattr(hashlib, "file_digest") else _digest(file)
        return file.tell(), digest.hexdigest()


def _digest(file: BinaryIO) -> Any:
    digest = hashlib.sha256()
    while block := file.read(framing.MAX_SLICE):
        digest.update(block)
    return digest


def hash_files(files: Mapping[str, Path]) -> dict[str, str]:
    """Return the sha256 of each of ``files``."""
    return {name: hash_file(path)[1] for name, path in files.items()}


def describe_part(name: str, path: Path) -> Part:
    """Return the announcement of the file at ``path`` as the part ``name``."""
    size, sha256 = hash_file(path)
    return Part(name, size, sha256)


def read_slice(file: BinaryIO, *, message: int, part: int, start: int, end: int) -> bytes:
    """Return the binary frame that carries bytes ``start`` to ``end`` of ``file``.

    Raises:
        OSError: when the file is shorter than that.
    """
    file.seek(start)
    payload = file.read(end - start)
    if len(payload) != end - start:
        raise OSError(f"{file.name} was cut at {start + len(payload)} bytes")
    return framing.pack_slice(message, part, start, payload)


class PartWriter:
    """One announced part on its way to ``path``."""

    def __init__(self, part: Part, path: Path, *, field: str) -> None:
        """Write to ``path``, which does not exist yet; ``field`` names the part in errors."""
        self.part = part
        self.path = path
        self._field = field
        self._hash = hashlib.sha256()
        self._length = 0

    @property
    def complete(self) -> bool:
        """Whether all announced bytes are there."""
        return self._length == self.part.bytes

    def write(self, offset: int, payload: memoryview) -> None:
        """Append the slice at ``offset``.

        Raises:
            RequestError: ``bad_tensor`` when the slice is out of order or longer than announced.
        """
        if offset != self._length or offset + len(payload) > self.part.bytes:
            raise RequestError(
                "bad_tensor",
                f"A slice of {len(payload)} bytes at {offset} cannot follow {self._length} of {self.part.bytes}.",
                field=self._field,
                value=offset,
                remedy="Send the slices of a part once, in order, and not more than announced.",
            )
        # Opened for each slice: parts that wait for theirs hold no file descriptor.
        with self.path.open("ab") as file:
            file.write(payload)
        self._hash.update(payload)
        self._length += len(payload)

    def finish(self) -> None:
        """Compare the hash of what was written.

        Raises:
            RequestError: ``bad_checksum``.
        """
        digest = self._hash.hexdigest()
        if digest != self.part.sha256.lower():
            raise RequestError(
                "bad_checksum",
                "The bytes of the part do not match its sha256.",
                field=self._field,
                value=digest,
                remedy="Send the part again; hash exactly the bytes that are sent.",
            )
