"""The fleet: what listens, who dies with whom, restarts, and failures to start."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.ranks import Fleet, descendants, is_running, listening_addresses, wait_until

pytestmark = pytest.mark.ranks

SMALL: dict[str, Any] = {"task": "generate", "prompt": "a red kite", "width": 64, "height": 64, "frames": 5, "steps": 2}
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
Start = Callable[..., Fleet]


@pytest.fixture
def start(tiny_checkpoint: Path) -> Iterator[Start]:
    fleets: list[Fleet] = []

    def start_fleet(model: Path = tiny_checkpoint, **options: Any) -> Fleet:
        fleets.append(Fleet(model, **options))
        return fleets[-1]

    yield start_fleet
    for fleet in fleets:
        fleet.close()


def all_end(pids: list[int], *, seconds: float) -> bool:
    return wait_until(lambda: not any(is_running(pid) for pid in pids), seconds=seconds)


def test_a_killed_rank_takes_the_job_down_and_the_restarted_ranks_serve_the_next(start: Start) -> None:
    fleet = start(ranks=2)
    info = fleet.wait_ready()
    assert {key: info[key] for key in ("device", "dtype", "world_size", "backend")} == {
        "device": "cpu",
        "dtype": "float32",
        "world_size": 2,
        "backend": "gloo",
    }
    everyone = [fleet.process.pid, *descendants(fleet.process.pid)]
    assert set(info["pids"]) <= set(everyone)
    listening = listening_addresses(everyone)
    assert listening, "the store and gloo listen somewhere"
    assert listening <= LOOPBACK

    with fleet.fault(rank=1, module="MiniMaxH3TransformerBlock", do="kill"):
        fleet.start(SMALL)
        fleet.wait_for("lost", timeout=20)
    again = fleet.wait_ready()
    assert not set(again["pids"]) & set(info["pids"])
    assert fleet.run(SMALL).error is None
    assert listening_addresses([fleet.process.pid, *again["pids"]]) <= LOOPBACK

    assert fleet.process.stdin is not None
    fleet.process.stdin.close()
    assert all_end([fleet.process.pid, *again["pids"]], seconds=10), fleet.log
    assert fleet.process.wait() == 0


def test_ranks_that_failed_as_often_as_they_may_end_the_fleet(start: Start) -> None:
    fleet = start(ranks=1, layout=("--ulysses-degree", "1", "--max-restarts", "0"))
    os.kill(fleet.wait_ready()["pids"][0], signal.SIGKILL)
    assert fleet.process.wait(30) == 1
    assert "the ranks keep failing" in fleet.log


@pytest.mark.slow
def test_a_rank_that_stops_without_dying_is_noticed_and_replaced(start: Start) -> None:
    fleet = start(ranks=2, data_timeout=8)
    info = fleet.wait_ready()
    # Rank 1 is frozen while rank 0 is busy elsewhere: no collective of a job would ever notice.
    os.kill(info["pids"][1], signal.SIGSTOP)
    fleet.start(SMALL)
    fleet.wait_for("lost", timeout=40)
    assert "rank 1 has given no sign of life for 8 s" in fleet.log
    # The elastic agent gives it 30 s to obey SIGTERM before SIGKILL; awake, it obeys at once.
    os.kill(info["pids"][1], signal.SIGCONT)
    assert fleet.wait_ready()["pids"] != info["pids"]
    assert fleet.run(SMALL).error is None


@pytest.mark.slow
def test_a_cancellation_waits_half_a_minute_for_a_rank_that_stopped_not_for_the_data_timeout(start: Start) -> None:
    fleet = start(ranks=2, data_timeout=600)
    info = fleet.wait_ready()
    job_id = fleet.start({**SMALL, "steps": 500})
    os.kill(info["pids"][1], signal.SIGSTOP)
    fleet.send({"op": "cancel", "job_id": job_id})
    fleet.wait_for("lost", timeout=40)
    assert "rank 1 has given no sign of life for 30 s" in fleet.log
    os.kill(info["pids"][1], signal.SIGCONT)
    fleet.wait_ready()
    assert fleet.run(SMALL).error is None


@pytest.mark.parametrize("stopped", [False, True])
def test_the_ranks_end_when_the_fleet_is_killed(start: Start, stopped: bool) -> None:
    fleet = start(ranks=1)
    pids = fleet.wait_ready()["pids"]
    if stopped:
        os.kill(pids[0], signal.SIGSTOP)
    fleet.process.kill()
    assert all_end(pids, seconds=5)


def test_sigterm_ends_fleet_and_ranks_in_order(start: Start) -> None:
    fleet = start(ranks=1)
    pids = fleet.wait_ready()["pids"]
    job_id = fleet.start({**SMALL, "steps": 500})
    assert fleet.next()["job_id"] == job_id
    fleet.process.terminate()
    assert all_end([fleet.process.pid, *pids], seconds=10)
    assert fleet.process.wait() == 0


def test_stop_during_a_job_cancels_it_and_ends_everything(start: Start) -> None:
    fleet = start(ranks=1)
    fleet.wait_ready()
    job_id = fleet.start({**SMALL, "steps": 500})
    fleet.send({"op": "stop"})
    ended = fleet.finish(job_id)
    assert ended.error is not None
    assert ended.error["code"] == "cancelled"
    assert fleet.process.wait(15) == 0


def test_loading_is_reported_and_a_checkpoint_that_cannot_load_is_told_once(
    start: Start, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(tiny_checkpoint, broken)
    weights = next((broken / "vae").glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-8])
    fleet = start(broken, ranks=1)
    error = fleet.wait_for("failed")["error"]
    assert error["code"] == "checkpoint_invalid"
    assert error["kind"] == "ConfigError"
    assert fleet.process.wait(20) == 1
    assert fleet.log.count("launch ") == 1

    good = start(ranks=1, stages="decode_audio,decode_video")
    loading = [good.wait_for("loading")]
    while (message := good.next())["op"] == "loading":
        loading.append(message)
    assert message["op"] == "ready"
    done = [message["bytes_done"] for message in loading]
    assert done == sorted(done)
    assert done[-1] == loading[-1]["bytes_total"] > 0
    assert {message["component"] for message in loading} <= {"vae", "audio_vae"}
