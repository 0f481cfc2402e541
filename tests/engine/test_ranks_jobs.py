"""Jobs on two real ranks: results, cancelling, and errors after which the next job runs."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import av
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from engine.backlog import CHUNKS_AHEAD
from engine.contract.latent_file import read_facts
from tests.support.ranks import ROOT, Ended, Fleet, Message, descendants

pytestmark = pytest.mark.ranks

SMALL: dict[str, Any] = {
    "task": "generate",
    "prompt": "a red kite",
    "width": 64,
    "height": 64,
    "frames": 22,
    "steps": 2,
}


def assert_serves_the_next_job(fleet: Fleet) -> None:
    ended = fleet.run(SMALL)
    assert ended.error is None
    assert ended.facts["frames"] == 22


def test_generate_gives_the_latents_first_and_the_movie_piece_by_piece(fleet: Fleet) -> None:
    ended = fleet.run(SMALL)
    assert ended.error is None
    given = [(m["op"], m["name"]) for m in ended.messages if m["op"] in ("output", "movie")]
    assert given == [
        ("output", "latents"),
        ("movie", "audio"),
        ("movie", "frames"),
        ("output", "preview"),
        ("movie", "finish"),
    ]
    pieces = [{m["name"]: m["path"] or True} for m in ended.messages if m["op"] == "movie"]
    path = fleet.folder / "movie.mp4"
    said = run_mux(path, [json.dumps(piece) for piece in pieces])
    assert said == [{"taken": "frames"}, {"done": True}]
    assert not any(Path(piece[name]).exists() for piece in pieces for name in piece if piece[name] is not True)
    with av.open(str(path)) as container:
        assert sum(1 for _ in container.decode(video=0)) == 22
        assert container.streams.audio[0].rate == 32000
    assert ended.facts == {"frames": 22, "width": 64, "height": 64, "audio_samples": 37 * 800, "sample_rate": 32000}


def run_mux(path: Path, lines: list[str]) -> list[Any]:
    """Run the program that writes an MP4 on ``lines``; return what it says."""
    command = [sys.executable, "-m", "engine.mux_process", str(path)]
    ended = subprocess.run(
        command, input="\n".join(lines), cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    return [json.loads(line) for line in ended.stdout.splitlines()]


def test_a_sampled_latent_says_what_it_is(fleet: Fleet) -> None:
    path = fleet.run({**SMALL, "seed": 7}).outputs("latents")[0]
    with safe_open(path, "pt") as file:
        facts = read_facts(file.metadata())
    assert [facts[name] for name in ("frames", "seconds", "fps", "seed")] == [22, 0.917, 24, 7]


def test_rank_0_waits_for_those_who_take_the_frames_and_a_cancellation_ends_the_wait(fleet: Fleet) -> None:
    latents = {"video": torch.randn(1, 24, 37, 4, 4), "audio": torch.randn(1, 32, 2, 207)}
    path = fleet.folder / "latents.safetensors"
    save_file(latents, path)
    job_id = fleet.start({"task": "decode"}, {"latents": path})
    chunks = 0
    while True:
        try:
            message = fleet.next(timeout=3 if chunks > CHUNKS_AHEAD else 60)
        except AssertionError:
            break
        chunks += message["op"] == "output" and message["name"] == "frames"
    assert CHUNKS_AHEAD < chunks <= CHUNKS_AHEAD + 2  # a round of two ranks ends two chunks of one tile
    fleet.send({"op": "taken", "job_id": job_id})
    fleet.send({"op": "taken", "job_id": job_id})
    assert fleet.wait_for("output", timeout=10)["index"] == chunks
    fleet.send({"op": "cancel", "job_id": job_id})
    ended = fleet.finish(job_id, timeout=10)
    assert ended.error is not None
    assert ended.error["code"] == "cancelled"
    assert_serves_the_next_job(fleet)


def test_progress_never_goes_back_and_ends_at_one(fleet: Fleet) -> None:
    ended = fleet.run(SMALL)
    progress = [m["event"]["progress"] for m in ended.messages if m["op"] == "event" and "progress" in m["event"]]
    assert progress == sorted(progress)
    assert progress[-1] == pytest.approx(1.0)
    assert [e["step"] for e in ended.events("step") if e["stage"] == "denoise"] == [1, 2]
    assert [e["stage"] for e in ended.events("stage_finished")] == [
        "encode_prompt",
        "denoise",
        "decode_audio",
        "decode_video",
    ]


def test_a_job_tells_what_each_stage_took_on_both_ranks(fleet: Fleet) -> None:
    memory = fleet.run(SMALL).messages[-1]["memory"]
    assert memory["kind"] == "process"
    assert list(memory["stages"]) == ["encode_prompt", "denoise", "decode_audio", "decode_video"]
    # A process that has loaded torch and a model has a hundred megabytes at least.
    assert all(len(ranks) == 2 and min(ranks) > 100_000_000 for ranks in memory["stages"].values())


def test_the_stages_one_by_one_give_the_same_as_generate(fleet: Fleet) -> None:
    whole = fleet.run({**SMALL, "container": "tensors", "frames": 39})
    encoded = fleet.run({"task": "encode_prompt", "prompt": SMALL["prompt"]})
    sizes = {key: SMALL[key] for key in ("width", "height", "steps")}
    denoised = fleet.run(
        {"task": "denoise", "frames": 39, **sizes}, {"conditioning": encoded.outputs("conditioning")[0]}
    )
    decoded = fleet.run({"task": "decode"}, {"latents": denoised.outputs("latents")[0]})
    pieces = decoded.outputs("frames")
    assert len(pieces) == 2
    frames = torch.cat([load_file(piece)["frames"] for piece in pieces])
    assert frames.shape == (39, 64, 64, 3)
    assert frames.dtype == torch.uint8
    assert torch.equal(frames, torch.cat([load_file(piece)["frames"] for piece in whole.outputs("frames")]))
    assert torch.equal(load_file(decoded.outputs("audio")[0])["audio"], load_file(whole.outputs("audio")[0])["audio"])
    lasts = [m["last"] for m in decoded.messages if m["op"] == "output" and m["name"] == "frames"]
    assert lasts == [False, True]


@pytest.mark.parametrize(("name", "value"), [("token_tags", 2), ("token_tags", -1), ("prompt_embeds", float("nan"))])
def test_conditioning_with_values_that_no_model_reads_is_the_callers_fault(
    fleet: Fleet, name: str, value: float
) -> None:
    tensors = load_file(fleet.run({"task": "encode_prompt", "prompt": "a red kite"}).outputs("conditioning")[0])
    tensors[name].view(-1)[1] = value
    path = fleet.folder / "conditioning.safetensors"
    save_file(tensors, path)
    sizes = {key: SMALL[key] for key in ("width", "height", "frames", "steps")}
    ended = fleet.run({"task": "denoise", **sizes}, {"conditioning": path})
    assert ended.error is not None
    assert (ended.error["code"], ended.error["kind"]) == ("bad_tensor", "RequestError")
    assert ended.error["field"] == f"parts.conditioning.{name}"
    assert ended.error["remedy"]
    assert_serves_the_next_job(fleet)


@pytest.mark.parametrize("container", ["mp4", "tensors"])
def test_latents_that_are_no_numbers_are_decoded_with_a_warning(fleet: Fleet, container: str) -> None:
    latents = {"video": torch.randn(1, 24, 2, 4, 4), "audio": torch.randn(1, 32, 2, 8)}
    for tensor in latents.values():
        tensor.view(-1)[3] = float("nan")
    path = fleet.folder / "latents.safetensors"
    save_file(latents, path)
    ended = fleet.run({"task": "decode", "container": container, "frame_dtype": "float32"}, {"latents": path})
    assert ended.error is None
    warnings = [event["message"] for event in ended.events("warning") if event["code"] == "nan_result"]
    assert [message.split(" hold")[0] for message in warnings] == ["The sound", "The pictures"]
    if container == "tensors":
        for name in ("frames", "audio"):
            assert load_file(ended.outputs(name)[0])[name].isfinite().all()


def test_echo_gives_every_part_back_as_it_is(fleet: Fleet) -> None:
    tensors = {"x": torch.randn(1000, 1000), "flag": torch.tensor(True), "none": torch.zeros(0)}
    path = fleet.folder / "input.safetensors"
    save_file(tensors, path)
    ended = fleet.run({"task": "echo"}, {"first": path, "second": path})
    assert ended.error is None
    for name in ("first", "second"):
        assert ended.outputs(name)[0].read_bytes() == path.read_bytes()


def test_cancel_stops_within_a_step_and_the_next_job_runs(fleet: Fleet) -> None:
    def cancel_at_second_step(message: Message) -> None:
        if message["op"] == "event" and message["event"].get("step") == 2 and message["event"]["stage"] == "denoise":
            fleet.send({"op": "cancel", "job_id": message["job_id"]})

    with fleet.fault(module="MiniMaxH3Transformer3DModel", do="sleep", seconds=0.2):
        ended = fleet.finish(fleet.start({**SMALL, "steps": 20}), on_message=cancel_at_second_step)
    assert ended.error is not None
    assert ended.error["code"] == "cancelled"
    assert max(event["step"] for event in ended.events("step")) <= 4
    assert not ended.outputs("latents")
    assert_serves_the_next_job(fleet)


def test_cancel_right_after_the_start_cancels(fleet: Fleet) -> None:
    job_id = fleet.start({**SMALL, "steps": 500})
    fleet.send({"op": "cancel", "job_id": job_id})
    ended = fleet.finish(job_id)
    assert ended.error is not None
    assert ended.error["code"] == "cancelled"


def test_a_cancel_for_another_job_is_ignored(fleet: Fleet) -> None:
    job_id = fleet.start(SMALL)
    fleet.send({"op": "cancel", "job_id": "not-this-one"})
    assert fleet.finish(job_id).error is None


def run_with_fault(fleet: Fleet, **fault: Any) -> tuple[Ended, float]:
    begun = time.monotonic()
    with fleet.fault(**fault):
        ended = fleet.run(SMALL)
    return ended, time.monotonic() - begun


@pytest.mark.parametrize("rank", [0, 1])
def test_an_error_while_the_other_rank_is_in_a_collective_ends_the_job_at_once(fleet: Fleet, rank: int) -> None:
    ended, seconds = run_with_fault(fleet, rank=rank, module="MiniMaxH3TransformerBlock", call=1, do="raise")
    assert ended.error is not None
    assert ended.error["code"] == "job_failed"
    assert ended.error["details"] == {"stage": "denoise", "rank": rank}
    assert ended.error["message"] == f"[rank {rank}] ValueError: planted fault (stage denoise)"
    # The data timeout is 60 s: nobody waited for it.
    assert seconds < 10
    assert_serves_the_next_job(fleet)


@pytest.mark.parametrize("rank", [0, 1])
def test_an_error_while_a_rank_computes_its_share_of_the_modulation_ends_the_job_at_once(
    fleet: Fleet, rank: int
) -> None:
    # The other rank waits for the tables.
    ended, seconds = run_with_fault(fleet, rank=rank, module="MiniMaxH3AdaLayerNormModulation", call=0, do="raise")
    assert ended.error is not None
    assert ended.error["message"] == f"[rank {rank}] ValueError: planted fault (stage denoise)"
    assert [event for event in ended.events("step") if event["stage"] == "denoise"] == []
    assert seconds < 10
    assert_serves_the_next_job(fleet)


@pytest.mark.parametrize("module", ["Qwen3VLTextModel", "MiniMaxH3VideoViTDecoder3d"])
def test_an_error_outside_a_collective_ends_the_job_on_all_ranks(fleet: Fleet, module: str) -> None:
    ended, _ = run_with_fault(fleet, module=module, do="raise")
    assert ended.error is not None
    assert "planted fault" in ended.error["message"]
    assert_serves_the_next_job(fleet)


def test_memory_that_runs_out_while_decoding_leaves_the_latents(fleet: Fleet) -> None:
    ended, _ = run_with_fault(fleet, module="MiniMaxH3VideoViTDecoder3d", do="oom")
    assert ended.error is not None
    assert ended.error["code"] == "out_of_memory"
    assert ended.error["retryable"]
    latents = load_file(ended.outputs("latents")[0])
    assert latents["video"].shape == (1, 24, 7, 4, 4)
    assert not list(ended.outputs("latents")[0].parent.glob("*.mp4"))
    assert_serves_the_next_job(fleet)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_runs_out_of_memory_once_while_decoding_tries_again(fleet: Fleet, rank: int) -> None:
    with fleet.fault(rank=rank, module="MiniMaxH3VideoViTDecoder3d", call=0, do="oom"):
        # Two tiles, one a rank.
        ended = fleet.run({**SMALL, "width": 288})
    assert ended.error is None
    assert ended.facts["frames"] == 22
    assert "one by one" in fleet.log


def test_both_ranks_decode_and_the_error_of_either_is_told(fleet: Fleet) -> None:
    ended = None
    with fleet.fault(rank=1, module="MiniMaxH3VideoViTDecoder3d", do="oom"):
        ended = fleet.run({**SMALL, "width": 288})
    assert ended.error is not None
    details = ended.error["details"]
    assert (ended.error["code"], details["stage"], details["rank"]) == ("out_of_memory", "decode_video", 1)
    assert details["held"]["vae"] > 0
    assert len(ended.outputs("latents")) == 1
    assert_serves_the_next_job(fleet)


def test_gather_buffers_are_kept_and_told_of(fleet: Fleet) -> None:
    first, again = (fleet.run(SMALL).messages[-1]["gather_workspace_bytes"] for _ in range(2))
    assert first == again > 0


def test_failed_jobs_leave_no_open_files_or_threads_behind(fleet: Fleet) -> None:
    def held() -> list[int]:
        ranks = descendants(fleet.process.pid)
        assert len(ranks) == 2
        return [len(list(Path(f"/proc/{pid}/{what}").iterdir())) for pid in ranks for what in ("fd", "task")]

    run_with_fault(fleet, rank=1, module="MiniMaxH3TransformerBlock", call=1, do="raise")
    before = held()
    for _ in range(4):
        run_with_fault(fleet, rank=1, module="MiniMaxH3TransformerBlock", call=1, do="raise")
    assert held() == before
