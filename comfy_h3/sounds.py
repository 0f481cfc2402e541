"""A clip's sound as a WAV of 16 bits, for the page to play beside its pictures.

One or two channels, at most as many samples as three minutes of 48 kHz have, so that an answer is bounded whatever the
clip is. Knows nothing of ComfyUI.
"""

from __future__ import annotations

import io
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import torch

from .file_clips import UnreadableClip

RATE = 48_000
"""Hz of a file's sound."""
_MOST_SAMPLES = RATE * 180
_CHANNELS = 2

Samples = npt.NDArray[np.int16]


def wav_of(waveform: torch.Tensor, rate: int) -> bytes:
    """Return a WAV of a waveform [C, N] in -1..1; more than two channels are cut to the first two."""
    heard = waveform[:_CHANNELS, :_MOST_SAMPLES].detach().float().cpu().clamp(-1, 1)
    return _wav((heard.T * 32767).round().to(torch.int16).contiguous().numpy(), rate)


def wav_of_file(path: Path) -> bytes:
    """Return a WAV of a file's sound.

    Raises:
        UnreadableClip: when it has none that can be decoded.
    """
    pieces: list[Samples] = []
    left = _MOST_SAMPLES
    try:
        with av.open(str(path)) as container:
            for piece in _resampled(container):
                pieces.append(piece[:left])
                left -= len(pieces[-1])
                if left <= 0:
                    break
    except (av.error.FFmpegError, OSError, IndexError) as error:
        raise UnreadableClip(str(error)) from error
    if not pieces:
        raise UnreadableClip("it has no sound")
    return _wav(np.concatenate(pieces), RATE)


def _resampled(container: Any) -> Iterator[Samples]:
    """Yield the sound [n, 2] of a container, in pieces."""
    resampler = av.AudioResampler(format="s16", layout="stereo", rate=RATE)
    for frame in container.decode(audio=0):
        for piece in resampler.resample(frame):
            yield piece.to_ndarray().reshape(-1, _CHANNELS)
    for piece in resampler.resample(None):
        yield piece.to_ndarray().reshape(-1, _CHANNELS)


def _wav(samples: Samples, rate: int) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(samples.shape[1])
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples.tobytes())
    return buffer.getvalue()
