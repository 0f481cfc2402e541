"""Several outputs of one request: each is the one of its own seed, and nothing of one is held when the next begins."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.output_ranks import OUTPUTS
from tests.support.rank_group import run_on_ranks

pytestmark = pytest.mark.ranks


@pytest.mark.parametrize("ranks", [1, 2])
def test_outputs_are_those_of_their_seeds_and_buffers_are_gone_before_the_first_step(
    tiny_checkpoint: Path, tmp_path: Path, ranks: int
) -> None:
    (tmp_path / "model").symlink_to(tiny_checkpoint)
    run_on_ranks("tests.support.output_ranks:run", ranks=ranks, folder=tmp_path)
    for rank in range(ranks):
        found = json.loads((tmp_path / f"outputs-{rank}.json").read_text())
        assert found["error"] is None
        # The worker serves the first output alone.
        assert (found["taken"], found["drawn"]) == (1, OUTPUTS - 1)
        assert found["held"] == [{"noise": 0, "latents": 0, "outputs": 0}] * OUTPUTS
        assert found["same"]
        assert found["untouched"]
        # Latents on every rank; frames and sound where the VAEs are.
        assert found["each"] == (4 if rank == 0 else 2)
        assert found["pieces"] == OUTPUTS * found["each"]
