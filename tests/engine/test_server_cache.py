"""Results that are kept, on a real engine of two ranks: what is not made again, and that its bytes are the same."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from engine.checkpoint import open_checkpoint
from engine.client import EngineClient
from tests.support.engine_process import EngineProcess
from tests.support.jobs import LONG, QUICK, events_until_final, new_id, wait_for_event
from tests.support.media_files import encoded, gradient

pytestmark = pytest.mark.ranks

TENSORS = {**QUICK, "container": "tensors"}
SIZES = {name: QUICK[name] for name in ("width", "height", "frames", "steps")}
KEYFRAMES = [{"media": {"part": "a"}, "at": "first"}]


@pytest.fixture(scope="module")
def keeping(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """Return an engine that keeps results, as by default; its first rank encodes media alone, which changes no bit."""
    options = ("--media-encode", "leader")
    with EngineProcess(tiny_checkpoint, tmp_path_factory.mktemp("keeping"), options=options, media=True) as process:
        yield process


class User:
    """Runs requests and tells what the engine did for each."""

    def __init__(self, engine: EngineProcess, folder: Path, client: EngineClient) -> None:
        self.engine, self.folder, self.client = engine, folder, client
        self.events: list[Mapping[str, Any]] = []

    async def run(self, request: Mapping[str, Any], **parts: Path) -> dict[str, list[bytes]]:
        """Return the bytes of the outputs by name."""
        self.events = []
        outcome = await asyncio.wait_for(
            self.client.run(request, inputs=parts, folder=self.folder, on_event=self.events.append), 60
        )
        self.facts, self.outputs = outcome.facts, outcome.outputs
        return {name: [file.read_bytes() for file in files] for name, files in outcome.outputs.items()}

    def stages(self, *, cached: bool) -> list[str]:
        """Return the stages of the last job that were known, or that ran."""
        finished = [event for event in self.events if event["type"] == "stage_finished"]
        ran = [event["stage"] for event in self.events if event["type"] == "stage_started"]
        assert ran == [event["stage"] for event in finished if not event["cached"]]
        return [event["stage"] for event in finished if event["cached"] is cached]

    def counts(self) -> dict[str, float]:
        """Return what ``/metrics`` says of jobs and results."""
        text = self.engine.fetch("/metrics")[2].decode()
        found = re.findall(r'^h3_engine_(jobs_started_total|cache_\w+)(?:{stage="(\w+)"})? (\d+)$', text, re.MULTILINE)
        return {":".join(filter(None, (name, stage))): float(value) for name, stage, value in found}


@pytest.fixture
async def user(keeping: EngineProcess, tmp_path: Path) -> AsyncIterator[User]:
    async with EngineClient(keeping.url) as client:
        yield User(keeping, tmp_path, client)


@pytest.fixture
async def other(engine: EngineProcess, client: EngineClient, tmp_path: Path) -> User:
    """Return a user of the engine that keeps nothing."""
    return User(engine, tmp_path, client)


def test_a_rank_that_does_not_encode_holds_no_encoder(
    engine: EngineProcess, keeping: EngineProcess, tiny_checkpoint: Path
) -> None:
    together, alone = (found.get("/v1/info")["weight_bytes"] for found in (engine, keeping))
    encoder = open_checkpoint(tiny_checkpoint, stages=("encode_media",)).components["vae"].bytes
    assert alone[0] == together[0]
    # Parameters alone count, not the few stored buffers.
    assert 0.99 < (together[1] - alone[1]) / encoder <= 1


async def test_another_seed_encodes_no_prompt_and_changes_no_bit(user: User, other: User) -> None:
    await user.run({**TENSORS, "prompt": "one seed"})
    assert user.stages(cached=True) == []
    before = user.counts()
    second = {**TENSORS, "prompt": "one seed", "seed": 7, "steps": 2}
    made = await user.run(second)
    assert user.stages(cached=True) == ["encode_prompt"]
    assert user.stages(cached=False) == ["denoise", "decode_audio", "decode_video"]
    assert made == await other.run(second)
    assert other.stages(cached=True) == []
    after = user.counts()
    assert after["cache_hits_total:encode_prompt"] == before["cache_hits_total:encode_prompt"] + 1
    assert after["cache_misses_total:encode_prompt"] == before["cache_misses_total:encode_prompt"]
    assert after["jobs_started_total"] == before["jobs_started_total"] + 1
    progress = [event["progress"] for event in user.events if "progress" in event]
    assert progress == sorted(progress)
    assert progress[-1] == pytest.approx(1.0)


async def test_each_task_that_is_asked_again_wakes_no_rank(user: User, tmp_path: Path) -> None:
    conditioning = tmp_path / "conditioning"
    latents = tmp_path / "latents"
    tasks: list[tuple[dict[str, Any], dict[str, Path]]] = [
        ({"task": "encode_prompt", "prompt": "asked twice"}, {}),
        ({"task": "denoise", **SIZES, "num_outputs": 2}, {"conditioning": conditioning}),
        ({"task": "decode"}, {"latents": latents}),
        ({"task": "decode", "container": "mp4"}, {"latents": latents}),
    ]
    for request, parts in tasks:
        first = await user.run(request, **parts)
        facts, ran = user.facts, user.stages(cached=False)
        for name in first.keys() & {"conditioning", "latents"}:
            (tmp_path / name).write_bytes(first[name][0])
        before = user.counts()
        assert await user.run(request, **parts) == first
        after = user.counts()
        assert (user.facts, user.stages(cached=False)) == (facts, [])
        assert user.stages(cached=True) == list(dict.fromkeys(ran))
        assert after["jobs_started_total"] == before["jobs_started_total"]
        hits = {stage: after[f"cache_hits_total:{stage}"] - before[f"cache_hits_total:{stage}"] for stage in ran}
        assert set(hits.values()) == {1.0}, hits


async def test_an_answer_that_is_known_waits_for_nobody(user: User, tmp_path: Path) -> None:
    request = {"task": "encode_prompt", "prompt": "no waiting"}
    first = await user.run(request)
    running = new_id()
    async with user.client.connect(tmp_path) as channel:
        await channel.submit(LONG, job_id=running)
        await wait_for_event(channel, "step")
        assert await user.run(request) == first
        assert user.engine.get(f"/v1/jobs/{running}")["state"] == "running"


async def test_encodings_pass_between_tasks(user: User, other: User) -> None:
    await user.run({**QUICK, "prompt": "made by generate"})
    before = user.counts()["jobs_started_total"]
    alone = {"task": "encode_prompt", "prompt": "made by generate"}
    assert await user.run(alone) == await other.run(alone)
    assert (user.stages(cached=True), other.stages(cached=True)) == (["encode_prompt"], [])
    assert user.counts()["jobs_started_total"] == before
    assert user.facts == other.facts


async def test_another_prompt_encodes_no_picture_again(user: User, other: User, tmp_path: Path) -> None:
    picture = tmp_path / "picture.png"
    picture.write_bytes(encoded(gradient(64, 64)))
    request = {"task": "encode_prompt", "prompt": "it begins", "frames": 22, "keyframes": KEYFRAMES}
    first = await user.run(request, a=picture)
    assert await user.run(request, a=picture) == first
    assert user.stages(cached=True) == ["encode_prompt", "encode_media"]
    made = await user.run({**request, "prompt": "it goes on"}, a=picture)
    assert (user.stages(cached=True), user.stages(cached=False)) == (["encode_media"], ["encode_prompt"])
    assert made == await other.run({**request, "prompt": "it goes on"}, a=picture)
    whole = {**TENSORS, "prompt": "it goes on", "frames": 22, "keyframes": KEYFRAMES, "width": 64, "height": 64}
    made = await user.run(whole, a=picture)
    assert user.stages(cached=True) == ["encode_prompt", "encode_media"]
    assert made == await other.run(whole, a=picture)
    picture.write_bytes(encoded(255 - gradient(64, 64)))
    assert await user.run(request, a=picture) != first
    assert user.stages(cached=True) == []


async def test_a_source_is_encoded_once(user: User, tmp_path: Path) -> None:
    picture = tmp_path / "picture.png"
    picture.write_bytes(encoded(gradient(64, 64)))
    request = {"task": "encode_media", "source": {"media": {"part": "a"}}, "frames": 22}
    first = await user.run(request, a=picture)
    assert await user.run(request, a=picture) == first
    assert user.stages(cached=True) == ["encode_media"]
    await user.run({**request, "frames": 39}, a=picture)
    assert user.stages(cached=True) == []


async def test_a_job_that_failed_or_was_cancelled_leaves_nothing(user: User, tmp_path: Path) -> None:
    entries = user.counts()["cache_entries"]
    job_id = new_id()
    async with user.client.connect(tmp_path) as channel:
        await channel.submit({**LONG, "prompt": "cancelled"}, job_id=job_id)
        await wait_for_event(channel, "step")
        await channel.cancel(job_id)
        events = await asyncio.wait_for(events_until_final(channel, job_id), 20)
    assert events[-1]["error"]["code"] == "cancelled"
    assert user.counts()["cache_entries"] == entries
    await user.run({**QUICK, "prompt": "cancelled"})
    assert user.stages(cached=True) == []
