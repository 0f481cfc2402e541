"""The video VAE's tiles on one, two and three ranks: bit for bit what diffusers makes of the whole in one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import vae_ranks
from tests.support.rank_group import run_on_ranks

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def done(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run all cases on one group of ranks; each leaves a file."""
    folder = tmp_path_factory.mktemp("vae")
    (folder / "checkpoint").write_text(str(tiny_checkpoint))
    run_on_ranks("tests.support.vae_ranks:run_all", ranks=3, folder=folder, timeout=240)
    return folder


@pytest.mark.parametrize("case", [case.__name__ for case in vae_ranks.CASES])
def test_on_one_two_and_three_ranks(done: Path, case: str) -> None:
    assert (done / case).exists()
