"""The noise worker draws what a serial draw gives, touches nothing else, and leaves nothing behind."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch

from engine import noise
from engine.contract.errors import JobError
from engine.contract.limits import ModelFacts
from engine.noise import NoiseShapes, NoiseWorker, draw_noise
from engine.packing import Block, latent_grid

GRID = latent_grid(ModelFacts(), width=160, height=96, frames=56)
BLOCKS = [
    Block("condition", (1, 6, 10)),
    Block("condition", (7, 6, 10), 20, frame=17),
    Block("audio", None, 40),
    Block("image", (1, 5, 3)),
    Block("video", (12, 4, 4), 65),
]
SHAPES = NoiseShapes.of(GRID, BLOCKS)


def test_only_pictures_are_mixed_with_noise() -> None:
    assert SHAPES.conditions == ((1, 24, 1, 6, 10), (1, 24, 7, 6, 10), (1, 24, 1, 5, 3), (1, 24, 12, 4, 4))


def test_one_generator_draws_conditions_then_video_then_sound() -> None:
    drawn, generator = draw_noise(SHAPES, seed=9), torch.Generator().manual_seed(9)
    for tensor in (*drawn.conditions, drawn.video, drawn.audio):
        assert torch.equal(tensor, torch.randn(tensor.shape, generator=generator))


@pytest.mark.parametrize("seed", [0, 7, 2**64 - 1])
@pytest.mark.parametrize("blocks", [[], BLOCKS], ids=["text alone", "conditions"])
def test_a_worker_gives_the_same_bits_and_leaves_torchs_generator_alone(seed: int, blocks: list[Block]) -> None:
    shapes = NoiseShapes.of(GRID, blocks)
    state = torch.get_rng_state()
    with NoiseWorker(shapes, seed=seed) as worker:
        given = worker.take(shapes)
    serial = draw_noise(shapes, seed=seed)
    assert torch.equal(torch.get_rng_state(), state)
    pairs = zip(
        (*given.conditions, given.video, given.audio), (*serial.conditions, serial.video, serial.audio), strict=True
    )
    assert all(torch.equal(a, b) for a, b in pairs)


def test_shapes_that_were_not_foreseen_are_refused_before_the_noise_is_used() -> None:
    wider = NoiseShapes.of(GRID, [*BLOCKS[:-1], Block("video", (12, 4, 6), 65)])
    with NoiseWorker(SHAPES, seed=1) as worker, pytest.raises(JobError) as caught:
        worker.take(wider)
    assert "[1, 24, 12, 4, 6]" in caught.value.message
    assert "[1, 24, 12, 4, 4]" in caught.value.message


def test_an_encoders_error_cancels_what_is_pending_joins_what_runs_and_reaches_the_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, drawn = threading.Event(), []

    def slow(shape: Any, *, generator: torch.Generator) -> torch.Tensor:
        begun.set()
        time.sleep(0.3)
        drawn.append(shape)
        return torch.zeros(shape)

    monkeypatch.setattr(noise.torch, "randn", slow)

    def encode() -> None:
        with NoiseWorker(SHAPES, seed=1):
            assert begun.wait(10)
            raise ValueError("the encoder's own")

    before = threading.active_count()
    with pytest.raises(ValueError, match="the encoder's own"):
        encode()
    assert drawn == [SHAPES.conditions[0]]
    assert threading.active_count() == before
