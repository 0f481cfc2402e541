"""Ulysses attention on two and three ranks against one rank, in fp32, on the tiny checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.rank_group import run_on_ranks

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module", params=[2, 3])
def differences(
    request: pytest.FixtureRequest, tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, float]]:
    """Largest differences from one rank, as each rank of the group measured them."""
    folder = tmp_path_factory.mktemp(f"ranks{request.param}")
    (folder / "model").symlink_to(tiny_checkpoint)
    run_on_ranks("tests.support.attention_ranks:compare", ranks=request.param, folder=folder)
    measured: list[dict[str, float]] = json.loads((folder / "differences.json").read_text())
    assert len(measured) == request.param
    return measured


def test_one_forward_equals_one_ranks_to_a_hundred_thousandth_at_every_length(
    differences: list[dict[str, float]],
) -> None:
    assert max(found["forward"] for found in differences) <= 1e-5


def test_the_latents_of_eight_steps_equal_one_ranks_to_a_ten_thousandth(differences: list[dict[str, float]]) -> None:
    assert max(found["latents"] for found in differences) <= 1e-4


def test_without_communication_the_forward_is_far_off_so_the_comparison_can_fail(
    differences: list[dict[str, float]],
) -> None:
    assert min(found["without communication"] for found in differences) > 0.1


def test_removing_the_hooks_restores_the_model_bit_for_bit(differences: list[dict[str, float]]) -> None:
    assert max(found["removed"] for found in differences) == 0.0
