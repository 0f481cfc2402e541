"""Pictures, clips and sounds that tests make for themselves, small, and jobs for the process that reads them."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
from PIL import Image
from safetensors.numpy import load_file, save_file

from engine.contract.limits import Limits, ModelFacts
from engine.media import prepare as media

TINY = ModelFacts(canvas_short_edge=64, canvas_max_pixels=64 * 128, reference_short_edge=96)
"""Facts of a small model, so that prepared media stay small."""


def noise(height: int, width: int, *, frames: int | None = None, seed: int = 0) -> npt.NDArray[np.uint8]:
    """Return a random picture [H, W, 3], or ``frames`` of them [F, H, W, 3]."""
    shape = (height, width, 3) if frames is None else (frames, height, width, 3)
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def gradient(height: int, width: int) -> npt.NDArray[np.uint8]:
    """Return a smooth picture [H, W, 3] that is different in each corner."""
    across = np.linspace(0, 255, width)[None, :].repeat(height, 0)
    down = np.linspace(0, 255, height)[:, None].repeat(width, 1)
    return np.stack([across, down, 255 - across], axis=-1).astype(np.uint8)


def encoded(pixels: npt.NDArray[Any], kind: str = "PNG", *, mode: str | None = None, **options: Any) -> bytes:
    """Return a picture [H, W] or [H, W, C] as a file."""
    image = Image.fromarray(pixels)
    stream = io.BytesIO()
    (image.convert(mode) if mode else image).save(stream, kind, **options)
    return stream.getvalue()


def tone(seconds: float, rate: int, channels: int = 1) -> npt.NDArray[np.float32]:
    """Return a sine [C, N], each channel of its own pitch."""
    time = np.arange(round(seconds * rate)) / rate
    return np.stack([0.5 * np.sin(2 * np.pi * 220 * (k + 1) * time) for k in range(channels)]).astype(np.float32)


def write_clip(
    path: Path,
    frames: Iterable[npt.NDArray[np.uint8]],
    *,
    rate: Fraction | int = 24,
    codec: str = "libx264",
    pix_fmt: str = "yuv420p",
    times: Sequence[float] | None = None,
    sound: npt.NDArray[np.float32] | None = None,
    sound_rate: int = 32_000,
    sound_codec: str = "aac",
    rotation: int = 0,
    options: dict[str, str] | None = None,
    container: dict[str, str] | None = None,
) -> Path:
    """Write pictures [H, W, 3], at ``rate`` or at ``times`` (seconds), and a sound [C, N] to a container."""
    base = Fraction(1, 1000) if times is not None else Fraction(1) / Fraction(rate)
    with av.open(str(path), "w", options=container or {}) as output:
        video: Any = None
        pictures = list(frames)
        if pictures:
            video = output.add_stream(codec, rate=rate, options=options or {})
            video.height, video.width = pictures[0].shape[:2]
            video.pix_fmt = pix_fmt
            video.time_base = video.codec_context.time_base = base
            if rotation:
                video.set_display_rotation(rotation)
        audio: Any = None
        if sound is not None:
            layout = {1: "mono", 2: "stereo", 6: "5.1"}[sound.shape[0]]
            audio = output.add_stream(sound_codec, rate=sound_rate, layout=layout)
        for index, picture in enumerate(pictures):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts = round(times[index] * 1000) if times is not None else index
            frame.time_base = base
            output.mux(video.encode(frame))
        if video is not None:
            output.mux(video.encode(None))
        if audio is not None and sound is not None:
            _write_sound(output, audio, sound, sound_rate)
    return path


def _write_sound(output: Any, stream: Any, sound: npt.NDArray[np.float32], rate: int) -> None:
    layout = {1: "mono", 2: "stereo", 6: "5.1"}[sound.shape[0]]
    wanted = stream.codec_context.format.name
    resampler = av.AudioResampler(format=wanted, layout=layout, rate=rate, frame_size=stream.frame_size or 1024)
    frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(sound), format="fltp", layout=layout)
    frame.sample_rate, frame.pts, frame.time_base = rate, 0, Fraction(1, rate)
    for piece in [*resampler.resample(frame), *resampler.resample(None)]:
        output.mux(stream.encode(piece))
    output.mux(stream.encode(None))


def write_sound(path: Path, sound: npt.NDArray[np.float32], rate: int, codec: str = "pcm_f32le") -> Path:
    """Write a sound [C, N] to a file."""
    return write_clip(path, [], sound=sound, sound_rate=rate, sound_codec=codec)


class MediaRun:
    """One run of the job's function in this process.

    Attributes:
        result: what it would write. parts: prepared part → its tensors.
    """

    def __init__(
        self,
        folder: Path,
        request: dict[str, Any],
        parts: dict[str, Any],
        *,
        facts: ModelFacts = TINY,
        limits: Limits | None = None,
    ) -> None:
        """Run ``request`` on ``parts``: a file's path or bytes, or tensors that become safetensors."""
        out = folder / "out"
        out.mkdir(exist_ok=True)
        files = {name: _as_file(folder / f"{name}.part", value) for name, value in parts.items()}
        self.job = {
            "request": request,
            "parts": {name: str(path) for name, path in files.items()},
            "facts": asdict(facts),
            "limits": asdict(limits or Limits()),
            "out": str(out),
            "result": str(folder / "result.json"),
        }
        self.result = media.run(self.job)

    @property
    def error(self) -> dict[str, Any]:
        """The error that it ended in."""
        found: dict[str, Any] = self.result["error"]
        return found

    @property
    def facts(self) -> dict[str, Any]:
        """The facts."""
        assert "error" not in self.result, self.result
        found: dict[str, Any] = self.result["facts"]
        return found

    @property
    def warnings(self) -> list[str]:
        """The warnings' codes."""
        return [warning["code"] for warning in self.result["warnings"]]

    def part(self, name: str) -> dict[str, npt.NDArray[Any]]:
        """Return the tensors of a prepared part."""
        assert "error" not in self.result, self.result
        return load_file(self.result["parts"][name])


def _as_file(path: Path, value: Any) -> Path:
    if isinstance(value, Path):
        return value
    if isinstance(value, bytes):
        path.write_bytes(value)
    else:
        save_file(value, path)
    return path


def keyframes_request(*keyframes: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return a request to encode a prompt with keyframes."""
    return {"task": "encode_prompt", "prompt": "x", "frames": 22, "keyframes": list(keyframes), **fields}


def references_request(*references: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return a request to encode a prompt with references."""
    made = {"task": "encode_prompt", "prompt": "x", "frames": 124, "width": 128, "height": 64}
    return {**made, "references": list(references), **fields}


def guides_request(*guides: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return a request to encode guides."""
    made = {"task": "encode_media", "frames": 124, "width": 128, "height": 64}
    return {**made, "guides": list(guides), **fields}


def source_request(**fields: Any) -> dict[str, Any]:
    """Return a request to encode a source of the part ``a``."""
    return {"task": "encode_media", "source": {"media": {"part": "a"}}, **fields}
