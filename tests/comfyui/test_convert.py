"""Between ComfyUI's data and the wire, without ComfyUI."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import save


@pytest.fixture(scope="module")
def convert(h3pack: ModuleType) -> Any:
    return importlib.import_module("h3pack.comfy_h3.convert")


class Nested:
    """Stands in for ComfyUI's NestedTensor: the two members that are read."""

    is_nested = True

    def __init__(self, *streams: torch.Tensor) -> None:
        self._streams = streams

    def unbind(self) -> tuple[torch.Tensor, ...]:
        return self._streams


def pair(frames: int = 7, audio: int = 37) -> dict[str, Any]:
    return {"samples": Nested(torch.randn(1, 24, frames, 4, 4), torch.randn(1, 32, 2, audio))}


def test_both_streams_of_a_latent_come_back_bit_equal(convert: Any) -> None:
    latent = pair()
    video, audio = convert.part_to_streams(bytearray(convert.latent_to_part(latent)))
    assert torch.equal(video, latent["samples"].unbind()[0])
    assert torch.equal(audio, latent["samples"].unbind()[1])


def test_received_tensors_share_memory_with_the_bytes(convert: Any) -> None:
    data = bytearray(convert.write_part({"x": torch.zeros(4)}))
    tensor = convert.read_part(data, name="x")["x"]
    tensor.fill_(1)
    assert data[-16:] == bytearray(torch.ones(4).numpy().tobytes())


@pytest.mark.parametrize(
    ("latent", "code", "word"),
    [
        ({"samples": torch.zeros(1, 4, 8, 8)}, "wrong_model", "two streams"),
        ({"samples": torch.zeros(1, 24, 7, 4, 4)}, "wrong_model", "two streams"),
        ({"samples": Nested(torch.zeros(2, 24, 7, 4, 4), torch.zeros(2, 32, 2, 37))}, "bad_tensor", "batch"),
    ],
)
def test_a_latent_of_another_kind_is_refused(convert: Any, latent: dict[str, Any], code: str, word: str) -> None:
    with pytest.raises(Exception, match=word) as caught:
        convert.latent_to_part(latent)
    assert caught.value.code == code
    assert caught.value.remedy


@pytest.mark.parametrize(("latents", "frames"), [(2, 5), (7, 22), (37, 124)])
def test_frames_of_a_latent_to_sample(convert: Any, latents: int, frames: int) -> None:
    assert convert.whole_frames(torch.zeros(1, 24, latents, 4, 4)) == frames


@pytest.mark.parametrize("latents", [1, 3, 6, 10])
def test_a_latent_off_the_lattice_is_not_sampled(convert: Any, latents: int) -> None:
    with pytest.raises(Exception, match="5n\\+2"):
        convert.whole_frames(torch.zeros(1, 24, latents, 4, 4))


def test_uint8_chunks_become_one_image_batch_as_they_come_and_a_repeated_one_changes_nothing(convert: Any) -> None:
    first, second = torch.full((2, 4, 4, 3), 255, dtype=torch.uint8), torch.zeros(1, 4, 4, 3, dtype=torch.uint8)
    second[0, 1, 2] = 51
    stream = convert.ImageStream()
    for index, piece in ((0, first), (1, second), (1, second)):
        last = stream.take(index, bytearray(save({"frames": piece})), total=3)
        assert torch.equal(last, piece[-1])
    images = stream.images()
    assert images.shape == (3, 4, 4, 3)
    assert images.dtype == torch.float32
    assert images[:2].min() == 1.0
    assert torch.equal(images[2], second[0] / 255)


def test_float_chunks_are_not_rounded(convert: Any) -> None:
    frames = torch.rand(2, 4, 4, 3)
    stream = convert.ImageStream()
    stream.take(0, bytearray(save({"frames": frames})), total=2)
    assert torch.equal(stream.images(), frames)


@pytest.mark.parametrize("mask", ["none", "nested", "plain"])
def test_a_latent_with_its_masks_comes_back_from_a_file_bit_equal(
    h3pack: ModuleType, tmp_path: Path, mask: str
) -> None:
    module = importlib.import_module("h3pack.comfy_h3.latent_file")
    latent = pair()
    if mask == "nested":
        latent["noise_mask"] = Nested(torch.rand(1, 1, 7, 4, 4), torch.rand(1, 1, 2, 37))
    elif mask == "plain":
        latent["noise_mask"] = torch.rand(1, 64, 64)
    path = tmp_path / "x.h3latent.safetensors"
    module.save_latent(path, latent, texts={"prompt": "{}"})
    back, facts = module.load_latent(path, nested=lambda tensors: Nested(*tensors))
    assert set(back) == set(latent)
    for name in latent:
        pairs = zip(
            *(list(x.unbind()) if isinstance(x, Nested) else [x] for x in (back[name], latent[name])), strict=True
        )
        assert all(torch.equal(one, other) for one, other in pairs)
    assert (facts["frames"], facts["fps"], facts["seconds"]) == (22, 24, 0.917)


def test_a_latent_is_saved_with_a_workflow_of_megabytes_but_without_one_that_no_reader_would_take(
    h3pack: ModuleType, tmp_path: Path
) -> None:
    module = importlib.import_module("h3pack.comfy_h3.latent_file")
    path, latent = tmp_path / "x.h3latent.safetensors", pair()
    for length, left_out in ((3_000_000, []), (17_000_000, ["workflow"])):
        texts = {"prompt": "{}", "workflow": "w" * length}
        assert module.save_latent(path, latent, texts=texts) == left_out
        back, _ = module.load_latent(path, nested=list)
        assert torch.equal(back["samples"][0], latent["samples"].unbind()[0])


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ({"frames": 20, "audio_latents": 33}, (20, 33)),
        ({"frames": 22, "audio_latents": 37}, (22, 37)),
        ({"frames": 5, "audio_latents": 8}, None),
        ({"frames": 23, "audio_latents": 8}, None),
        ({"frames": 20, "audio_latents": 38}, None),
        ({"frames": "20", "audio_latents": 33}, None),
        ({}, None),
        (None, None),
    ],
)
def test_what_of_a_latent_is_the_clips_own_is_read_where_it_can_be_and_comes_back_from_a_file(
    h3pack: ModuleType, convert: Any, tmp_path: Path, said: Any, found: tuple[int, int] | None
) -> None:
    module = importlib.import_module("h3pack.comfy_h3.latent_file")
    latent = pair() | {"h3_own_length": said}
    own = convert.own_length(latent, 22)
    assert (own and (own.frames, own.audio_latents)) == found
    path = tmp_path / "x.h3latent.safetensors"
    module.save_latent(path, latent, texts={})
    back, facts = module.load_latent(path, nested=list)
    assert convert.own_length(back, 22) == own
    assert facts.get("own_frames") == (found and found[0])


@pytest.mark.parametrize("tensors", [{"x": torch.zeros(2)}, {"video": torch.zeros(1, 24, 7, 4, 4)}, {}])
def test_a_file_without_both_streams_is_no_latent(h3pack: ModuleType, tmp_path: Path, tensors: Any) -> None:
    module = importlib.import_module("h3pack.comfy_h3.latent_file")
    path = tmp_path / "x.safetensors"
    path.write_bytes(save(tensors))
    with pytest.raises(Exception, match="holds no MiniMax-H3 latent") as caught:
        module.load_latent(path, nested=list)
    assert (caught.value.code, caught.value.field) == ("bad_tensor", "file")


def test_sound_keeps_its_rate(convert: Any) -> None:
    wave = torch.rand(1, 2, 800)
    audio = convert.piece_to_audio(bytearray(save({"audio": wave})), 32_000)
    assert audio["sample_rate"] == 32_000
    assert torch.equal(audio["waveform"], wave)
