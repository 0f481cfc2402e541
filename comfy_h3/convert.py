"""Between ComfyUI's data and the wire: LATENT to and from safetensors bytes, IMAGE and AUDIO from them.

Received bytes become tensors without a copy. What a graph may bring is checked here as far as it can be without the
model: structure and dimensions; channels and widths are the engine's business. Knows nothing of ComfyUI's modules.

Raises `RequestError` naming the node's input.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from safetensors.torch import save

from ..engine.contract.errors import RequestError
from ..engine.contract.extend import OwnLength
from ..engine.contract.framing import TensorInfo, read_header
from ..engine.contract.geometry import LATENTS_PER_CHUNK, frames_of_latents
from ..engine.contract.latent_file import OWN_FACTS

_DTYPES = {
    "U8": torch.uint8,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
}
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_OWN = "h3_own_length"
"""Key of a LATENT: what of it is the clip's own, the fields of an `OwnLength`. Other nodes pass it on or drop it."""


def write_part(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """Return ``tensors`` as safetensors bytes."""
    data: bytes = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    return data


def part_header(data: bytes | bytearray, *, name: str) -> dict[str, TensorInfo]:
    """Return what is in safetensors bytes: tensor name → type, shape and place.

    Raises:
        RequestError: ``bad_tensor`` when the bytes are not what they say.
    """
    length = 8 + int.from_bytes(data[:8], "little")
    return read_header(io.BytesIO(bytes(data[:length])), len(data), field=name)


def read_part(data: bytearray, *, name: str) -> dict[str, torch.Tensor]:
    """Return the tensors in safetensors bytes; they share memory with ``data``.

    Raises:
        RequestError: ``bad_tensor`` when the bytes are not what they say.
    """
    length = 8 + int.from_bytes(data[:8], "little")
    header = part_header(data, name=name)
    tensors = {}
    for info in header.values():
        dtype = _DTYPES[info.dtype]
        count = (info.end - info.start) // dtype.itemsize
        flat = torch.frombuffer(data, dtype=dtype, count=count, offset=length + info.start)
        tensors[info.name] = flat.reshape(info.shape)
    return tensors


def latent_streams(latent: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return video [1, C, T, h, w] and audio [1, Ca, 2, A] of a LATENT.

    Raises:
        RequestError: ``wrong_model`` when it is not a pair of streams, ``bad_tensor`` for a batch.
    """
    samples = latent["samples"]
    streams = list(samples.unbind()) if getattr(samples, "is_nested", False) else [samples]
    shown = " and ".join(str(list(stream.shape)) for stream in streams)
    if len(streams) != 2 or streams[0].dim() != 5 or streams[1].dim() != 4:
        raise RequestError(
            "wrong_model",
            "A MiniMax-H3 latent holds two streams, video [1, 24, T, H/16, W/16] and sound [1, 32, 2, A].",
            field="latent",
            value=shown,
            remedy="Connect H3EngineEmptyLatent, H3EngineSampler or a MiniMax-H3 latent of ComfyUI.",
        )
    if streams[0].shape[0] != 1 or streams[1].shape[0] != 1:
        raise bad_tensor("latent", shown, "The batch of a MiniMax-H3 latent is 1.", "Use one latent for each run.")
    return streams[0], streams[1]


def latent_to_part(latent: Mapping[str, Any]) -> bytes:
    """Return a LATENT as the part ``latents``: video [1, C, T, h, w] and audio [1, Ca, 2, A].

    Raises:
        RequestError: as `latent_streams`.
    """
    video, audio = map(as_float, latent_streams(latent))
    return write_part({"video": video, "audio": audio})


def with_own_length(latent: Mapping[str, Any], own: OwnLength | None) -> dict[str, Any]:
    """Return a LATENT that says what of it is the clip's own; with None, one that does not."""
    kept = {key: value for key, value in latent.items() if key != _OWN}
    return kept if own is None else {**kept, _OWN: asdict(own)}


def own_length(latent: Mapping[str, Any], frames: int) -> OwnLength | None:
    """Return what of a LATENT of ``frames`` pixel frames is the clip's own; None: it does not say, or cannot be."""
    return _own_length(latent.get(_OWN) or {}, ("frames", "audio_latents"), frames)


def told_own_length(facts: Mapping[str, Any], frames: int) -> OwnLength | None:
    """Return the same from the facts of a job, or of a file."""
    return _own_length(facts, OWN_FACTS, frames)


def _own_length(facts: Mapping[str, Any], names: tuple[str, str], frames: int) -> OwnLength | None:
    found, latents = (facts.get(name) for name in names)
    if not isinstance(found, int) or not isinstance(latents, int):
        return None
    own = OwnLength(found, latents)
    return own if own.fits(frames) else None


def part_to_streams(data: bytearray) -> tuple[torch.Tensor, torch.Tensor]:
    """Return video [1, C, T, h, w] and audio [1, Ca, 2, A] of the part ``latents``."""
    tensors = read_part(data, name="latents")
    return tensors["video"], tensors["audio"]


def whole_frames(video: torch.Tensor) -> int:
    """Return the pixel frames that a latent to be sampled, video [1, C, T, h, w], stands for.

    Raises:
        RequestError: ``bad_tensor`` when T is not 5n+2.
    """
    latents = video.shape[2]
    if latents < 2 or latents % LATENTS_PER_CHUNK != 2:
        raise bad_tensor(
            "latent", latents, "A video has 5n+2 latent frames (2, 7, 12, ...).", "Connect H3EngineEmptyLatent."
        )
    return frames_of_latents(latents)


class ImageStream:
    """The pictures of one video, put together while its chunks arrive."""

    def __init__(self) -> None:
        self._images: torch.Tensor | None = None
        self._ends = {-1: 0}

    def take(self, index: int, piece: bytearray, *, total: int) -> torch.Tensor:
        """Put chunk ``index`` (uint8, or float32 in 0..1) in its place; chunks come in order, a repeated one is let be.

        Args:
            total: pictures of the whole video.

        Returns:
            the chunk's last picture [H, W, 3], as it came.
        """
        chunk = _only(piece, "frames")
        if self._images is None:
            self._images = torch.empty((total, *chunk.shape[1:]))
        start = self._ends[index - 1]
        self._ends[index] = start + len(chunk)
        target = self._images[start : start + len(chunk)]
        target.copy_(chunk)
        if chunk.dtype == torch.uint8:
            target.div_(255)
        return chunk[-1]

    def images(self) -> torch.Tensor:
        """Return IMAGE: float32 [F, H, W, 3] in 0..1."""
        assert self._images is not None
        return self._images


def piece_to_preview(piece: bytearray) -> torch.Tensor:
    """Return the piece of ``preview``: uint8 [h, w, 3]."""
    return _only(piece, "preview")


def piece_to_audio(piece: bytearray, sample_rate: int) -> dict[str, Any]:
    """Return the piece of ``audio`` as AUDIO: waveform float32 [1, 2, N] and its rate in Hz."""
    return {"waveform": _only(piece, "audio"), "sample_rate": sample_rate}


def _only(piece: bytearray, name: str) -> torch.Tensor:
    (tensor,) = read_part(piece, name=name).values()
    return tensor


def as_float(tensor: torch.Tensor) -> torch.Tensor:
    """Return ``tensor`` in a type that the wire takes: its own, or float32."""
    return tensor if tensor.dtype in _FLOATS else tensor.float()


def bad_tensor(field: str, value: object, message: str, remedy: str) -> RequestError:
    """Return the error for a tensor that cannot be what it is connected as."""
    return RequestError("bad_tensor", message, field=field, value=value, remedy=remedy)
