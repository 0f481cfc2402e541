"""CONDITIONING to the wire and back: text, keyframes, guides and references, ours and those of ComfyUI's own nodes."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load

EMBEDS = torch.randn(1, 5, 8)
TAGS = torch.tensor([1, 1, 0, 0, 1])


@pytest.fixture(scope="module")
def conditioning(h3pack: ModuleType) -> Any:
    return importlib.import_module("h3pack.comfy_h3.conditioning")


def video(frames: int = 2, height: int = 4, width: int = 6) -> torch.Tensor:
    return torch.randn(1, 24, frames, height, width)


def audio(latents: int = 9) -> torch.Tensor:
    return torch.randn(1, 32, 2, latents)


def made_of(**extra: Any) -> list[list[Any]]:
    return [[EMBEDS, {"minimax_token_tags": TAGS, **extra}]]


CORES_REFERENCES = [
    {"kind": "image", "latent_h": 4, "latent_w": 6, "latent": video(1)},
    {
        "kind": "video",
        "latent_t": 7,
        "latent_h": 4,
        "latent_w": 6,
        "ref_audio_t": 0,
        "latent": video(7),
        "audio_latent": None,
    },
    {
        "kind": "video_audio",
        "latent_t": 2,
        "latent_h": 4,
        "latent_w": 6,
        "ref_audio_t": 9,
        "latent": video(),
        "audio_latent": audio(),
    },
    {"kind": "audio", "ref_audio_t": 80, "audio_latent": audio(80)},
]
"""As ComfyUI's MiniMaxH3ReferenceToVideo writes them."""
CORES_KEYFRAMES = [
    {"resolved_frame_index": 0, "latent": video(1)},
    {"resolved_frame_index": 21, "latent": video(1)},
    {"resolved_frame_index": 6, "audio_latent": audio(5)},
    {"resolved_frame_index": 3, "latent": video(2), "audio_latent": audio(4)},
]
"""As its MiniMaxH3ImageToVideo and MiniMaxH3AddGuide write them."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_text_comes_back_bit_equal(conditioning: Any, dtype: torch.dtype) -> None:
    sent = conditioning.to_wire([[EMBEDS.to(dtype), {"minimax_token_tags": TAGS}]])
    ((back, extra),) = conditioning.from_wire(bytearray(sent.part), {})
    assert back.dtype == dtype
    assert torch.equal(back, EMBEDS.to(dtype))
    assert torch.equal(extra["minimax_token_tags"], TAGS)
    assert set(extra) == {"minimax_token_tags"}
    assert sent.conditions == sent.references == ()


def test_a_conditioning_without_tags_is_all_text(conditioning: Any) -> None:
    assert load(conditioning.to_wire([[EMBEDS, {}]]).part)["token_tags"].tolist() == [1] * 5


def test_keyframes_and_guides_travel_in_their_order(conditioning: Any) -> None:
    sent = conditioning.to_wire(made_of(minimax_keyframes=CORES_KEYFRAMES))
    tensors = load(sent.part)
    assert [condition.frame for condition in sent.conditions] == [0, 21, 6, 3]
    assert torch.equal(tensors["conditions.1.video"], CORES_KEYFRAMES[1]["latent"])
    assert "conditions.2.video" not in tensors
    assert torch.equal(tensors["conditions.3.audio"], CORES_KEYFRAMES[3]["audio_latent"])
    facts = {"conditions": [{"frame": condition.frame} for condition in sent.conditions]}
    ((_, extra),) = conditioning.from_wire(bytearray(sent.part), facts)
    for back, entry in zip(extra["minimax_keyframes"], CORES_KEYFRAMES, strict=True):
        assert set(back) == set(entry)
        assert all(torch.equal(torch.as_tensor(back[key]), torch.as_tensor(entry[key])) for key in entry)


def test_references_travel_in_their_order_and_come_back_as_core_reads_them(conditioning: Any) -> None:
    sent = conditioning.to_wire(made_of(minimax_refs=CORES_REFERENCES))
    assert [reference.kind for reference in sent.references] == ["image", "video", "video_audio", "audio"]
    ((_, extra),) = conditioning.from_wire(bytearray(sent.part), {})
    for back, entry in zip(extra["minimax_refs"], CORES_REFERENCES, strict=True):
        for key, value in entry.items():
            same = torch.equal(back[key], value) if isinstance(value, torch.Tensor) else back.get(key) == value
            assert same, (entry["kind"], key)
    # ComfyUI takes the latent of every reference that has the key, whatever is in it.
    assert "latent" not in extra["minimax_refs"][3]
    assert extra["minimax_refs"][0]["picture_index"] == 1


def test_a_guide_goes_behind_those_that_are_there_and_changes_nothing_in_place(conditioning: Any) -> None:
    before = made_of(minimax_keyframes=CORES_KEYFRAMES[:1])
    guide = conditioning.to_wire(made_of(minimax_keyframes=CORES_KEYFRAMES[3:]))
    facts = {"conditions": [{"frame": 3, "frames": 5, "audio_latents": 4}]}
    ((embeds, extra),) = conditioning.with_guides(before, bytearray(guide.part), facts)
    assert [entry["resolved_frame_index"] for entry in extra["minimax_keyframes"]] == [0, 3]
    assert torch.equal(extra["minimax_keyframes"][1]["audio_latent"], CORES_KEYFRAMES[3]["audio_latent"])
    assert len(before[0][1]["minimax_keyframes"]) == 1
    assert embeds is EMBEDS
    assert torch.equal(extra["minimax_token_tags"], TAGS)


@pytest.mark.parametrize(
    ("made", "word"),
    [
        ([*made_of(), *made_of()], "one prompt"),
        ([[torch.zeros(2, 3, 8), {}]], "[1, L, D]"),
        (made_of(minimax_keyframes=[{"resolved_frame_index": 0}]), "neither pictures nor sound"),
        (made_of(minimax_keyframes=[{"resolved_frame_index": 0, "latent": torch.zeros(2, 24, 1, 4, 4)}]), "batch of 1"),
        (made_of(minimax_refs=[{"kind": "audio", "audio_latent": torch.zeros(1, 32, 80)}]), "4 dimensions"),
    ],
)
def test_a_conditioning_that_cannot_be_used_is_refused(conditioning: Any, made: Any, word: str) -> None:
    with pytest.raises(Exception, match=r"\w") as caught:
        conditioning.to_wire(made)
    assert caught.value.code == "bad_tensor"
    assert word in caught.value.message
    assert caught.value.field.startswith("conditioning")
