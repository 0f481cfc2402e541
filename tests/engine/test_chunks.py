"""Decoding a latent video in chunks: the frames it gives, their bits, and what is held meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.contract.geometry import frames_of_latents, latent_frames
from engine.models.bundle import Models
from engine.stages.decode_video import decode_video, to_uint8
from engine.vae.chunks import count_chunks
from engine.vae.crew import VaeCrew
from engine.vae.spread import decode_frames
from tests.support import stages

SEED = 5


@pytest.fixture(scope="module")
def models(tiny_checkpoint: Path) -> Models:
    return stages.load(tiny_checkpoint, keep=frozenset({"vae"}))


@pytest.fixture(scope="module")
def vae(models: Models) -> Any:
    return models.vae


@pytest.fixture(scope="module")
def crew(models: Models) -> VaeCrew:
    return stages.crew(models)


def _latents(frames: int, height: int, width: int) -> torch.Tensor:
    return torch.randn(1, 24, frames, height, width, generator=torch.Generator().manual_seed(SEED))


def _pieces(crew: VaeCrew, latents: torch.Tensor, boundary: Any = lambda: None) -> Iterator[torch.Tensor]:
    return decode_frames(crew, latents, boundary=boundary, ratio=16)


def _joined(crew: VaeCrew, latents: torch.Tensor) -> torch.Tensor:
    return torch.cat(list(_pieces(crew, latents)), dim=2)


@pytest.mark.parametrize("length", [3, 6, 7, 8, 11, 12, 13, 17])
def test_joined_chunks_equal_the_whole_decode_of_diffusers(crew: VaeCrew, vae: Any, length: int) -> None:
    latents = _latents(length, 2, 4)
    with torch.no_grad():
        whole = vae.decode(latents, return_dict=False)[0]
    assert torch.equal(_joined(crew, latents), whole)


def test_chunks_of_a_tiled_canvas_equal_the_whole_decode_of_diffusers(crew: VaeCrew, vae: Any) -> None:
    latents = _latents(8, 18, 20)  # 288x320: two tiles each way
    with torch.no_grad():
        whole = vae.decode(latents, return_dict=False)[0]
    assert torch.equal(_joined(crew, latents), whole)


def test_five_frames_decode_to_exactly_five_frames(crew: VaeCrew) -> None:
    pixels = _joined(crew, _latents(latent_frames(5), 2, 2))
    assert pixels.shape == (1, 3, 5, 32, 32)
    assert pixels.isfinite().all()


def test_five_frames_are_the_first_five_of_the_padded_video(crew: VaeCrew, vae: Any) -> None:
    latents = _latents(2, 2, 2)
    padded = torch.cat([latents, latents[:, :, -1:].repeat(1, 1, 5, 1, 1)], dim=2)
    with torch.no_grad():
        whole = vae.decode(padded, return_dict=False)[0]
    assert torch.equal(_joined(crew, latents), whole[:, :, :5])


@pytest.mark.parametrize("length", range(1, 14))
def test_every_length_gives_its_frames_in_as_many_pieces_as_counted(crew: VaeCrew, length: int) -> None:
    pieces = list(_pieces(crew, _latents(length, 2, 2)))
    assert len(pieces) == count_chunks(length)
    assert sum(piece.shape[2] for piece in pieces) == frames_of_latents(length)


def test_a_chunk_is_decoded_only_when_it_is_asked_for(crew: VaeCrew) -> None:
    boundaries: list[int] = []
    pieces = _pieces(crew, _latents(17, 2, 2), lambda: boundaries.append(1))
    assert boundaries == []
    next(pieces)
    # One before the chunk, and one after which the other ranks would work on the next.
    assert len(boundaries) == 2


def test_the_stage_meets_before_each_unit_and_reports_each_chunk(models: Models) -> None:
    calls = stages.Calls()
    pieces = list(decode_video(stages.context(models, calls), _latents(12, 2, 2)))
    assert [len(pieces), *calls.log] == [2, "boundary", "boundary", (1, 2), (2, 2)]


def test_rounding_goes_to_even_and_what_is_no_number_becomes_black() -> None:
    values = torch.rand(64, 64, 3, generator=torch.Generator().manual_seed(SEED))
    values[0, :, 0] = (torch.arange(64) + 0.5) / 255
    assert torch.equal(to_uint8(values), torch.from_numpy((values.numpy() * 255).round().astype("uint8")))
    assert to_uint8(torch.tensor([0.0, float("nan"), 1.0])).tolist() == [0, 0, 255]
