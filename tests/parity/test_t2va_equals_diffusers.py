"""One rank in fp32 gives diffusers' t2va bit for bit, and the weights are cast as diffusers casts them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKLMiniMaxH3, AutoencoderKLMiniMaxH3Audio, MiniMaxH3Transformer3DModel
from transformers import Qwen3VLForConditionalGeneration

from engine.models.bundle import Models
from engine.stages.decode_video import to_uint8
from tests.support import stages
from tests.support.oracle import Reference, run_t2va

pytestmark = pytest.mark.usefixtures("one_thread")

REQUEST: dict[str, Any] = {
    "prompt": "A paper boat in the rain, at night; <three> bells.",
    "width": 96,
    "height": 64,
    "frames": 39,
    "steps": 3,
    "seed": 7,
}
CLASSES: dict[str, Any] = {
    "transformer": MiniMaxH3Transformer3DModel,
    "vae": AutoencoderKLMiniMaxH3,
    "audio_vae": AutoencoderKLMiniMaxH3Audio,
}


@pytest.fixture(scope="module")
def reference(tiny_checkpoint: Path) -> Reference:
    return run_t2va(tiny_checkpoint, [REQUEST])[0]


@pytest.fixture(scope="module")
def models(tiny_checkpoint: Path) -> Models:
    return stages.load(tiny_checkpoint)


@pytest.fixture(scope="module")
def result(models: Models) -> stages.Result:
    return stages.run_t2va(models, **REQUEST)


def test_prompt_embeds_are_equal(result: stages.Result, reference: Reference) -> None:
    assert torch.equal(result.embeds.prompt_embeds, reference.prompt_embeds)


def test_video_latents_are_equal(result: stages.Result, reference: Reference) -> None:
    assert torch.equal(result.latents.video, reference.video_latents)


def test_audio_latents_are_equal(result: stages.Result, reference: Reference) -> None:
    assert torch.equal(result.latents.audio[0].permute(1, 0, 2), reference.audio_latents)


def test_pictures_are_equal_before_and_after_rounding(result: stages.Result, reference: Reference) -> None:
    assert torch.equal(result.frames, reference.frames)
    assert torch.equal(to_uint8(result.frames), reference.frames_uint8)


def test_sound_is_equal(result: stages.Result, reference: Reference) -> None:
    assert torch.equal(result.audio, reference.audio)


def test_a_run_repeated_on_the_same_models_is_equal(models: Models, result: stages.Result) -> None:
    stages.run_t2va(models, **{**REQUEST, "prompt": "Something else in between", "frames": 22})
    again = stages.run_t2va(models, **REQUEST)
    assert torch.equal(again.latents.video, result.latents.video)
    assert torch.equal(again.audio, result.audio)


@pytest.mark.parametrize("change", [{"seed": 8}, {"prompt": "A paper plane in the sun, at noon; <three> bells."}])
def test_another_seed_or_prompt_is_seen(models: Models, result: stages.Result, change: dict[str, Any]) -> None:
    other = stages.run_t2va(models, **{**REQUEST, **change})
    assert (other.latents.video - result.latents.video).abs().max() > 1e-2
    assert (other.latents.audio - result.latents.audio).abs().max() > 1e-2
    assert (other.frames - result.frames).abs().max() > 1e-2
    assert (other.audio - result.audio).abs().max() > 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_and_buffers_are_cast_as_diffusers_casts_them(tiny_checkpoint: Path, dtype: torch.dtype) -> None:
    models = stages.load(tiny_checkpoint, dtype=dtype)
    for name, cls in CLASSES.items():
        ours, theirs = getattr(models, name), cls.from_pretrained(tiny_checkpoint / name, torch_dtype=dtype)
        _assert_same(dict(ours.named_parameters()), dict(theirs.named_parameters()))
        _assert_same(dict(ours.named_buffers()), dict(theirs.named_buffers()))
    encoder = Qwen3VLForConditionalGeneration.from_pretrained(tiny_checkpoint / "text_encoder", dtype=dtype).model
    whole = {key: value for key, value in encoder.named_parameters() if not _unread(key)}
    _assert_same(dict(models.text_encoder.named_parameters()), whole)
    _assert_same(dict(models.text_encoder.named_buffers()), dict(encoder.named_buffers()))


def test_bf16_run_is_equal_too(tiny_checkpoint: Path) -> None:
    request = {**REQUEST, "frames": 22, "steps": 2}
    theirs = run_t2va(tiny_checkpoint, [request], dtype=torch.bfloat16)[0]
    ours = stages.run_t2va(stages.load(tiny_checkpoint, dtype=torch.bfloat16), **request)
    assert torch.equal(ours.embeds.prompt_embeds, theirs.prompt_embeds)
    assert torch.equal(ours.latents.video, theirs.video_latents)
    assert torch.equal(ours.frames, theirs.frames)
    assert torch.equal(ours.audio, theirs.audio)


def _unread(name: str) -> bool:
    return name.startswith(("language_model.layers.50.", "language_model.norm."))


def _assert_same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    assert len(ours) > 0
    for name, value in ours.items():
        assert value.dtype == theirs[name].dtype, name
        assert torch.equal(value, theirs[name]), name
