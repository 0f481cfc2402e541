"""A prepared part, written while its pictures come: safetensors with ``frames`` and ``waveform``.

Promise: one picture in memory at a time. The header has a fixed size, so it is written last, when the length is known.
Raises `JobError` ``job_failed`` when the disk refuses.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..contract.errors import JobError
from .clock import Pixels

_DATA_START = 512
"""Bytes of the header with its length in front; spaces fill it."""


class PreparedPart:
    """One part's file.

    Attributes:
        frames: pictures so far. width, height: of each, pixels; 0 before the first.
    """

    def __init__(self, path: Path) -> None:
        """Write to ``path``."""
        self.path = path
        self.frames = self.width = self.height = 0
        with _disk():
            self._file = path.open("wb")
            self._file.seek(_DATA_START)

    def add(self, pixels: Pixels, count: int = 1) -> None:
        """Append a picture [H, W, 3] ``count`` times; all pictures have one size."""
        self.height, self.width = pixels.shape[:2]
        data = np.ascontiguousarray(pixels).data
        with _disk():
            for _ in range(count):
                self._file.write(data)
        self.frames += count

    def finish(self, waveform: npt.NDArray[np.float32] | None = None, *, frames: int | None = None) -> None:
        """Close the file, with the sound [2, N] if there is one.

        Args:
            frames: how many of the pictures are kept; None: all.
        """
        self.frames = self.frames if frames is None else frames
        size = self.frames * self.height * self.width * 3
        assert size % 4 == 0, "a waveform after odd sizes would not be aligned"
        header: dict[str, object] = {}
        if self.frames:
            shape = [self.frames, self.height, self.width, 3]
            header["frames"] = {"dtype": "U8", "shape": shape, "data_offsets": [0, size]}
        if waveform is not None:
            end = size + waveform.nbytes
            header["waveform"] = {"dtype": "F32", "shape": list(waveform.shape), "data_offsets": [size, end]}
        text = json.dumps(header).encode().ljust(_DATA_START - 8)
        with _disk(), self._file as file:
            file.truncate(_DATA_START + size)
            file.seek(_DATA_START + size)
            if waveform is not None:
                file.write(np.ascontiguousarray(waveform, dtype="<f4").data)
            file.seek(0)
            file.write(len(text).to_bytes(8, "little") + text)


@contextmanager
def _disk() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise JobError(
            "job_failed",
            f"Prepared media could not be written: {error.strerror}.",
            field="media",
            remedy="Check the free space of the engine's run folder.",
        ) from error
