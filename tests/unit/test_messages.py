"""Every message survives its own JSON, and a strict reader takes nothing else."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from engine.contract import media, messages, requests
from engine.contract.errors import RequestError

PART = messages.Part("latents", 12, "ab" * 32)
REQUESTS: list[requests.Request] = [
    requests.EncodePrompt("encode_prompt", "a fox", keyframes=(media.Keyframe(media.Media("first.png")),), frames=22),
    requests.EncodeMedia("encode_media", 64, 32, 22, (media.Guide(seconds=0.5, audio=media.Media("s", "audio")),)),
    requests.Denoise("denoise", 64, 32, 22, 3, 2**64 - 1),
    requests.Decode("decode", "mp4"),
    requests.Generate("generate", "a fox", seconds=5.0, width=64, height=32),
    requests.Echo("echo"),
]
TO_ENGINE = [
    messages.Submit(1, "id", {"task": "echo"}, 3, (PART, PART)),
    messages.Cancel("id"),
    messages.Resume(1, "id", 7),
    messages.Received("id", 7),
]
EVENTS: list[messages.Event] = [
    messages.Queued(2, "busy"),
    messages.Started(["denoise"], {"frames": 22}),
    messages.StageStarted("denoise", 0.1),
    messages.Step("denoise", 1, 4, 3.5, 0.2),
    messages.StageFinished("denoise", 2.0, 0.5),
    messages.StageFinished("encode_prompt", 0.0, 0.1, cached=True),
    messages.Warned("frames_snapped", "20 became 22"),
    messages.Output("latents", 0, True, "safetensors", 4, (PART,)),
    messages.Done(3.0, {"frames": 22}),
    messages.Failed({"code": "cancelled"}),
]


def test_the_samples_cover_every_message() -> None:
    assert {type(request) for request in REQUESTS} == set(requests.REQUESTS.values())
    assert {type(message) for message in TO_ENGINE} == set(messages.TO_ENGINE.values())
    assert {type(event) for event in EVENTS} == set(messages.TO_CLIENT.values())


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: request.task)
def test_a_request_parses_its_own_json(request_: requests.Request) -> None:
    assert requests.parse_request(json.loads(json.dumps(dataclasses.asdict(request_)))) == request_


@pytest.mark.parametrize("message", TO_ENGINE, ids=lambda message: type(message).__name__)
def test_a_message_to_the_engine_parses_its_own_json(message: Any) -> None:
    kind = next(kind for kind, cls in messages.TO_ENGINE.items() if cls is type(message))
    data = {"type": kind, **dataclasses.asdict(message)}
    assert messages.parse_to_engine(json.loads(json.dumps(data))) == message


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_parses_its_own_json(event: messages.Event) -> None:
    data = json.loads(json.dumps(messages.event_to_dict(event, job_id="id", seq=9)))
    assert (data["job_id"], data["seq"]) == ("id", 9)
    assert messages.event_from_dict(data) == event


def test_an_event_of_a_newer_engine_is_read_without_its_new_fields() -> None:
    data = {**messages.event_to_dict(EVENTS[0], job_id="id", seq=1), "since": "later"}
    assert messages.event_from_dict(data) == EVENTS[0]


@pytest.mark.parametrize("kind", [None, 1, "sumbit", ["submit"], {}])
def test_an_unknown_message_type_is_refused_with_the_known_ones(kind: Any) -> None:
    with pytest.raises(RequestError) as caught:
        messages.parse_to_engine({"type": kind, "job_id": "id"})
    assert (caught.value.code, caught.value.field) == ("unknown_message", "type")
    assert "submit" in str(caught.value.remedy)
    with pytest.raises(RequestError):
        messages.event_from_dict({"type": kind})


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"protocol": "1"}, "wrong_type", "protocol"),
        ({"job_id": 3}, "wrong_type", "job_id"),
        ({"request": "generate"}, "wrong_type", "request"),
        ({"parts": [{"name": "a", "bytes": 1}]}, "missing_field", "parts[0].sha256"),
        ({"parts": [{"name": "a", "bytes": -1.5, "sha256": ""}]}, "wrong_type", "parts[0].bytes"),
        ({"priority": 1}, "unknown_field", "priority"),
    ],
)
def test_a_bad_submit_is_refused(change: dict[str, Any], code: str, field: str) -> None:
    good = {"type": "submit", "protocol": 1, "job_id": "id", "request": {"task": "echo"}}
    assert isinstance(messages.parse_to_engine(good), messages.Submit)
    with pytest.raises(RequestError) as caught:
        messages.parse_to_engine({**good, **change})
    assert (caught.value.code, caught.value.field) == (code, field)


def test_every_task_has_its_stages_and_parts() -> None:
    assert {stage for request_ in REQUESTS for stage in requests.stages_of(request_)} == set(requests.STAGES)
