"""The program that writes one MP4 (``python -m engine.mux_process PATH``), a child of the server.

JSON lines on stdin name files of the run folder: ``{"audio": path}`` [2, N] fp32 first, when there is sound, then
``{"frames": path}`` [f, H, W, 3] uint8, one chunk after the other, then ``{"finish": true}``. Each file is removed once
it is in the video, and then told on stdout: ``{"taken": "frames"}``; at the end ``{"done": true}``, or
``{"error": {...}}``. The end of stdin without ``finish`` removes the video: nobody waits for it any more.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy.typing as npt
from safetensors.numpy import load_file

from .contract.errors import EngineError
from .mux import Mp4Writer


def _pieces() -> Iterator[tuple[str, Any]]:
    for line in sys.stdin:
        yield from json.loads(line).items()


def _tell(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def _take(path: Path, name: str) -> npt.NDArray[Any]:
    """Return the one tensor of a file and remove the file."""
    tensor: npt.NDArray[Any] = load_file(path)[name]
    path.unlink()
    return tensor


def write(target: Path, pieces: Iterator[tuple[str, Any]]) -> bool:
    """Write ``target`` from ``pieces`` (name, path); return whether it was finished.

    Raises:
        JobError: it could not be written; nothing is left then.
    """
    sound: npt.NDArray[Any] | None = None
    writer: Mp4Writer | None = None
    for name, value in pieces:
        if name == "finish":
            assert writer is not None
            writer.close()
            return True
        piece = _take(Path(value), name)
        if name == "audio":
            sound = piece
            continue
        if writer is None:
            _, height, width, _ = piece.shape
            writer = Mp4Writer(target, width=width, height=height, audio=sound)
        writer.add(piece)
        _tell({"taken": name})
    if writer is not None:
        writer.abort()
    return False


def main() -> int:
    """Write the MP4 named on the command line; return the exit status."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="[mux] %(levelname)s %(name)s: %(message)s")
    try:
        done = write(Path(sys.argv[1]), _pieces())
    except EngineError as error:
        _tell({"error": error.to_dict()})
        return 0
    if done:
        _tell({"done": True})
    return 0


if __name__ == "__main__":
    sys.exit(main())
