"""Clips that a node was given in its last run, for the page to ask for small pictures of them.

A clip is known by a key that says nothing else. Pictures and sound are held weakly: they are there as long as ComfyUI's
cache holds them, and nothing here keeps gigabytes alive. The cells of a mask are small, and held. Knows nothing of
ComfyUI; raises nothing.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
import weakref
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from ..engine.contract import geometry

_T = TypeVar("_T")
_MOST = 32
_PEAKS_PER_SECOND = 40
"""Peaks of a sound, one for each of the model's latents of 25 ms."""


@dataclass(frozen=True)
class KeptClip:
    """A clip on the model's clock.

    Attributes:
        frames: pixel frames at 24 a second; 0 of a sound alone.
        width, height: of the pictures.
        peaks: of each channel, the largest magnitude of each 25 ms, 0..1; None without sound.
    """

    frames: int
    width: int
    height: int
    peaks: list[list[float]] | None
    _images: weakref.ref[torch.Tensor] | None
    _order: tuple[int, ...]
    _waveform: weakref.ref[torch.Tensor] | None = None
    _rate: int = 0

    def frame(self, number: int) -> torch.Tensor | None:
        """Return picture ``number``, [H, W, C] or of a MASK [H, W], in 0..1; after the end the last, None when gone."""
        images = self._images() if self._images is not None else None
        return None if images is None else images[self._order[min(max(number, 0), len(self._order) - 1)]]

    def sound(self) -> tuple[torch.Tensor, int] | None:
        """Return the waveform [C, N] and its rate, None without sound and when it is gone."""
        waveform = self._waveform() if self._waveform is not None else None
        return None if waveform is None else (waveform[0], self._rate)

    def made_of(self, images: torch.Tensor | None) -> bool:
        """Return whether these are its pictures."""
        return images is not None and self._images is not None and self._images() is images


_clips: OrderedDict[str, KeptClip] = OrderedDict()
_cells: OrderedDict[str, bytes] = OrderedDict()
_lock = threading.Lock()


def keep(images: torch.Tensor | None, audio: Mapping[str, Any] | None = None, *, fps: float) -> str:
    """Remember a clip and return its key; the same pictures keep theirs.

    Args:
        images: IMAGE [F, H, W, C] or MASK [F, H, W]. audio: AUDIO. fps: of the pictures.
    """
    order = () if images is None else tuple(clock_order(len(images), fps=fps))
    height, width = (0, 0) if images is None else images.shape[1:3]
    weak = None if images is None else weakref.ref(images)
    if audio is None:
        clip = KeptClip(len(order), width, height, None, weak, order)
    else:
        waveform, rate = audio["waveform"], int(audio["sample_rate"])
        clip = KeptClip(len(order), width, height, peaks_of(audio), weak, order, weakref.ref(waveform), rate)
    with _lock:
        known = (key for key, other in _clips.items() if other.made_of(images) and other.peaks == clip.peaks)
        key = next(known, None) or secrets.token_urlsafe(12)
        _remember(_clips, key, clip)
    return key


def _remember(store: OrderedDict[str, _T], key: str, value: _T) -> None:
    """Put ``value`` in ``store``, last, and let the oldest go."""
    store[key] = value
    store.move_to_end(key)
    while len(store) > _MOST:
        store.popitem(last=False)


def kept(key: str) -> KeptClip | None:
    """Return the clip of ``key``, None when it was forgotten."""
    with _lock:
        return _clips.get(key)


def keep_cells(video: npt.NDArray[np.float32], audio: npt.NDArray[np.float32]) -> str:
    """Remember a mask and return its key, the same for the same mask.

    Args:
        video: [T, h, w] in 0..1. audio: [2, A].
    """
    levels = [np.ceil(cells * 255).astype(np.uint8).tobytes() for cells in (video, audio)]
    data = b"".join(levels)
    key = hashlib.sha256(data).hexdigest()[:24]
    with _lock:
        _remember(_cells, key, data)
    return key


def kept_cells(key: str) -> bytes | None:
    """Return the bytes of a mask, 0..255, video and then audio; None when it was forgotten."""
    with _lock:
        return _cells.get(key)


def clock_order(count: int, *, fps: float, frames: int | None = None) -> list[int]:
    """Return which of ``count`` pictures at ``fps`` is shown in each frame at 24 a second.

    As the engine does it: picture i starts at frame floor(i * 24 / fps + 0.5) and is held until the next one's.

    Args:
        frames: how many frames; more than there are hold the last picture. None: as long as the clip is.
    """
    scale = geometry.FPS / fps
    total = max(1, int(count * scale + 0.5))
    order: list[int] = []
    for index in range(count):
        end = min(total, int((index + 1) * scale + 0.5))
        order += [index] * (end - len(order))
    order = order or [0]
    return order if frames is None else (order + order[-1:] * max(0, frames - len(order)))[:frames]


def peaks_of(audio: Mapping[str, Any]) -> list[list[float]]:
    """Return of each channel of an AUDIO the largest magnitude of each 25 ms, 0..1, to three digits."""
    waveform = audio["waveform"][0].detach().float().abs().cpu()  # [C, N]
    step = max(1, int(audio["sample_rate"]) // _PEAKS_PER_SECOND)
    padded = torch.nn.functional.pad(waveform, (0, -waveform.shape[1] % step))
    peaks = padded.reshape(len(waveform), -1, step).amax(2).clamp(0, 1)
    return [[round(value, 3) for value in channel] for channel in peaks.tolist()]
