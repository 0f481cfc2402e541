"""Decoding a latent video in chunks: the frames it gives, their bits, and what is held meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.contract.geometry import frames_of_latents, latent_frames
from engine.stages.decode_video import decode_video, to_uint8
from engine.vae.chunks import count_chunks, decode_chunks
from tests.support import stages

SEED = 5


@pytest.fixture(scope="module")
def vae(tiny_checkpoint: Path) -> Any:
    return stages.load(tiny_checkpoint, keep=frozenset({"vae"})).vae


def _latents(frames: int, height: int, width: int) -> torch.Tensor:
    return torch.randn(1, 24, frames, height, width, generator=torch.Generator().manual_seed(SEED))


def _joined(vae: Any, latents: torch.Tensor) -> torch.Tensor:
    return torch.cat(list(decode_chunks(vae, latents, before_chunk=lambda: None)), dim=2)


@pytest.mark.parametrize("length", [3, 6, 7, 8, 11, 12, 13, 17])
def test_joined_chunks_equal_the_whole_decode_of_diffusers(vae: Any, length: int) -> None:
    latents = _latents(length, 2, 4)
    with torch.no_grad():
        whole = vae.decode(latents, return_dict=False)[0]
    assert torch.equal(_joined(vae, latents), whole)


def test_chunks_of_a_tiled_canvas_equal_the_whole_decode_of_diffusers(vae: Any) -> None:
    latents = _latents(8, 18, 20)  # 288x320: two tiles each way
    with torch.no_grad():
        whole = vae.decode(latents, return_dict=False)[0]
    assert torch.equal(_joined(vae, latents), whole)


def test_five_frames_decode_to_exactly_five_frames(vae: Any) -> None:
    pixels = _joined(vae, _latents(latent_frames(5), 2, 2))
    assert pixels.shape == (1, 3, 5, 32, 32)
    assert pixels.isfinite().all()


def test_five_frames_are_the_first_five_of_the_padded_video(vae: Any) -> None:
    latents = _latents(2, 2, 2)
    padded = torch.cat([latents, latents[:, :, -1:].repeat(1, 1, 5, 1, 1)], dim=2)
    with torch.no_grad():
        whole = vae.decode(padded, return_dict=False)[0]
    assert torch.equal(_joined(vae, latents), whole[:, :, :5])


@pytest.mark.parametrize("length", range(1, 14))
def test_every_length_gives_its_frames_in_as_many_pieces_as_counted(vae: Any, length: int) -> None:
    pieces = list(decode_chunks(vae, _latents(length, 2, 2), before_chunk=lambda: None))
    assert len(pieces) == count_chunks(length)
    assert sum(piece.shape[2] for piece in pieces) == frames_of_latents(length)


def test_a_chunk_is_decoded_only_when_it_is_asked_for(vae: Any) -> None:
    boundaries: list[int] = []
    pieces = decode_chunks(vae, _latents(17, 2, 2), before_chunk=lambda: boundaries.append(1))
    next(pieces)
    assert len(boundaries) == 1


def test_a_rank_without_the_vae_meets_the_same_boundaries_and_yields_nothing(tiny_checkpoint: Path) -> None:
    latents = _latents(12, 2, 2)
    logs = {}
    for keep in (frozenset({"vae"}), frozenset({"transformer"})):
        calls = stages.Calls()
        pieces = list(decode_video(stages.context(stages.load(tiny_checkpoint, keep=keep), calls), latents))
        logs["vae" in keep] = (calls.log.count("boundary"), len(pieces))
    assert logs == {True: (2, 2), False: (2, 0)}


def test_rounding_goes_to_even_and_what_is_no_number_becomes_black() -> None:
    values = torch.rand(64, 64, 3, generator=torch.Generator().manual_seed(SEED))
    values[0, :, 0] = (torch.arange(64) + 0.5) / 255
    assert torch.equal(to_uint8(values), torch.from_numpy((values.numpy() * 255).round().astype("uint8")))
    assert to_uint8(torch.tensor([0.0, float("nan"), 1.0])).tolist() == [0, 0, 255]
