"""When a rank's watchdog aborts its data groups: only in a collective of the job that failed. Nothing else is watched.

The groups are recorders, since the backends that can abort need accelerators.
"""

from __future__ import annotations

from typing import Any

import pytest
from torch.distributed import HashStore

from engine.parallel.layout import Layout
from engine.parallel.mesh import Mesh
from engine.parallel.watchdog import Watchdog


class Group:
    """A data group that can be aborted."""

    aborted = 0

    def abort(self) -> None:
        self.aborted += 1


class Rank:
    """A rank of two with one data group, whose watchdog looks when told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Mesh, "backend", "nccl")
        self.store = HashStore()
        self.mesh = Mesh(Layout(0, 1, 1), self.store)
        self.mesh.layout = Layout(0, 2, 2)
        self.group: Any = Group()
        self.mesh._groups[0, 1] = self.group
        self.watchdog = Watchdog(self.mesh, self.store, silence=60, cancelled=lambda: False)
        self.watchdog.watch_job("job")

    def look(self) -> int:
        """Return how often the group was aborted after a look at the store."""
        self.watchdog._look_for_failures()
        return self.group.aborted


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> Rank:
    return Rank(monkeypatch)


def test_a_rank_in_a_collective_is_freed_once_when_another_has_failed(rank: Rank) -> None:
    rank.mesh.begin_data()
    assert rank.look() == 0
    rank.watchdog.announce_failure("job")
    assert [rank.look(), rank.look()] == [1, 1]
    assert not rank.mesh.in_data, "the ranks must restart"


def test_a_rank_that_is_in_none_is_left_alone_until_it_enters_one(rank: Rank) -> None:
    rank.watchdog.announce_failure("job")
    assert rank.look() == 0
    assert rank.mesh.in_data
    rank.mesh.begin_data()
    assert rank.look() == 1


def test_once_the_job_has_ended_its_failure_aborts_nothing(rank: Rank) -> None:
    rank.watchdog.announce_failure("job")
    rank.watchdog.watch_job(None)
    rank.mesh.begin_data()
    assert rank.look() == 0
    rank.watchdog.watch_job("next job")
    assert rank.look() == 0
    assert rank.mesh.in_data


def test_an_announcement_that_was_read_before_the_job_ended_aborts_nothing_after_it(rank: Rank) -> None:
    rank.watchdog.announce_failure("job")
    rank.mesh.begin_data()
    check = rank.store.check

    def slow_check(keys: list[str]) -> bool:
        found: bool = check(keys)
        rank.watchdog.watch_job("next job")
        return found

    rank.watchdog._store = type("Store", (), {"check": staticmethod(slow_check)})()
    assert rank.look() == 0


def test_a_collective_where_none_was_to_come_is_an_error(rank: Rank) -> None:
    rank.mesh.quiet = True
    with pytest.raises(AssertionError):
        rank.mesh.begin_data()
    assert not rank.mesh.dirty
