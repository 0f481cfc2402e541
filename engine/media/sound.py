"""Sounds: of sound and video files and of decoded waveforms, as stereo at the model's rate.

Promise: a video's sound is read in a pass of its own, so that reading the pictures never drains it. Mono goes to both
channels; more than two are folded down by libswresample's matrix and turned down if they then exceed full scale. A
sound is cut at its own rate and resampled once, by torchaudio's ``Resample``, as diffusers does; one whose rate has too
large a filter (odd rates such as 44,099 Hz) goes through libswresample. torch is loaded only then.
Raises what PyAV and safetensors raise (use inside `media.files.reading`); `RequestError` ``bad_media`` for samples that
are no numbers, ``missing_package`` without torchaudio.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
from safetensors import safe_open

from ..contract import geometry
from ..contract.errors import RequestError
from ..contract.media import Media
from .files import bad_media, known, open_container, open_picture

Waveform = npt.NDArray[np.float32]
"""[channels, samples] in -1..1."""

_LAYOUTS = {3: "3.0", 4: "4.0", 5: "5.0", 6: "5.1", 7: "6.1", 8: "7.1"}
_LARGEST_FILTER = 2**22
"""Values of a resampling filter; 44,100 Hz needs 141,120, and making one takes some fifty bytes a value."""


@dataclass(frozen=True)
class Sound:
    """Some sound.

    Attributes:
        waveform: [1 or 2, N].
        rate: samples a second.
        promised: seconds that its file claims to last; None: it does not say.
        delay: seconds that it begins after its video's pictures; negative: before them.
    """

    waveform: Waveform
    rate: int
    promised: float | None = None
    delay: float = 0.0

    @property
    def seconds(self) -> float:
        """How long it lasts, as far as it was read."""
        return int(self.waveform.shape[1]) / self.rate


def read_sound(media: Media, path: Path, *, seconds: float, field: str) -> Sound | None:
    """Return the sound of a part; None when a file has none.

    Args:
        seconds: reading stops soon after so many.

    Raises:
        RequestError: ``bad_media``.
    """
    if media.format == "audio":
        rate = media.sample_rate or geometry.SAMPLE_RATE
        with safe_open(str(path), framework="np") as file:
            samples = file.get_slice("waveform")
            stored = samples[:, : min(samples.get_shape()[1], math.ceil(seconds * rate) + 1)]
        if stored.shape[0] not in (1, 2, *_LAYOUTS):
            raise bad_media(f"A waveform has 1 to 8 channels, not {stored.shape[0]}.", field=field)
        sound = Sound(_folded(np.ascontiguousarray(stored, dtype=np.float32), rate), rate)
    else:
        found = None if open_picture(path, field=field) is not None else _file_sound(path, seconds=seconds)
        if found is None:
            return None
        sound = found
    if not np.isfinite(sound.waveform).all():
        raise bad_media("The sound holds samples that are not numbers.", field=field)
    return sound if sound.waveform.shape[1] else None


def _file_sound(path: Path, *, seconds: float) -> Sound | None:
    with open_container(path) as container:
        if not container.streams.audio:
            return None
        stream = known(container.streams.audio[0])
        rate = int(stream.codec_context.sample_rate)
        pieces: list[Waveform] = []
        first = None
        samples = 0
        for frame, piece in _pieces(container, stream, rate):
            if first is None and frame is not None and frame.pts is not None:
                first = float(frame.pts * frame.time_base)
            pieces.append(piece)
            samples += piece.shape[1]
            if samples > seconds * rate:
                break
        length = None if container.duration is None else container.duration / av.time_base
        delay = 0.0 if first is None else first - _video_start(container)
    if not pieces:
        return None
    waveform = np.concatenate(pieces, axis=1)
    return Sound(_quieted(waveform) if stream.channels > geometry.AUDIO_CHANNELS else waveform, rate, length, delay)


def _pieces(container: Any, stream: Any, rate: int) -> Iterator[tuple[Any, Waveform]]:
    """Yield each decoded frame with its samples [1 or 2, n]; None with what the resampler held back."""
    layout = stream.layout if stream.channels <= geometry.AUDIO_CHANNELS else "stereo"
    resampler = av.AudioResampler(format="fltp", layout=layout, rate=rate)
    for frame in container.decode(stream):
        for made in resampler.resample(frame):
            yield frame, made.to_ndarray()
    for made in resampler.resample(None):
        yield None, made.to_ndarray()


def _video_start(container: Any) -> float:
    """Return the container's time of the first picture; 0 without pictures."""
    for stream in container.streams.video:
        if stream.start_time is not None:
            return float(stream.start_time * stream.time_base)
    return 0.0


def _folded(waveform: Waveform, rate: int) -> Waveform:
    """Return a waveform [C, N] of any number of channels as [1 or 2, N]."""
    channels = waveform.shape[0]
    if channels <= geometry.AUDIO_CHANNELS:
        return waveform
    frame = av.AudioFrame.from_ndarray(waveform, format="fltp", layout=_LAYOUTS[channels])
    frame.sample_rate = rate
    resampler = av.AudioResampler(format="fltp", layout="stereo", rate=rate)
    made = [*resampler.resample(frame), *resampler.resample(None)]
    return _quieted(np.concatenate([piece.to_ndarray() for piece in made], axis=1))


def _quieted(waveform: Waveform) -> Waveform:
    """Return what was folded down, turned down as a whole if it exceeds full scale."""
    peak = float(np.abs(waveform).max(initial=0.0))
    return waveform / np.float32(peak) if peak > 1 else waveform


def aligned(sound: Sound) -> Sound:
    """Return a video's sound moved to its pictures: silence put before it, or its start cut away.

    Shifts below one picture are coders' delays and stay.
    """
    shift = round(sound.delay * sound.rate)
    if abs(sound.delay) * geometry.FPS < 1:
        return sound
    moved = sound.waveform[:, -shift:] if shift < 0 else np.pad(sound.waveform, ((0, 0), (shift, 0)))
    return dataclasses.replace(sound, waveform=moved, delay=0.0)


def to_model(sound: Sound, *, seconds: float | Fraction, rate: int, field: str) -> Waveform:
    """Return the first ``seconds`` of a sound as [2, N] at ``rate`` Hz.

    Raises:
        RequestError: ``missing_package`` when it has to be resampled and torchaudio cannot be loaded.
    """
    waveform = sound.waveform[:, : int(seconds * sound.rate)]
    if waveform.shape[0] != geometry.AUDIO_CHANNELS:
        waveform = np.repeat(waveform, geometry.AUDIO_CHANNELS, axis=0)
    if sound.rate == rate or not waveform.shape[1]:
        return np.ascontiguousarray(waveform)
    common = math.gcd(sound.rate, rate)
    if (sound.rate // common) * (rate // common) > _LARGEST_FILTER:
        return _swresampled(waveform, sound.rate, rate)
    return _resampled(waveform, sound.rate, rate, field=field)


def _resampled(waveform: Waveform, own: int, rate: int, *, field: str) -> Waveform:
    try:
        import torch
        import torchaudio
    except (ImportError, OSError) as error:
        raise RequestError(
            "missing_package",
            f"Sound at {own} Hz is resampled to {rate} Hz by torchaudio, which the engine cannot load: {error}.",
            field=field,
            value=own,
            remedy="Install torchaudio beside the engine's torch, of the same release, or send the sound at "
            f"{rate} Hz.",
        ) from error
    resample = torchaudio.transforms.Resample(own, rate)
    made: Waveform = resample(torch.from_numpy(np.ascontiguousarray(waveform))).numpy()
    return made


def _swresampled(waveform: Waveform, own: int, rate: int) -> Waveform:
    frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(waveform), format="fltp", layout="stereo")
    frame.sample_rate = own
    resampler = av.AudioResampler(format="fltp", layout="stereo", rate=rate)
    made = [*resampler.resample(frame), *resampler.resample(None)]
    return np.concatenate([piece.to_ndarray() for piece in made], axis=1)


def fitted(waveform: Waveform, samples: int) -> Waveform:
    """Return a waveform [2, N] cut to ``samples``, or followed by silence up to there."""
    return np.pad(waveform[:, :samples], ((0, 0), (0, max(0, samples - waveform.shape[1]))))
