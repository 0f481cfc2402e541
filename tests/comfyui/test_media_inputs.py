"""IMAGE, AUDIO and video files as the parts of a request, without ComfyUI."""

from __future__ import annotations

import importlib
import io
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load


@pytest.fixture(scope="module")
def media(h3pack: ModuleType) -> Any:
    return importlib.import_module("h3pack.comfy_h3.media")


def test_colours_are_rounded_to_the_nearest_and_clamped(media: Any) -> None:
    values = torch.tensor([-0.5, 0.0, 0.4 / 255, 0.6 / 255, 127.5 / 255, 254.4 / 255, 1.0, 7.0])
    frames = media.to_uint8(values.reshape(1, 1, -1, 1).expand(1, 1, -1, 3))
    assert frames.dtype == torch.uint8
    assert frames[0, 0, :, 1].tolist() == [0, 0, 0, 1, 128, 254, 255, 255]


def test_alpha_is_dropped_and_grey_repeated(media: Any) -> None:
    rgba = torch.rand(20, 2, 3, 4)
    assert torch.equal(media.to_uint8(rgba), media.to_uint8(rgba[..., :3]))
    grey = media.to_uint8(torch.full((17, 2, 3, 1), 0.2))
    assert grey.shape == (17, 2, 3, 3)
    assert grey.unique().tolist() == [51]


def test_pictures_and_a_sound_are_decoded_parts(media: Any) -> None:
    uploads = media.Uploads()
    wave = torch.rand(1, 2, 100, dtype=torch.float64)
    clip = media.Clip(torch.rand(3, 4, 4, 3), 12.5, audio={"waveform": wave, "sample_rate": 44_100})
    pictures, sound = uploads.clip("guide", clip)
    assert (pictures.part, pictures.format, pictures.fps) == ("guide", "frames", 12.5)
    assert (sound.part, sound.format, sound.sample_rate) == ("guide.audio", "audio", 44_100)
    assert load(uploads.parts["guide"])["frames"].shape == (3, 4, 4, 3)
    assert torch.equal(load(uploads.parts["guide.audio"])["waveform"], wave[0].float())


@pytest.mark.parametrize("kind", ["path", "bytes"])
def test_a_video_file_travels_as_it_is(media: Any, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "clip.mp4"
    path.write_bytes(b"any bytes")
    uploads = media.Uploads()
    file: Any = str(path) if kind == "path" else io.BytesIO(b"any bytes")
    pictures, sound = uploads.clip("source", media.Clip(file=file))
    assert (pictures.format, pictures.fps, sound) == ("file", None, None)
    assert uploads.parts == {"source": b"any bytes"}


def test_references_keep_the_order_of_their_chain(media: Any) -> None:
    wave = {"waveform": torch.rand(1, 1, 100), "sample_rate": 32_000}
    chain = (
        media.ReferenceItem("audio", media.Clip(audio=wave)),
        media.ReferenceItem("video", media.Clip(torch.rand(5, 4, 4, 3), 24.0, audio=wave), "match"),
        media.ReferenceItem("image", media.Clip(torch.rand(1, 4, 4, 3)), "max"),
    )
    uploads = media.Uploads()
    references = uploads.references(chain)
    assert [(r.kind, r.size, r.media.format, r.audio and r.audio.format) for r in references] == [
        ("audio", "native", "audio", None),
        ("video", "match", "frames", "audio"),
        ("image", "max", "frames", None),
    ]
    assert sorted(uploads.parts) == sorted(
        medium.part for r in references for medium in (r.media, r.audio) if medium is not None
    )


@pytest.mark.parametrize("shape", [(0, 4, 4, 3), (4, 4, 3), (1, 0, 4, 3)])
def test_a_picture_that_is_none_is_refused(media: Any, shape: tuple[int, ...]) -> None:
    with pytest.raises(Exception, match="no picture") as caught:
        media.check_images(torch.zeros(shape), name="first_frame")
    assert (caught.value.code, caught.value.field, caught.value.value) == (
        "bad_tensor",
        "first_frame",
        str(list(shape)),
    )


@pytest.mark.parametrize(
    ("shape", "rate"), [((1, 2, 0), 44_100), ((2, 2, 9), 44_100), ((2, 9), 44_100), ((1, 2, 9), 0)]
)
def test_a_sound_that_is_none_is_refused(media: Any, shape: tuple[int, ...], rate: int) -> None:
    with pytest.raises(Exception, match="no sound") as caught:
        media.check_audio({"waveform": torch.zeros(shape), "sample_rate": rate}, name="audio")
    assert caught.value.field == "audio"


class Video:
    """Stands in for ComfyUI's VIDEO of a file, before it could trim."""


class Trimmable(Video):
    def as_trimmed(self) -> None:
        raise NotImplementedError


class Telling(Trimmable):
    def __init__(self, *window: float) -> None:
        self._window = window

    def get_active_trim_window(self) -> tuple[float, ...]:
        return self._window


@pytest.mark.parametrize(
    ("video", "trimmed"),
    [
        (Video(), False),
        (Trimmable(), True),
        (Telling(0.0, 0.0), False),
        (Telling(1.0, 0.0), True),
        (Telling(0, 2), True),
    ],
)
def test_a_file_travels_whole_only_when_nothing_of_it_is_cut_off(media: Any, video: Video, trimmed: bool) -> None:
    assert media.may_be_trimmed(video) is trimmed
