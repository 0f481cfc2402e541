"""Jobs on a real engine: events, results, cancelling, lost connections."""

from __future__ import annotations

import asyncio
import io
import re
import sys
import uuid
from pathlib import Path
from typing import Any

import av
import pytest

from engine.cli.client import write_blob
from engine.client import EngineClient
from engine.contract.errors import JobCancelled
from tests.support.cutting_proxy import cutting_proxy
from tests.support.engine_process import ROOT, EngineProcess
from tests.support.jobs import LONG, QUICK, events_until_final, new_id, wait_for_event

pytestmark = pytest.mark.ranks

PAGE = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")


async def run_quickly(client: EngineClient, folder: Path) -> bytes:
    """Run a quick job and return its MP4: the proof that the engine serves the next one."""
    outcome = await asyncio.wait_for(client.run(QUICK, folder=folder), 30)
    return outcome.outputs["video"][0].read_bytes()


async def test_progress_is_numbered_and_never_goes_back(client: EngineClient, tmp_path: Path) -> None:
    events: list[Any] = []
    await client.run({**QUICK, "frames": 22, "steps": 3}, folder=tmp_path, on_event=events.append)
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert [event["type"] for event in events[:1]] == ["queued"]
    progress = [event["progress"] for event in events if "progress" in event]
    assert progress == sorted(progress)
    steps = [event for event in events if event["type"] == "step" and event["stage"] == "denoise"]
    assert [(event["step"], event["total"]) for event in steps] == [(1, 3), (2, 3), (3, 3)]
    assert all(event["remaining_seconds"] >= 0 for event in steps)
    started = next(event for event in events if event["type"] == "started")
    finished = [event["stage"] for event in events if event["type"] == "stage_finished"]
    assert finished == started["stages"] == ["encode_prompt", "denoise", "decode_audio", "decode_video"]
    assert (started["facts"]["frames"], events[-1]["facts"]["frames"]) == (22, 22)
    assert next(event for event in events if event["type"] == "warning")["code"] == "untrained_length"


def test_what_the_routes_answer_is_on_the_protocols_page(engine: EngineProcess) -> None:
    engine.call("POST", "/v1/generate", QUICK)
    info = engine.get("/v1/info")
    names = {*engine.get("/v1/health"), *info, *info["limits"], *info["layout"], *engine.get("/v1/jobs")["jobs"][0]}
    assert {name for name in names if f"`{name}`" not in PAGE and f'"{name}"' not in PAGE} == set()
    metrics = engine.fetch("/metrics")[2].decode()
    families = set(re.findall(r"# TYPE (\w+)", metrics)) - {"h3_engine_stage_seconds"}
    assert {name for name in families if name not in PAGE} == set()


async def test_the_example_of_the_protocols_page_makes_a_video(engine: EngineProcess, tmp_path: Path) -> None:
    example = re.search(r"```python\n(.*?)```", PAGE, re.S)
    assert example is not None
    program = example[1].replace("127.0.0.1:8190", engine.url.removeprefix("http://"))
    program = program.replace('"seconds": 5, "steps": 30', '"frames": 22, "steps": 1')
    assert '"frames": 22' in program
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, cwd=tmp_path)
    assert await asyncio.wait_for(process.wait(), 30) == 0
    with av.open(str(tmp_path / "boat.mp4")) as container:
        assert container.streams.video[0].frames == 22


async def test_an_identical_second_request_gives_equal_bytes_in_the_same_buffers(
    engine: EngineProcess, client: EngineClient, tmp_path: Path
) -> None:
    first = await run_quickly(client, tmp_path)
    kept = engine.metric("gather_workspace_bytes")
    assert kept > 0
    assert await run_quickly(client, tmp_path) == first
    assert engine.metric("gather_workspace_bytes") == kept


async def test_stages_one_by_one_give_what_generate_gives(client: EngineClient, tmp_path: Path) -> None:
    whole = await client.run({**QUICK, "container": "tensors"}, folder=tmp_path)
    encoded = await client.run({"task": "encode_prompt", "prompt": QUICK["prompt"]}, folder=tmp_path)
    sizes = {name: QUICK[name] for name in ("width", "height", "frames", "steps")}
    inputs = {"conditioning": encoded.outputs["conditioning"][0]}
    denoised = await client.run({"task": "denoise", **sizes}, inputs=inputs, folder=tmp_path)
    decoded = await client.run({"task": "decode"}, inputs={"latents": denoised.outputs["latents"][0]}, folder=tmp_path)
    for name, files in {**denoised.outputs, **decoded.outputs}.items():
        assert [file.read_bytes() for file in files] == [file.read_bytes() for file in whole.outputs[name]], name


async def test_a_job_by_http_ends_in_an_mp4_with_sound(engine: EngineProcess) -> None:
    status, job = engine.call(
        "POST", "/v1/generate", {"prompt": "a boat", "frames": 20, "width": 64, "height": 32, "steps": 1}
    )
    assert status == 202
    assert job["facts"]["frames"] == 22
    assert [warning["code"] for warning in job["warnings"]] == ["frames_snapped", "untrained_length"]
    path = f"/v1/jobs/{job['job_id']}"
    while (job := engine.get(path))["state"] in ("queued", "running"):
        await asyncio.sleep(0.05)
    assert (job["state"], job["progress"], job["result"]) == ("done", 1.0, path + "/result")
    status, headers, blob = engine.fetch(path + "/result")
    assert (status, headers["Content-Type"]) == (200, "video/mp4")
    with av.open(io.BytesIO(blob)) as container:
        video, audio = container.streams.video[0], container.streams.audio[0]
        assert (video.width, video.height, video.average_rate) == (64, 32, 24)
        assert (audio.rate, audio.channels) == (32000, 2)
        assert sum(1 for _ in container.decode(video)) == 22
    status, headers, piece = engine.fetch(path + "/result", {"Range": "bytes=4-11"})
    assert (status, piece) == (206, blob[4:12])
    assert path in [f"/v1/jobs/{one['job_id']}" for one in engine.get("/v1/jobs")["jobs"]]
    assert engine.call("DELETE", path)[0] == 200
    assert engine.call("GET", path)[1]["error"]["code"] == "unknown_job"


async def test_a_result_that_is_not_there_yet_is_an_error(engine: EngineProcess) -> None:
    job_id = str(uuid.uuid4())
    assert engine.call("POST", "/v1/generate", {**QUICK, "steps": 1000, "task": "generate", "job_id": job_id})[0] == 202
    status, answer = engine.call("GET", f"/v1/jobs/{job_id}/result")
    assert (status, answer["error"]["code"]) == (404, "no_result")
    assert engine.call("DELETE", f"/v1/jobs/{job_id}")[0] == 200
    while (job := engine.get(f"/v1/jobs/{job_id}"))["state"] == "running":
        await asyncio.sleep(0.05)
    assert (job["state"], job["error"]["code"]) == ("cancelled", "cancelled")


async def test_a_cancel_message_stops_within_a_step(client: EngineClient, tmp_path: Path) -> None:
    job_id = new_id()
    async with client.connect(tmp_path) as channel:
        await channel.submit(LONG, job_id=job_id)
        await wait_for_event(channel, "step")
        await channel.cancel(job_id)
        events = await asyncio.wait_for(events_until_final(channel, job_id), 10)
    assert events[-1]["error"]["code"] == "cancelled"
    steps = [event for event in events if event["type"] == "step"]
    # What was under way when the message left may still report; the rest of the 1000 steps must not.
    assert len(steps) < 100
    assert await run_quickly(client, tmp_path)


async def test_a_normal_close_cancels_the_connections_jobs(
    client: EngineClient, engine: EngineProcess, tmp_path: Path
) -> None:
    running, waiting = new_id(), new_id()
    async with client.connect(tmp_path) as channel:
        await channel.submit(LONG, job_id=running)
        await wait_for_event(channel, "step")
        await channel.submit(QUICK, job_id=waiting)
        queued = await wait_for_event(channel, "queued")
        assert (queued["position"], queued["reason"]) == (1, "busy")
    assert await run_quickly(client, tmp_path)
    states = {job["job_id"]: job["state"] for job in engine.get("/v1/jobs")["jobs"]}
    assert (states[running], states[waiting]) == ("cancelled", "cancelled")


async def test_leaving_the_clients_task_cancels_the_job(client: EngineClient, tmp_path: Path) -> None:
    task = asyncio.create_task(client.run(LONG, folder=tmp_path))
    await asyncio.sleep(0.5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await run_quickly(client, tmp_path)


async def test_a_dropped_connection_goes_on_after_resume(
    client: EngineClient, engine: EngineProcess, tmp_path: Path
) -> None:
    job_id = new_id()
    request = {**QUICK, "steps": 40, "container": "tensors"}
    async with client.connect(tmp_path) as channel:
        await channel.submit(request, job_id=job_id)
        seen = (await wait_for_event(channel, "step"))["seq"]
        transport = channel.socket._response.connection.transport  # type: ignore[union-attr]
        transport.abort()
    async with client.connect(tmp_path) as channel:
        await channel.resume(job_id, seen)
        events = await asyncio.wait_for(events_until_final(channel, job_id), 30)
    assert [event["seq"] for event in events] == list(range(seen + 1, seen + 1 + len(events)))
    assert events[-1]["type"] == "done"
    assert {event["name"] for event in events if event["type"] == "output"} == {"latents", "audio", "frames"}
    assert engine.get(f"/v1/jobs/{job_id}")["state"] == "done"


async def test_outputs_of_a_finished_job_are_sent_again_on_resume(client: EngineClient, tmp_path: Path) -> None:
    job_id = new_id()
    async with client.connect(tmp_path) as channel:
        await channel.submit(QUICK, job_id=job_id)
        first = await events_until_final(channel, job_id)
        await channel.resume(job_id, 0)
        again = await events_until_final(channel, job_id)
    assert [event["seq"] for event in again] == [event["seq"] for event in first]
    async with client.connect(tmp_path) as channel:
        await channel.resume(job_id, 0)
        error = (await wait_for_event(channel, "error"))["error"]
    assert (error["code"], error["field"]) == ("no_result", "after")


async def test_waiting_jobs_know_their_place_and_a_full_queue_refuses(
    client: EngineClient, engine: EngineProcess, tmp_path: Path
) -> None:
    async with client.connect(tmp_path) as channel:
        await channel.submit(LONG, job_id=new_id())
        await wait_for_event(channel, "step")
        waiting = [new_id() for _ in range(4)]
        for position, job_id in enumerate(waiting, start=1):
            await channel.submit(QUICK, job_id=job_id)
            assert (await wait_for_event(channel, "queued"))["position"] == position
        await channel.submit(QUICK, job_id=new_id())
        assert (await wait_for_event(channel, "error"))["error"]["code"] == "queue_full"
        await channel.cancel(waiting[0])
        moved = [await wait_for_event(channel, "queued") for _ in range(3)]
        assert [(event["job_id"], event["position"]) for event in moved] == list(
            zip(waiting[1:], (1, 2, 3), strict=True)
        )
        assert engine.get("/v1/health")["status"] == "busy"
        assert engine.metric("queue_length") == 3
    assert await run_quickly(client, tmp_path)


async def test_a_cancelled_run_raises_job_cancelled(
    client: EngineClient, engine: EngineProcess, tmp_path: Path
) -> None:
    def delete_at_first_step(event: Any) -> None:
        if event["type"] == "step" and event["step"] == 1:
            engine.call("DELETE", f"/v1/jobs/{event['job_id']}")

    with pytest.raises(JobCancelled):
        await client.run(LONG, folder=tmp_path, on_event=delete_at_first_step)


@pytest.mark.parametrize("cut", [{"up": 3_000_000}, {"down": 3_000_000}, {"down": 700}], ids=str)
async def test_the_client_goes_on_after_a_cut_in_the_middle_of_a_transfer(
    engine: EngineProcess, tmp_path: Path, cut: dict[str, int]
) -> None:
    source = tmp_path / "source"
    write_blob(source, 9_000_000)
    async with cutting_proxy(engine.url, **cut) as proxy, EngineClient(proxy.url) as client:
        outcome = await client.run({"task": "echo"}, inputs={"data": source}, folder=tmp_path)
    # A cut upload takes one more: the engine is asked first whether it knows the job.
    assert 2 <= proxy.connections <= 3
    assert [path.read_bytes() for path in outcome.outputs["data"]] == [source.read_bytes()]
