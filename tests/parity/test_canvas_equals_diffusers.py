"""The default canvas against diffusers' own function."""

from __future__ import annotations

import random

import pytest
from diffusers.modular_pipelines.minimax_h3.modular_pipeline import resolve_canvas_size

from engine.contract.geometry import default_canvas


@pytest.mark.parametrize(("short_edge", "max_pixels", "multiple"), [(768, 768 * 1344, 32), (64, 64 * 128, 32)])
def test_default_canvas_equals_diffusers_for_many_aspects(short_edge: int, max_pixels: int, multiple: int) -> None:
    rng = random.Random(0)
    aspects = [(16, 9), (9, 16), (1, 1), (4, 1), (1, 4), (21, 9), (3, 2), (1920, 1080), (848, 480)]
    while len(aspects) < 5000:
        width, height = rng.randint(1, 4096), rng.randint(1, 4096)
        if 0.25 <= width / height <= 4:
            aspects.append((width, height))
    for width, height in aspects:
        ours = default_canvas(width, height, short_edge=short_edge, max_pixels=max_pixels, multiple=multiple)
        assert ours == resolve_canvas_size(width, height, multiple, short_edge, max_pixels)[::-1], (width, height)
