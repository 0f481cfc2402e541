"""What a caller can get wrong: a typed error each, no rank woken, and the engine serves the next job."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.client import EngineClient
from engine.contract.errors import RequestError
from engine.contract.framing import pack_slice
from tests.support.engine_process import EngineProcess
from tests.support.jobs import (
    QUICK,
    events_until_final,
    latents,
    new_id,
    send_parts,
    submit_message,
    tensors,
    wait_for_event,
    write,
)

pytestmark = pytest.mark.ranks

LATENTS = latents([1, 24, 2, 2, 2], [1, 32, 2, 8])


@pytest.fixture(autouse=True)
def _no_rank_is_woken(engine: EngineProcess) -> Iterator[None]:
    """Whatever a test of this file sends, exactly the jobs that it expects to run reach the ranks."""
    before = engine.metric("jobs_started_total")
    yield
    assert engine.metric("jobs_started_total") == before
    assert engine.get("/v1/health")["status"] == "ready"


def announce(name: str, blob: bytes, **changes: Any) -> dict[str, Any]:
    return {"name": name, "bytes": len(blob), "sha256": hashlib.sha256(blob).hexdigest(), **changes}


BAD_FIELDS: list[tuple[dict[str, Any], str, str]] = [
    ({"prompt": ""}, "prompt_empty", "request.prompt"),
    ({"prompt": " \n"}, "prompt_empty", "request.prompt"),
    ({"prompt": "word " * 200}, "prompt_too_long", "request.prompt"),
    ({"width": 848, "height": 480}, "bad_canvas", "request.width"),
    ({"width": 64, "height": 50}, "bad_canvas", "request.height"),
    ({"width": 32, "height": 160}, "bad_aspect", "request.width"),
    ({"frames": None, "seconds": 0}, "out_of_range", "request.seconds"),
    ({"frames": None, "seconds": -1.5}, "out_of_range", "request.seconds"),
    ({"frames": None, "seconds": float("nan")}, "out_of_range", "request.seconds"),
    ({"frames": None, "seconds": 30}, "out_of_range", "request.seconds"),
    ({"frames": 4}, "out_of_range", "request.frames"),
    ({"steps": 0}, "out_of_range", "request.steps"),
    ({"pad_seq_len": 63}, "out_of_range", "request.pad_seq_len"),
    ({"pad_seq_len": 0}, "out_of_range", "request.pad_seq_len"),
    ({"pad_seq_len": -64}, "out_of_range", "request.pad_seq_len"),
    ({"pad_seq_len": 2**20}, "out_of_range", "request.pad_seq_len"),
    ({"pad_seq_len": 64.0}, "wrong_type", "request.pad_seq_len"),
    ({"pad_seq_len": "64"}, "wrong_type", "request.pad_seq_len"),
    ({"steps": 2.5}, "wrong_type", "request.steps"),
    ({"steps": True}, "wrong_type", "request.steps"),
    ({"seed": -1}, "out_of_range", "request.seed"),
    ({"seed": 2**64}, "out_of_range", "request.seed"),
    ({"seed": "7"}, "wrong_type", "request.seed"),
    ({"sampler": "euler"}, "unknown_field", "request.sampler"),
    ({"task": "paint"}, "unknown_message", "request.task"),
]


@pytest.mark.parametrize(("changes", "code", "field"), BAD_FIELDS, ids=lambda value: str(value)[:40])
async def test_a_bad_field_is_refused_with_code_field_and_remedy(
    client: EngineClient, tmp_path: Path, changes: dict[str, Any], code: str, field: str
) -> None:
    with pytest.raises(RequestError) as caught:
        await client.run({**QUICK, **changes}, folder=tmp_path)
    assert (caught.value.code, caught.value.field) == (code, field)
    assert caught.value.remedy


@pytest.mark.parametrize(("changes", "code", "field"), BAD_FIELDS[:-1], ids=lambda value: str(value)[:40])
async def test_http_refuses_the_same_fields(
    engine: EngineProcess, changes: dict[str, Any], code: str, field: str
) -> None:
    body = {key: value for key, value in {**QUICK, **changes}.items() if key != "task"}
    status, answer = engine.call("POST", "/v1/generate", body)
    assert 400 <= status < 500
    assert (answer["error"]["code"], answer["error"]["field"]) == (code, field)


@pytest.mark.parametrize(
    ("blob", "code", "field"),
    [
        (latents([1, 4, 2, 2, 2], [1, 32, 2, 8]), "wrong_model", "parts.latents"),
        (latents([2, 24, 2, 2, 2], [2, 32, 2, 8]), "bad_tensor", "parts.latents"),
        (latents([1, 24, 2, 2, 2], [1, 32, 2, 9]), "bad_tensor", "parts.latents.audio"),
        (latents([1, 24, 2, 3, 2], [1, 32, 2, 8]), "bad_canvas", None),
        (tensors({"video": ("F32", [1, 24, 2, 2, 2], 768)}), "bad_tensor", "parts.latents.audio"),
        (LATENTS[:-1], "bad_tensor", "parts.latents"),
        (LATENTS.replace(b"[1, 24, 2", b"[1, 24, 9"), "bad_tensor", "parts.latents.video"),
        (b"\xff" * 64, "bad_tensor", "parts.latents"),
    ],
    ids=["4 channels", "batch 2", "audio length", "odd side", "not nested", "cut", "lying shape", "garbage"],
)
async def test_a_bad_latent_is_refused_by_its_header(
    client: EngineClient, tmp_path: Path, blob: bytes, code: str, field: str | None
) -> None:
    with pytest.raises(RequestError) as caught:
        await client.run({"task": "decode"}, inputs={"latents": write(tmp_path / "in", blob)}, folder=tmp_path)
    assert caught.value.code == code
    assert field is None or caught.value.field == field


async def test_conditioning_of_another_width_is_refused(client: EngineClient, tmp_path: Path) -> None:
    blob = tensors({"prompt_embeds": ("F32", [1, 3, 64], 768), "token_tags": ("I64", [3], 24)})
    request = {"task": "denoise", "width": 32, "height": 32, "frames": 5, "steps": 1}
    with pytest.raises(RequestError) as caught:
        await client.run(request, inputs={"conditioning": write(tmp_path / "in", blob)}, folder=tmp_path)
    assert caught.value.code == "wrong_model"
    assert caught.value.field == "parts.conditioning.prompt_embeds"


@pytest.mark.parametrize(
    ("task", "name", "error"),
    [
        ("decode", "frames", ("unknown_field", "parts.frames")),
        ("echo", "../../escape", ("out_of_range", "parts[1].name")),
        ("echo", "/tmp/escape", ("out_of_range", "parts[1].name")),
        ("echo", "..", ("out_of_range", "parts[1].name")),
        ("echo", "a\0b", ("out_of_range", "parts[1].name")),
    ],
)
async def test_a_part_of_a_bad_name_is_refused(
    client: EngineClient, tmp_path: Path, task: str, name: str, error: tuple[str, str]
) -> None:
    inputs = {"latents": write(tmp_path / "in", LATENTS), name: write(tmp_path / "more", LATENTS)}
    with pytest.raises(RequestError) as caught:
        await client.run({"task": task}, inputs=inputs, folder=tmp_path)
    assert (caught.value.code, caught.value.field) == error


@pytest.mark.parametrize(
    ("parts", "code", "field"),
    [
        ({}, "missing_field", "request.keyframes[0].media.part"),
        ({"a": b""}, "bad_media", "request.keyframes[0].media"),
        ({"b": LATENTS}, "missing_field", "request.keyframes[0].media.part"),
        ({"a": b"x", "b": LATENTS}, "unknown_field", "parts.b"),
        ({"a": b"x", "b": b"y"}, "out_of_range", "parts[1].bytes"),
    ],
    ids=["none", "empty", "another", "one more", "one more, no safetensors"],
)
async def test_parts_that_are_not_those_the_request_names_are_refused(
    client: EngineClient, tmp_path: Path, parts: dict[str, bytes], code: str, field: str
) -> None:
    inputs = {name: write(tmp_path / name, blob) for name, blob in parts.items()}
    request = {**QUICK, "keyframes": [{"media": {"part": "a"}}]}
    with pytest.raises(RequestError) as caught:
        await client.run(request, inputs=inputs, folder=tmp_path)
    assert (caught.value.code, caught.value.field) == (code, field)


async def test_a_wrong_checksum_is_refused(client: EngineClient, tmp_path: Path) -> None:
    async with client.connect(tmp_path) as channel:
        announced = [announce("latents", LATENTS, sha256="0" * 64)]
        job_id = await send_parts(channel, {"task": "decode"}, {"latents": LATENTS}, announced)
        error = (await events_until_final(channel, job_id))[-1]["error"]
    assert (error["code"], error["field"]) == ("bad_checksum", "parts.latents")


async def test_a_body_over_the_limit_is_refused_before_its_bytes_are_sent(client: EngineClient, tmp_path: Path) -> None:
    async with client.connect(tmp_path) as channel:
        announced = [announce("latents", LATENTS, bytes=4_000_000_001)]
        job_id = await send_parts(channel, {"task": "decode"}, {}, announced)
        error = (await events_until_final(channel, job_id))[-1]["error"]
    assert (error["code"], error["field"], error["value"]) == ("body_too_large", "parts", 4_000_000_001)
    assert "--max-body-bytes" in error["remedy"]


@pytest.mark.parametrize(
    ("changes", "code", "field"),
    [
        ({"type": "sumbit"}, "unknown_message", "type"),
        ({"protocol": 2}, "protocol_mismatch", "protocol"),
        ({"protocol": 99, "novelty": 1}, "protocol_mismatch", "protocol"),
        ({"novelty": 1}, "unknown_field", "novelty"),
        ({"job_id": "../../etc"}, "out_of_range", "job_id"),
        ({"job_id": 7}, "wrong_type", "job_id"),
        ({"request": []}, "wrong_type", "request"),
        ({"request": {}}, "missing_field", "request.task"),
        (
            {"parts": [{"name": "latents", "bytes": -5, "sha256": "0" * 64}], "message": 1},
            "out_of_range",
            "parts[0].bytes",
        ),
        (
            {"parts": [{"name": "latents", "bytes": 50, "sha256": "zz"}], "message": 1},
            "out_of_range",
            "parts[0].sha256",
        ),
        ({"parts": [announce("a", LATENTS), announce("a", LATENTS)], "message": 1}, "out_of_range", "parts[1].name"),
        ({"parts": [announce("latents", LATENTS)]}, "out_of_range", "message"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_a_bad_message_is_answered_and_the_connection_goes_on(
    client: EngineClient, tmp_path: Path, changes: dict[str, Any], code: str, field: str
) -> None:
    async with client.connect(tmp_path) as channel:
        await channel.socket.send_json({**submit_message(QUICK), **changes})
        event = await wait_for_event(channel, "error")
        await channel.socket.send_str("{broken")
        broken = await wait_for_event(channel, "error")
    assert (event["error"]["code"], event["error"]["field"], event["seq"]) == (code, field, 0)
    assert broken["error"]["code"] == "invalid_json"


async def test_frames_that_nothing_announced_are_answered(client: EngineClient, tmp_path: Path) -> None:
    async with client.connect(tmp_path) as channel:
        await channel.socket.send_bytes(b"short")
        first = await wait_for_event(channel, "error")
        await channel.socket.send_bytes(pack_slice(9, 0, 0, b"data"))
        second = await wait_for_event(channel, "error")
    assert (first["error"]["code"], first["error"]["field"]) == ("bad_tensor", "frame")
    assert (second["error"]["field"], second["error"]["value"]) == ("frame.message", 9)


async def test_a_slice_out_of_order_ends_its_upload_alone(client: EngineClient, tmp_path: Path) -> None:
    async with client.connect(tmp_path) as channel:
        job_id = await send_parts(channel, {"task": "decode"}, {}, [announce("latents", LATENTS)])
        await channel.socket.send_bytes(pack_slice(1, 0, 100, LATENTS[100:]))
        error = (await events_until_final(channel, job_id))[-1]["error"]
        await channel.socket.send_bytes(pack_slice(1, 0, 0, LATENTS))
        await channel.socket.send_json({"type": "cancel", "job_id": job_id})
        unknown = await wait_for_event(channel, "error")
    assert (error["code"], error["value"]) == ("bad_tensor", 100)
    assert unknown["error"]["code"] == "unknown_job"


async def test_cancelling_an_upload_ends_it(client: EngineClient, tmp_path: Path) -> None:
    async with client.connect(tmp_path) as channel:
        job_id = await send_parts(channel, {"task": "decode"}, {}, [announce("latents", LATENTS)])
        await channel.cancel(job_id)
        error = (await events_until_final(channel, job_id))[-1]["error"]
    assert error["code"] == "cancelled"


def test_a_large_json_body_is_refused(engine: EngineProcess) -> None:
    status, answer = engine.call("POST", "/v1/generate", b'{"prompt": "' + b"a" * 2_000_000 + b'"}')
    assert (status, answer["error"]["code"]) == (413, "body_too_large")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/nothing", 404, "unknown_message"),
        ("PUT", "/v1/jobs", 405, "unknown_message"),
        ("GET", "/v1/jobs/4cf0d3d2-0c2e-4d2c-8a0f-1d8d3b9b0a55", 404, "unknown_job"),
        ("DELETE", "/v1/jobs/4cf0d3d2-0c2e-4d2c-8a0f-1d8d3b9b0a55", 404, "unknown_job"),
        ("GET", "/v1/jobs/4cf0d3d2-0c2e-4d2c-8a0f-1d8d3b9b0a55/result", 404, "unknown_job"),
    ],
)
def test_unknown_routes_and_jobs_are_json_errors(
    engine: EngineProcess, method: str, path: str, status: int, code: str
) -> None:
    got, answer = engine.call(method, path)
    assert (got, answer["error"]["code"]) == (status, code)


@pytest.mark.parametrize("body", [b"", b"[1]", b"{", b"\xff\xfe", b"[" * 100_000])
def test_a_body_that_is_no_object_is_refused(engine: EngineProcess, body: bytes) -> None:
    status, answer = engine.call("POST", "/v1/generate", body)
    assert (status, answer["error"]["code"]) == (400, "invalid_json")


class TestAValidJobAfterBadOnes:
    """These tests do run a job; it is part of what they expect."""

    @pytest.fixture(autouse=True)
    def _no_rank_is_woken(self) -> None:
        """Replace the check of the module."""

    async def test_two_invalid_requests_at_once_then_a_valid_one_give_two_errors_and_one_result(
        self, client: EngineClient, tmp_path: Path
    ) -> None:
        async def fail(changes: dict[str, Any]) -> str:
            with pytest.raises(RequestError) as caught:
                await client.run({**QUICK, **changes}, folder=tmp_path)
            return caught.value.code

        codes = await asyncio.gather(fail({"steps": 0}), fail({"prompt": ""}))
        outcome = await client.run(QUICK, folder=tmp_path)
        assert codes == ["out_of_range", "prompt_empty"]
        assert outcome.outputs["video"][0].stat().st_size > 500

    async def test_a_job_id_is_used_once(self, client: EngineClient, tmp_path: Path) -> None:
        job_id = new_id()
        async with client.connect(tmp_path) as channel:
            await channel.submit(QUICK, job_id=job_id)
            assert (await events_until_final(channel, job_id))[-1]["type"] == "done"
            await channel.socket.send_str(json.dumps(submit_message(QUICK, job_id=job_id)))
            again = await wait_for_event(channel, "error")
        assert again["error"]["code"] == "duplicate_job"
