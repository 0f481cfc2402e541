"""Pictures, clips and sounds sent to a real engine: over HTTP as a form, over the websocket as parts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from engine.client import EngineClient
from engine.contract.errors import JobCancelled
from tests.support.engine_process import EngineProcess
from tests.support.forms import CONTENT_TYPE, finished, form, post_form
from tests.support.jobs import QUICK, events_until_final, new_id, tensors, wait_for_event, write
from tests.support.media_files import encoded, gradient, noise, tone, write_clip, write_sound
from tests.support.processes import command_of
from tests.support.video import video_facts

pytestmark = pytest.mark.ranks

BODY = {name: value for name, value in QUICK.items() if name != "task"}
OPEN = {name: value for name, value in BODY.items() if name not in ("width", "height")}
"""Without a canvas."""
WIDE, TALL = encoded(gradient(64, 128)), encoded(gradient(96, 64))


def first(part: str = "a") -> dict[str, Any]:
    return {"media": {"part": part}, "at": "first"}


def last(part: str = "b") -> dict[str, Any]:
    return {"media": {"part": part}, "at": "last"}


def references(**kinds: str) -> list[dict[str, Any]]:
    return [{"kind": kind, "media": {"part": part}} for part, kind in kinds.items()]


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return files: videos of 2 s and 1 s with sound, a sound of 2 s."""
    folder = tmp_path_factory.mktemp("clips")
    video = write_clip(folder / "v.mp4", [gradient(64, 64)] * 48, sound=tone(2.0, 32_000, 2))
    second = write_clip(folder / "short.mp4", [gradient(64, 64)] * 24, sound=tone(1.0, 32_000, 2))
    sound = write_sound(folder / "s.wav", tone(2.0, 44_100), 44_100)
    return {"video": video.read_bytes(), "second": second.read_bytes(), "sound": sound.read_bytes()}


@pytest.fixture(autouse=True)
def _nothing_is_left(engine: EngineProcess) -> Iterator[None]:
    """After each test the engine is idle, and no folder of what was sent or read is left."""
    yield
    assert engine.get("/v1/health")["status"] == "ready"
    folder = Path(run_dir(engine))
    asyncio.run(gone(folder))


def run_dir(engine: EngineProcess) -> str:
    """Return the engine's run folder."""
    command = next(process.cmdline() for process in engine.descendants() if "--run-dir" in process.cmdline())
    return command[command.index("--run-dir") + 1]


async def gone(folder: Path) -> None:
    async with asyncio.timeout(10):
        while any(folder.glob("upload-*")) or any(folder.glob("media-*")):
            await asyncio.sleep(0.05)


# --- over HTTP ----------------------------------------------------------------------------------------------------


def test_a_form_with_a_first_and_a_last_frame_makes_a_video_of_the_first_ones_shape(
    engine: EngineProcess, tmp_path: Path
) -> None:
    status, job = post_form(engine, {**OPEN, "keyframes": [last(), first()]}, a=WIDE, b=TALL)
    assert (status, job["state"]) == (202, "queued")
    done = finished(engine, job["job_id"])
    assert (done["state"], done["error"]) == ("done", None)
    path = write(tmp_path / "out.mp4", engine.fetch(done["result"])[2])
    facts = video_facts(path)
    assert (facts.width, facts.height, facts.frames) == (done["facts"]["width"], done["facts"]["height"], 5)
    assert facts.width == 2 * facts.height


def test_references_of_all_kinds_are_told_with_their_sizes_and_rows(
    engine: EngineProcess, clips: dict[str, bytes]
) -> None:
    body = {**BODY, "frames": 56, "references": references(face="image", clip="video", voice="audio")}
    _, job = post_form(engine, body, face=TALL, clip=clips["video"], voice=clips["sound"])
    done = finished(engine, job["job_id"])
    assert (done["state"], done["error"]) == ("done", None)
    face, clip, voice = done["facts"]["references"]
    assert (face["kind"], face["width"], face["height"], face["rows"]) == ("image", 64, 96, 6)
    assert (clip["kind"], voice["audio_latents"]) == ("video_audio", 80)
    assert 80 <= clip["audio_latents"] <= 82  # AAC fills its last packet
    assert 0 < face["share"] < voice["share"] < clip["share"] < 1


def test_guides_sit_where_their_places_say(engine: EngineProcess, clips: dict[str, bytes]) -> None:
    guides = [
        {"media": {"part": "a"}, "seconds": 0.5},
        {"media": {"part": "v"}, "frame": -22},
        {"audio": {"part": "s"}, "frame": 0},
    ]
    parts = {"a": WIDE, "v": clips["second"], "s": clips["sound"]}
    _, job = post_form(engine, {**BODY, "frames": 39, "guides": guides}, **parts)
    done = finished(engine, job["job_id"])
    assert (done["state"], done["error"]) == ("done", None)
    assert [condition["frame"] for condition in done["facts"]["conditions"]] == [12, 17, 0]
    guides[1]["frame"] = -5
    _, job = post_form(engine, {**BODY, "frames": 39, "guides": guides}, **parts)
    error = finished(engine, job["job_id"])["error"]
    assert (error["code"], error["field"]) == ("media_limit", "request.guides[1].media")


def test_several_outputs_are_several_results(engine: EngineProcess) -> None:
    status, job = engine.call("POST", "/v1/generate", {**BODY, "num_outputs": 2, "seed": 5})
    assert status == 202
    done = finished(engine, job["job_id"])
    assert done["results"] == [f"/v1/jobs/{job['job_id']}/result?output={number}" for number in (0, 1)]
    videos = [engine.fetch(path)[2] for path in done["results"]]
    assert engine.fetch(done["result"])[2] == videos[0] != videos[1]
    _, alone = engine.call("POST", "/v1/generate", {**BODY, "seed": 6})
    assert engine.fetch(finished(engine, alone["job_id"])["result"])[2] == videos[1]
    for number, code in (("2", 400), ("-1", 400), ("x", 400), ("9" * 30, 400)):
        status, answer = engine.call("GET", f"/v1/jobs/{job['job_id']}/result?output={number}")
        assert (status, answer["error"]["code"], answer["error"]["field"]) == (code, "out_of_range", "output")


ONE = form({**OPEN, "keyframes": [first()]}, {"a": WIDE})


@pytest.mark.parametrize(
    ("body", "status", "code", "field"),
    [
        (form(None, {"a": WIDE}), 400, "missing_field", "request"),
        (form(b"{", {"a": WIDE}), 400, "invalid_json", "request"),
        (form(b"[]", {}), 400, "invalid_json", "request"),
        (form({"keyframes": [first()]}, {"a": WIDE}), 400, "missing_field", "request.prompt"),
        (form({**OPEN, "keyframes": [first()]}, {}), 400, "missing_field", "request.keyframes[0].media.part"),
        (form(BODY, {"a": WIDE}), 400, "unknown_field", "parts.a"),
        (form({**OPEN, "keyframes": [first()]}, {"a": WIDE, "b": TALL}), 400, "unknown_field", "parts.b"),
        (form({**OPEN, "keyframes": [first()]}, [("a", WIDE), ("a", TALL)]), 400, "out_of_range", "body"),
        (form(BODY, {"request": b"{}"}), 400, "out_of_range", "body"),
        (form({**OPEN, "keyframes": [first("../a")]}, {"../a": WIDE}), 400, "out_of_range", "body"),
        (form({**OPEN, "keyframes": [first()]}, {"a": b""}), 400, "bad_media", "request.keyframes[0].media"),
        (form({**OPEN, "keyframes": [first()] * 2}, {"a": WIDE}), 400, "media_limit", "request.keyframes[0].at"),
        (
            form({**BODY, "guides": [{"media": {"part": "a", "format": "frames"}}]}, {"a": WIDE}),
            400,
            "bad_tensor",
            "parts.a",
        ),
        (form({**BODY, "padding": "x" * 1_100_000}, {}), 413, "body_too_large", "request"),
        (form(BODY, {f"p{n}": b"x" for n in range(161)}), 400, "out_of_range", "body"),
        (ONE[: len(ONE) // 2], 400, None, None),
        (ONE.replace(b"--a-boundary", b"--b-boundary"), 400, None, None),
        (b"", 400, None, None),
        (b"\xff" * 1000, 400, None, None),
    ],
)
def test_a_form_that_is_wrong_is_refused(
    engine: EngineProcess, body: bytes, status: int, code: str | None, field: str | None
) -> None:
    before = engine.metric("jobs_submitted_total")
    got, answer = engine.call("POST", "/v1/generate", body, CONTENT_TYPE)
    assert got == status, answer
    assert code is None or (answer["error"]["code"], answer["error"]["field"]) == (code, field)
    assert answer["error"]["remedy"]
    assert engine.metric("jobs_submitted_total") == before


def test_decoded_frames_and_waveforms_come_as_safetensors(engine: EngineProcess) -> None:
    frames = tensors({"frames": ("U8", [5, 32, 32, 3], 5 * 32 * 32 * 3)})
    sound = tensors({"waveform": ("F32", [1, 16_000], 64_000)})
    guide = {"media": {"part": "v", "format": "frames"}, "audio": {"part": "s", "format": "audio"}}
    _, job = post_form(engine, {**BODY, "frames": 22, "guides": [guide]}, v=frames, s=sound)
    done = finished(engine, job["job_id"])
    assert (done["state"], done["error"]) == ("done", None)


# --- over the websocket -------------------------------------------------------------------------------------------


async def test_encoding_and_denoising_apart_make_what_generating_makes(client: EngineClient, tmp_path: Path) -> None:
    parts = {"a": write(tmp_path / "a", WIDE), "b": write(tmp_path / "b", TALL)}
    keyframes = [first(), last()]
    size = {"width": 64, "height": 32, "frames": 22}
    request = {"task": "encode_prompt", "prompt": "a boat", **size, "keyframes": keyframes}
    encoded_prompt = await client.run(request, inputs=parts, folder=tmp_path)
    denoise = {"task": "denoise", **size, "steps": 1, "conditions": encoded_prompt.facts["conditions"]}
    conditioning = encoded_prompt.outputs["conditioning"][0]
    made = await client.run(denoise, inputs={"conditioning": conditioning}, folder=tmp_path)
    whole = await client.run({**QUICK, **size, "keyframes": keyframes}, inputs=parts, folder=tmp_path)
    assert made.outputs["latents"][0].read_bytes() == whole.outputs["latents"][0].read_bytes()
    assert made.facts["rows"] > 11 * 2 * 2


async def test_guides_are_encoded_alone_and_added_to_a_prompt(
    client: EngineClient, tmp_path: Path, clips: dict[str, bytes]
) -> None:
    parts = {"v": write(tmp_path / "v", clips["second"])}
    request = {"task": "encode_media", "width": 64, "height": 32, "frames": 39, "guides": [{"media": {"part": "v"}}]}
    outcome = await client.run(request, inputs=parts, folder=tmp_path)
    held = load_file(outcome.outputs["conditioning"][0])
    assert held["conditions.0.video"].shape == (1, 24, 7, 2, 4)
    assert held["conditions.0.audio"].shape[:3] == (1, 32, 2)
    assert outcome.facts["conditions"] == [{"frame": 0}]


async def test_a_source_becomes_latents(client: EngineClient, tmp_path: Path, clips: dict[str, bytes]) -> None:
    parts = {"v": write(tmp_path / "v", clips["second"])}
    request = {"task": "encode_media", "source": {"media": {"part": "v"}}}
    outcome = await client.run(request, inputs=parts, folder=tmp_path)
    latents = load_file(outcome.outputs["latents"][0])
    assert latents["video"].shape[3:] == (4, 4)
    decoded = await client.run({"task": "decode"}, inputs={"latents": outcome.outputs["latents"][0]}, folder=tmp_path)
    assert decoded.facts["frames"] == outcome.facts["frames"]


async def test_several_outputs_carry_their_numbers(client: EngineClient, tmp_path: Path) -> None:
    request = {**QUICK, "num_outputs": 2, "container": "tensors"}
    outcome = await client.run(request, folder=tmp_path)
    assert sorted(outcome.by_output) == [0, 1]
    assert all({"latents", "frames", "audio"} == set(made) for made in outcome.by_output.values())
    assert len(outcome.outputs["latents"]) == 2


async def test_cancelling_while_media_are_read_ends_the_reading(
    engine: EngineProcess, client: EngineClient, tmp_path: Path
) -> None:
    # Large enough to be read for a while.
    clip = write_clip(
        tmp_path / "long.mp4", [noise(256, 256, seed=n % 3) for n in range(300)], options={"preset": "ultrafast"}
    )
    request = {**QUICK, "width": 512, "height": 512, "frames": 362, "guides": [{"media": {"part": "v"}}]}
    job_id = new_id()
    async with client.connect(tmp_path) as channel:
        await channel.submit(request, job_id=job_id, inputs={"v": clip})
        queued = await wait_for_event(channel, "queued")
        assert (queued["position"], queued["reason"]) == (1, "media")
        await channel.cancel(job_id)
        events = await events_until_final(channel, job_id)
    assert events[-1]["error"]["code"] == JobCancelled().code
    assert not any("engine.media" in command_of(process) for process in engine.descendants())


# --- media that nobody should send --------------------------------------------------------------------------------


def test_malformed_media_end_typed_and_the_engine_serves_the_next_job(
    engine: EngineProcess, tmp_path: Path, clips: dict[str, bytes]
) -> None:
    long = write_clip(
        tmp_path / "long.mp4", [gradient(32, 32)] * 300, rate=1, sound=None, options={"preset": "ultrafast"}
    ).read_bytes()
    one_frame = write_clip(tmp_path / "one.mp4", [gradient(64, 64)]).read_bytes()
    brief = write_sound(tmp_path / "brief.wav", tone(1.0, 8_000), 8_000).read_bytes()
    image, video, audio = ({"references": references(a=kind)} for kind in ("image", "video", "audio"))
    audio["references"] += references(b="image")
    cases: list[tuple[str, dict[str, Any], bytes, set[str]]] = [
        ("a truncated MP4", video, clips["video"][: len(clips["video"]) // 3], {"bad_media", "media_limit"}),
        ("garbage", image, b"\x00\xff" * 500, {"bad_media"}),
        ("text", video, b"hello", {"bad_media"}),
        ("a cut PNG", image, WIDE[:-100], {"bad_media"}),
        ("one frame as a clip", video, one_frame, {"media_limit"}),
        ("a picture as a clip", video, WIDE, {"media_limit", "bad_media"}),
        ("a sound as a picture", image, clips["sound"], {"bad_media"}),
        ("a picture as a sound", audio, WIDE, {"bad_media"}),
        ("one second of 8 kHz", audio, brief, {"media_limit"}),
        ("five minutes", video, long, {"media_limit"}),
        ("five minutes as a guide", {"guides": [{"media": {"part": "a"}}]}, long, {"media_limit"}),
    ]
    started = engine.metric("jobs_started_total")
    for name, fields, blob, codes in cases:
        parts = {"a": blob, **({"b": TALL} if fields is audio else {})}
        status, job = post_form(engine, {**BODY, "frames": 56, **fields}, **parts)
        assert status == 202, (name, job)
        error = finished(engine, job["job_id"])["error"]
        assert error is not None, name
        assert error["code"] in codes, (name, error)
        assert (error["kind"], bool(error["remedy"])) == ("RequestError", True), (name, error)
        assert error["field"].startswith("request."), (name, error)
    assert engine.metric("jobs_started_total") == started
    _, job = post_form(engine, {**OPEN, "keyframes": [first()]}, a=WIDE)
    assert finished(engine, job["job_id"])["state"] == "done"


def test_two_bad_forms_at_once_then_a_good_one_give_two_errors_and_one_result(engine: EngineProcess) -> None:
    jobs = [post_form(engine, {**OPEN, "keyframes": [first()]}, a=blob)[1] for blob in (b"bad", WIDE[:200], WIDE)]
    over = [finished(engine, job["job_id"]) for job in jobs]
    assert [job["state"] for job in over] == ["error", "error", "done"]
    assert [job["error"]["field"] for job in over[:2]] == ["request.keyframes[0].media"] * 2
