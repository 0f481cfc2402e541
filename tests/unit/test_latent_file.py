"""What a latent's file says of itself, and how much text it has room for."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from safetensors.numpy import save

from engine.contract.framing import MAX_HEADER_BYTES
from engine.contract.latent_file import METADATA, describe, fitting_texts, read_facts, read_latent_header

STREAMS = {"video": np.zeros((1, 24, 2, 2, 2), np.float32), "audio": np.zeros((1, 32, 2, 12), np.float32)}


def test_what_is_described_is_read_again() -> None:
    facts = read_facts(describe(7, seed=2**64 - 1))
    assert (facts["frames"], facts["fps"], facts["seconds"], facts["seed"]) == (22, 24, 0.917, 2**64 - 1)


@pytest.mark.parametrize("text", ["[" * 20_000, "{", "[1]", "null", "1" * 5_000])
def test_metadata_that_are_no_facts_give_none(text: str) -> None:
    assert read_facts({METADATA: text}) == {}


def test_facts_that_are_no_numbers_or_short_texts_are_not_shown() -> None:
    text = '{"frames": 1e999, "fps": NaN, "seconds": [1], "seed": 7, "engine": "%s", "x": true, "y": %s}'
    assert read_facts({METADATA: text % ("e" * 1_000, "9" * 100)}) == {"seed": 7}


def test_texts_that_fit_are_written_and_the_file_can_be_read_again() -> None:
    half = json.dumps("\\Ж" * 1_000_000)
    texts = {"prompt": "{}", "workflow": half, "again": half, "last": "1"}
    fitting = fitting_texts(texts)
    assert list(fitting) == ["prompt", "workflow", "last"]
    assert len(half) < MAX_HEADER_BYTES
    data = save(STREAMS, metadata={**describe(2), **fitting})
    assert set(read_latent_header(io.BytesIO(data), len(data), field="file")) == {"video", "audio"}
