"""How often the fleet starts its ranks again, without any rank."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from engine import fleet
from engine.rank_options import RankOptions

OPTIONS = RankOptions(
    model="/models/h3",
    ulysses_degree=2,
    device="cpu",
    dtype="fp32",
    stages=("encode_prompt", "denoise"),
    link="/run/link",
    data_timeout=60.0,
)


def failing(launches: list[int], *, failures: int) -> Callable[[RankOptions], None]:
    def run(options: RankOptions) -> None:
        launches.append(options.launch)
        if len(launches) <= failures:
            raise ChildFailedError("worker", {0: ProcessFailure(local_rank=0, pid=1, exitcode=70, error_file="")})

    return run


def test_ranks_that_fail_soon_are_not_launched_again() -> None:
    launches: list[int] = []
    assert fleet.supervise(OPTIONS, failing(launches, failures=9)) == 1
    assert launches == [0]


def test_ranks_that_failed_after_a_long_time_get_new_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "_STEADY_SECONDS", 0.0)
    launches: list[int] = []
    assert fleet.supervise(OPTIONS, failing(launches, failures=2)) == 0
    assert launches == [0, 1, 2]


def test_a_signal_is_an_orderly_end() -> None:
    def run(options: RankOptions) -> None:
        raise SignalException("told to end", signal.SIGTERM)

    assert fleet.supervise(OPTIONS, run) == 0


def test_the_options_reach_the_ranks_unchanged() -> None:
    assert RankOptions.from_json(OPTIONS.to_json()) == OPTIONS


def test_the_servers_command_line_is_read() -> None:
    options, arguments = fleet.parse_arguments(
        [
            *("--model", "/models/h3", "--nproc-per-node", "2", "--ulysses-degree", "2", "--device", "cpu"),
            *("--dtype", "fp32", "--stages", "encode_prompt,denoise", "--run-dir", "/run", "--link", "/run/link"),
            *("--data-timeout", "60"),
        ]
    )
    assert options == OPTIONS
    assert (arguments.nproc_per_node, arguments.max_restarts, arguments.run_dir) == (2, 3, "/run")


def test_the_store_listens_on_the_loopback_interface_alone() -> None:
    store = fleet.loopback_store()
    store.set("key", "value")
    assert store.get("key") == b"value"
    assert store.host == "127.0.0.1"
