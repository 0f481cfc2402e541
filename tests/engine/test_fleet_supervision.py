"""How often the fleet starts its ranks again, without any rank."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from engine import fleet
from engine.rank_options import RankOptions
from engine.worker import Commands

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


def supervise(run: Callable[[RankOptions], None], wanted: Callable[[int], bool] = lambda launch: False) -> int:
    return fleet.supervise(OPTIONS, run, max_restarts=3, wanted=wanted)


def test_ranks_that_keep_failing_are_launched_three_times_again() -> None:
    launches: list[int] = []
    assert supervise(failing(launches, failures=9)) == 1
    assert launches == [0, 1, 2, 3]


def test_failures_of_long_ago_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "_STEADY_SECONDS", 0.0)
    launches: list[int] = []
    assert supervise(failing(launches, failures=9)) == 0
    assert launches == list(range(10))


def test_restarts_that_the_ranks_wanted_do_not_count() -> None:
    launches: list[int] = []
    assert supervise(failing(launches, failures=9), wanted=lambda launch: True) == 0
    assert launches == list(range(10))
    launches = []
    assert supervise(failing(launches, failures=9), wanted=lambda launch: launch in (0, 3)) == 1
    assert launches == [0, 1, 2, 3, 4, 5]


def test_a_signal_is_an_orderly_end() -> None:
    def run(options: RankOptions) -> None:
        raise SignalException("told to end", signal.SIGTERM)

    assert supervise(run) == 0


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


def test_commands_are_private_files_and_the_store_that_everybody_can_read_holds_none(tmp_path: Path) -> None:
    store = fleet.loopback_store()
    rank_0, rank_1 = (Commands(store, tmp_path, generation="launch1") for _ in range(2))
    command = {"op": "run", "request": {"prompt": "a secret"}}
    rank_0.publish(0, command)
    assert store.get("cmd/0") == b""
    (file,) = tmp_path.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert rank_1.wait_for(0) == command
    rank_0.publish(1, {"op": "stop"})
    assert rank_1.wait_for(1) == {"op": "stop"}
    assert not file.exists()
    # Another user's key wakes a rank, and gives it nothing to do.
    store.set("cmd/2", '{"op": "run", "request": {"prompt": "forged"}}')
    with pytest.raises(FileNotFoundError):
        rank_1.wait_for(2)


def test_commands_of_ranks_that_were_lost_are_removed_by_the_next_ones(tmp_path: Path) -> None:
    store = fleet.loopback_store()
    Commands(store, tmp_path, generation="launch0").publish(0, {"op": "run"})
    (tmp_path / "lock").touch()
    Commands(store, tmp_path, generation="launch1").publish(0, {"op": "run"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["command-launch1-0.json", "lock"]


def python(words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    return subprocess.run(
        [sys.executable, "-c", words], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_a_rank_whose_fleet_died_before_it_could_say_so_ends() -> None:
    ended = python(
        "from engine.lifeline import die_with; import os; die_with(os.getppid()); print(1); die_with(os.getppid() + 1)"
    )
    assert (ended.stdout, ended.returncode) == ("1\n", 1)
    assert "ProcessLookupError" in ended.stderr


def test_a_process_that_leaves_has_written_what_it_said_and_does_nothing_more() -> None:
    ended = python(
        "from engine.lifeline import leave; import atexit, logging; atexit.register(print, 'the orderly end')\n"
        "print('said'); logging.warning('logged'); leave(70)"
    )
    assert (ended.stdout, ended.stderr, ended.returncode) == ("said\n", "WARNING:root:logged\n", 70)
