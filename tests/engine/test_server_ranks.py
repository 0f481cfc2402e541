"""The ranks of a real engine die, start badly, or lose their server."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from engine.client import EngineClient
from engine.contract.errors import EngineDeadError, JobError
from tests.support.engine_process import ROOT, EngineProcess
from tests.support.jobs import LONG, QUICK, events_until_final, new_id, wait_for_event
from tests.support.received_masks import FAULTS

pytestmark = pytest.mark.ranks


def wait_until_gone(processes: list[psutil.Process], seconds: float) -> None:
    """Fail unless all ``processes`` end in time."""
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    assert not alive, [process.cmdline() for process in alive]


@pytest.mark.timeout(240)
async def test_a_killed_rank_fails_its_job_and_the_next_one_runs(tiny_checkpoint: Path, tmp_path: Path) -> None:
    with EngineProcess(tiny_checkpoint, tmp_path) as engine:
        async with EngineClient(engine.url) as client, client.connect(tmp_path) as channel:
            await client.run(QUICK, folder=tmp_path)
            running, waiting = new_id(), new_id()
            await channel.submit(LONG, job_id=running)
            await wait_for_event(channel, "step")
            await channel.submit(QUICK, job_id=waiting)
            ranks = engine.get("/v1/info")["pids"]
            psutil.Process(ranks[1]).send_signal(signal.SIGKILL)
            events = await asyncio.wait_for(events_until_final(channel, running), 30)
            assert events[-1]["error"]["code"] == "rank_lost"
            assert events[-1]["error"]["retryable"]
            events = await asyncio.wait_for(events_until_final(channel, waiting), 90)
            assert "restarting" in [event["reason"] for event in events if event["type"] == "queued"]
            assert events[-1]["type"] == "done"
            # The ranks read the checkpoint again: what the lost ones made counts no more.
            assert [event["stage"] for event in events if event.get("cached")] == []
        assert engine.metric("restarts_total") == 1
        assert set(engine.get("/v1/info")["pids"]).isdisjoint(ranks)
        processes = engine.descendants()
        engine.process.send_signal(signal.SIGKILL)
        wait_until_gone(processes, 30)


@pytest.mark.timeout(240)
async def test_a_job_waits_while_the_ranks_restart_because_the_one_before_it_failed(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = tmp_path / "fault.json"
    monkeypatch.setenv("PYTHONPATH", str(FAULTS))
    monkeypatch.setenv("H3_TEST_FAULT", str(fault))
    with EngineProcess(tiny_checkpoint, tmp_path, options=("--tp-degree", "2")) as engine:
        ranks = engine.get("/v1/info")["pids"]
        async with EngineClient(engine.url) as client, client.connect(tmp_path) as channel:
            failing, waiting = new_id(), new_id()
            fault.write_text(json.dumps({"rank": 1, "module": "MiniMaxH3TransformerBlock", "call": 1, "do": "raise"}))
            await channel.submit(QUICK, job_id=failing)
            await channel.submit(QUICK, job_id=waiting)
            events = await asyncio.wait_for(events_until_final(channel, failing), 60)
            fault.unlink()
            assert "planted fault" in events[-1]["error"]["message"]
            events = await asyncio.wait_for(events_until_final(channel, waiting), 90)
            assert "restarting" in [event["reason"] for event in events if event["type"] == "queued"]
            assert events[-1]["type"] == "done", events[-1]
        assert engine.metric("restarts_total") == 1
        assert set(engine.get("/v1/info")["pids"]).isdisjoint(ranks)


@pytest.mark.timeout(120)
async def test_jobs_sent_while_loading_wait_with_that_reason_and_end_of_stdin_stops_everything(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    engine = EngineProcess(tiny_checkpoint, tmp_path, ranks=1)
    engine.launch()
    try:
        async with EngineClient(engine.url) as client, client.connect(tmp_path) as channel:
            assert engine.get("/v1/health")["status"] == "loading"
            job_id = new_id()
            await channel.submit(QUICK, job_id=job_id)
            events = await asyncio.wait_for(events_until_final(channel, job_id), 60)
        assert (events[0]["type"], events[0]["reason"], events[0]["position"]) == ("queued", "loading", 1)
        assert events[-1]["type"] == "done"
        processes = [psutil.Process(engine.process.pid), *engine.descendants()]
        run_dir = next(process.cmdline() for process in processes if "engine.fleet" in process.cmdline())
        folder = Path(run_dir[run_dir.index("--run-dir") + 1])
        assert folder.is_dir()
        assert engine.process.stdin is not None
        engine.process.stdin.close()
        assert engine.process.wait(30) == 0
        wait_until_gone(processes, 5)
        assert "did not stop" not in engine.log_text(), "idle ranks end when they are told to, not by a signal"
        assert not folder.exists()
        assert not (tmp_path / "ready.json").exists()
    finally:
        engine.stop()


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_ranks_that_were_stopped_do_not_outlive_the_server(tiny_checkpoint: Path, tmp_path: Path) -> None:
    with EngineProcess(tiny_checkpoint, tmp_path) as engine:
        processes = engine.descendants()
        for rank in engine.get("/v1/info")["pids"]:
            psutil.Process(rank).send_signal(signal.SIGSTOP)
        assert engine.process.stdin is not None
        engine.process.stdin.close()
        assert engine.process.wait(35) == 0
        wait_until_gone(processes, 1)
        assert "the ranks did not stop within 10 s" not in engine.log_text()


@pytest.mark.timeout(120)
async def test_weights_that_cannot_be_loaded_leave_a_dead_engine_that_says_why(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_checkpoint, model)
    engine = EngineProcess(model, tmp_path, ranks=1)
    engine.launch()
    try:
        # The server has read the headers; by the time the ranks come the file is another.
        for file in (model / "transformer").glob("*.safetensors"):
            file.write_bytes(b"no longer weights")
        engine.wait_for("dead", 60)
        health = engine.get("/v1/health")
        assert "transformer" in health["reason"]
        async with EngineClient(engine.url) as client:
            with pytest.raises(EngineDeadError) as caught:
                await client.run(QUICK, folder=tmp_path)
        assert caught.value.code == "engine_dead"
        status = subprocess.run(
            [sys.executable, "-m", "engine", "status", "--url", engine.url], cwd=ROOT, capture_output=True, check=False
        )
        assert status.returncode == 3
    finally:
        engine.stop()


@pytest.mark.timeout(120)
async def test_stopping_the_engine_fails_what_is_left(tiny_checkpoint: Path, tmp_path: Path) -> None:
    with EngineProcess(tiny_checkpoint, tmp_path, ranks=1) as engine:
        async with EngineClient(engine.url) as client:
            task = asyncio.create_task(client.run(LONG, folder=tmp_path))
            while engine.get("/v1/health")["status"] != "busy":
                await asyncio.sleep(0.05)
            began = time.monotonic()
            engine.process.send_signal(signal.SIGTERM)
            with pytest.raises((EngineDeadError, JobError)) as caught:
                await task
        assert caught.value.code == "engine_dead"
        assert engine.process.wait(30) == 0
        assert time.monotonic() - began < 30
