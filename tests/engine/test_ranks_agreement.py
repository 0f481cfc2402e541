"""Ranks share, agree, and recover from a broken data group (two bare ranks)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.rank_group import run_on_ranks

pytestmark = pytest.mark.ranks


def test_two_ranks_share_agree_and_recover(tmp_path: Path) -> None:
    run_on_ranks("tests.support.agreement_ranks:everything", ranks=2, folder=tmp_path)
    assert sorted(path.name for path in tmp_path.glob("done-*")) == ["done-0", "done-1"]


def test_a_rank_that_fails_an_assertion_fails_the_test(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="no_such_function"):
        run_on_ranks("tests.support.agreement_ranks:no_such_function", ranks=1, folder=tmp_path)
