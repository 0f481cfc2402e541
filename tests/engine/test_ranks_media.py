"""Keyframes, references and guides on two real ranks: one rank's results, and errors in every stage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.contract.requests import Generate, parse_request
from engine.runner_media import JobMedia
from engine.stages.base import Prepared
from engine.stages.encode_media import encode_media
from tests.support import stages
from tests.support.ranks import Ended, Fleet, Message

pytestmark = pytest.mark.ranks

STAGES = "encode_prompt,encode_media,denoise,decode_video,decode_audio"
SIZES: dict[str, Any] = {"width": 64, "height": 32, "frames": 124}
SHORT: dict[str, Any] = {**SIZES, "frames": 22}
RUN: dict[str, Any] = {"steps": 2, "seed": 3}
MEDIA = {"media": {"part": "unused"}}


@pytest.fixture(scope="module")
def fleet(tiny_checkpoint: Path) -> Iterator[Fleet]:
    fleet = Fleet(tiny_checkpoint, ranks=2, stages=STAGES, media=True)
    try:
        fleet.wait_ready()
        yield fleet
    finally:
        fleet.close()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return prepared parts: four pictures and a clip for the canvas, a reference image, and sound."""
    folder = tmp_path_factory.mktemp("prepared")
    generator = torch.Generator().manual_seed(2)

    def pixels(count: int, height: int, width: int) -> torch.Tensor:
        return torch.randint(0, 256, (count, height, width, 3), generator=generator, dtype=torch.uint8)

    def sound(seconds: float) -> torch.Tensor:
        return torch.rand((2, int(32_000 * seconds)), generator=generator) - 0.5

    parts = {
        **{f"picture {number}": {"frames": pixels(1, 32, 64)} for number in range(4)},
        "clip with sound": {"frames": pixels(22, 32, 64), "waveform": sound(4.0)},
        "video with sound": {"frames": pixels(60, 64, 64), "waveform": sound(1.5)},
        "portrait": {"frames": pixels(1, 96, 32)},
        "voice": {"waveform": sound(1.0)},
    }
    for name, tensors in parts.items():
        save_file(tensors, folder / f"{name}.safetensors")
    return {name: folder / f"{name}.safetensors" for name in parts}


FOUR_IMAGES: tuple[dict[str, Any], dict[str, str]] = (
    {
        "keyframes": [{**MEDIA, "at": "first"}],
        "guides": [{**MEDIA, "frame": frame} for frame in (36, 72, 120)],
    },
    {"keyframes.0": "picture 0", **{f"guides.{number}": f"picture {number + 1}" for number in range(3)}},
)
"""A picture at the start and at the frames 36, 72 and 120."""
GUIDES_AND_REFERENCES: tuple[dict[str, Any], dict[str, str]] = (
    {
        "guides": [{**MEDIA, "frame": 60}, {"audio": {"part": "unused"}, "frame": 0}],
        "references": [{**MEDIA, "kind": "audio"}, {**MEDIA, "kind": "image"}, {**MEDIA, "kind": "video"}],
    },
    {
        "guides.0": "clip with sound",
        "guides.1": "voice",
        "references.0": "voice",
        "references.1": "portrait",
        "references.2": "video with sound",
    },
)


def files(names: dict[str, str], prepared: dict[str, Path]) -> dict[str, Path]:
    return {part: prepared[name] for part, name in names.items()}


def movie_pieces(ended: Ended, number: int) -> list[Path]:
    """Return the files of movie ``number``."""
    told = [m for m in ended.messages if m["op"] == "movie" and m["output"] == number]
    return [Path(m["path"]) for m in told if m["path"]]


def assert_serves_the_next_job(fleet: Fleet) -> None:
    ended = fleet.run({"task": "generate", "prompt": "next", **SHORT, **RUN})
    assert ended.error is None


@pytest.mark.parametrize("case", [FOUR_IMAGES, GUIDES_AND_REFERENCES], ids=["four images", "guides and references"])
def test_two_ranks_give_what_one_gives(
    fleet: Fleet, prepared: dict[str, Path], tiny_checkpoint: Path, case: tuple[dict[str, Any], dict[str, str]]
) -> None:
    inputs = files(case[1], prepared)
    body = {"task": "generate", "prompt": "as in <Picture 1>", **SIZES, **RUN, "container": "tensors", **case[0]}
    ended = fleet.run(body, inputs, timeout=120)
    assert ended.error is None
    made = load_file(ended.outputs("latents")[0])
    request = parse_request(body)
    assert isinstance(request, Generate)
    alone = stages.run_media(
        stages.load(tiny_checkpoint),
        JobMedia.load(request, inputs),
        prompt=request.prompt,
        width=SIZES["width"],
        height=SIZES["height"],
        **RUN,
    )
    assert (made["video"] - alone.latents.video).abs().max() <= 1e-5
    assert (made["audio"] - alone.latents.audio).abs().max() <= 1e-5
    frames = torch.cat([load_file(piece)["frames"] for piece in ended.outputs("frames")])
    assert frames.shape == (124, 32, 64, 3)


def test_the_stages_one_by_one_give_the_same_as_generate(fleet: Fleet, prepared: dict[str, Path]) -> None:
    fields, names = GUIDES_AND_REFERENCES
    inputs = files(names, prepared)
    whole = fleet.run({"task": "generate", "prompt": "by <Audio 1>", **SIZES, **RUN, **fields}, inputs, timeout=120)
    references = {part: path for part, path in inputs.items() if part.startswith("references")}
    text = fleet.run(
        {"task": "encode_prompt", "prompt": "by <Audio 1>", **SIZES, "references": fields["references"]}, references
    )
    assert text.facts["references"] == [{"kind": "audio"}, {"kind": "image"}, {"kind": "video_audio"}]
    guides = {part: path for part, path in inputs.items() if part.startswith("guides")}
    guided = fleet.run({"task": "encode_media", **SIZES, "guides": fields["guides"]}, guides)
    assert guided.facts == {"conditions": [{"frame": 60}, {"frame": 0}]}
    joined = load_file(text.outputs("conditioning")[0]) | load_file(guided.outputs("conditioning")[0])
    # From frame 60 of 124 on there is room for 107 of the clip's 160 audio latents.
    assert joined["conditions.0.audio"].shape == (1, 32, 2, 107)
    assert joined["conditions.0.video"].shape == (1, 24, 7, 2, 4)
    assert joined["references.2.video"].shape == (1, 24, 17, 4, 4)
    path = fleet.folder / "conditioning.safetensors"
    save_file(joined, path)
    denoised = fleet.run(
        {
            "task": "denoise",
            **SIZES,
            **RUN,
            "conditions": guided.facts["conditions"],
            "references": text.facts["references"],
        },
        {"conditioning": path},
    )
    assert denoised.error is None
    ours, theirs = (load_file(ended.outputs("latents")[0]) for ended in (denoised, whole))
    assert torch.equal(ours["video"], theirs["video"])
    assert torch.equal(ours["audio"], theirs["audio"])


def test_several_movies_carry_their_numbers_and_progress_never_goes_back(
    fleet: Fleet, prepared: dict[str, Path]
) -> None:
    """Their frames come from both ranks, a chunk from each; each movie is the one of its seed."""
    body = {"task": "generate", "prompt": "x", **SHORT, **RUN, "frames": 39, "guides": [{**MEDIA, "frame": 0}]}
    inputs = {"guides.0": prepared["picture 0"]}
    ended = fleet.run({**body, "num_outputs": 2}, inputs)
    assert ended.error is None
    given = [(m["name"], m["output"]) for m in ended.messages if m["op"] in ("output", "movie")]
    pieces = ["latents", "audio", "frames", "preview", "frames", "preview", "finish"]
    assert given == [(name, number) for number in (0, 1) for name in pieces]
    assert len({m["path"] for m in ended.messages if m.get("path")}) == 12
    for number in (0, 1):
        alone = fleet.run({**body, "seed": RUN["seed"] + number}, inputs)
        for ours, theirs in zip(movie_pieces(ended, number), movie_pieces(alone, 0), strict=True):
            assert ours.read_bytes() == theirs.read_bytes()
    progress = [m["event"]["progress"] for m in ended.messages if m["op"] == "event" and "progress" in m["event"]]
    assert progress == sorted(progress)
    assert progress[-1] == pytest.approx(1.0)


def test_a_source_becomes_latents_as_long_as_the_timeline(fleet: Fleet, prepared: dict[str, Path]) -> None:
    body = {"task": "encode_media", **SIZES, "frames": 39, "source": MEDIA}
    ended = fleet.run(body, {"source": prepared["clip with sound"]})
    assert ended.error is None
    made = load_file(ended.outputs("latents")[0])
    assert made["video"].shape == (1, 24, 12, 2, 4)
    assert made["audio"].shape == (1, 32, 2, 65)


def test_a_keyframe_for_another_canvas_is_refused_by_the_ranks_too(fleet: Fleet, prepared: dict[str, Path]) -> None:
    encoded = fleet.run(
        {"task": "encode_prompt", "prompt": "x", **SHORT, "keyframes": [{**MEDIA, "at": "last"}]},
        {"keyframes.0": prepared["picture 0"]},
    )
    assert encoded.facts["conditions"] == [{"frame": 21}]
    body = {"task": "denoise", **SHORT, **RUN, "height": 64, "conditions": encoded.facts["conditions"]}
    ended = fleet.run(body, {"conditioning": encoded.outputs("conditioning")[0]})
    assert ended.error is not None
    assert ended.error["kind"] == "RequestError"
    assert "64x32" in ended.error["message"]
    assert "64x64" in ended.error["message"]
    assert_serves_the_next_job(fleet)


def encode_a_film(fleet: Fleet) -> Ended:
    """Encode four clips of one tile, and sound."""
    path = fleet.folder / "film.safetensors"
    generator = torch.Generator().manual_seed(4)
    frames = torch.randint(0, 256, (56, 64, 64, 3), generator=generator, dtype=torch.uint8)
    save_file({"frames": frames, "waveform": torch.rand((2, 9000), generator=generator)}, path)
    body = {"task": "encode_media", "width": 64, "height": 64, "frames": 56, "guides": [{**MEDIA, "frame": 0}]}
    return fleet.run(body, {"guides.0": path})


@pytest.fixture(scope="module")
def film(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """Return what one rank makes of `encode_a_film`."""
    generator = torch.Generator().manual_seed(4)
    frames = torch.randint(0, 256, (56, 64, 64, 3), generator=generator, dtype=torch.uint8)
    medium = Prepared(frames, torch.rand((2, 9000), generator=generator))
    models = stages.load(tiny_checkpoint, keep=frozenset({"vae", "audio_vae"}))
    made = encode_media(stages.context(models), [medium])
    assert made is not None
    return {"conditions.0.video": made[0].video, "conditions.0.audio": made[0].audio}


ENCODER = "MiniMaxH3VideoEncoder3d"


def assert_film(ended: Ended, film: dict[str, torch.Tensor]) -> None:
    assert ended.error is None
    made = load_file(ended.outputs("conditioning")[0])
    assert made.keys() == film.keys()
    assert all(torch.equal(made[name], film[name]) for name in film)


def test_both_ranks_encode_what_one_would_and_the_error_of_either_is_told(
    fleet: Fleet, film: dict[str, torch.Tensor]
) -> None:
    assert_film(encode_a_film(fleet), film)
    for rank in (0, 1):
        # The last of a rank's two tiles too: nothing follows it but the meeting.
        for call in (0, 1):
            with fleet.fault(rank=rank, module=ENCODER, call=call, do="raise"):
                ended = encode_a_film(fleet)
            assert ended.error is not None
            assert ended.error["message"] == f"[rank {rank}] ValueError: planted fault (stage encode_media)"
            assert ended.error["details"] == {"stage": "encode_media", "rank": rank}
            assert ended.messages[-1]["restarting"] is False
            assert not ended.outputs("conditioning")
    assert_film(encode_a_film(fleet), film)


def test_a_leader_encodes_alone(tiny_checkpoint: Path, film: dict[str, torch.Tensor]) -> None:
    layout = ("--ulysses-degree", "2", "--media-encode", "leader")
    fleet = Fleet(tiny_checkpoint, stages="encode_media", layout=layout)
    try:
        fleet.wait_ready()
        with fleet.fault(rank=1, module=ENCODER, do="raise"):
            assert_film(encode_a_film(fleet), film)
        with fleet.fault(rank=0, module=ENCODER, call=3, do="raise"):
            ended = encode_a_film(fleet)
        assert ended.error is not None
        assert ended.error["details"] == {"stage": "encode_media", "rank": 0}
        assert_film(encode_a_film(fleet), film)
    finally:
        fleet.close()


@pytest.mark.parametrize(
    ("module", "stage", "rank"),
    [
        ("Qwen3VLVisionModel", "encode_prompt", 0),
        ("MiniMaxH3VideoEncoder3d", "encode_media", 0),
        ("MiniMaxH3AudioEncoder", "encode_media", 0),
        ("MiniMaxH3Transformer3DModel", "denoise", 1),
        ("MiniMaxH3AudioBigVGANDecoder", "decode_audio", 0),
        ("MiniMaxH3VideoViTDecoder3d", "decode_video", 0),
    ],
)
def test_an_error_in_any_stage_is_told_once_with_its_rank(
    fleet: Fleet, prepared: dict[str, Path], module: str, stage: str, rank: int
) -> None:
    body = {"task": "generate", "prompt": "x", **SHORT, **RUN}
    body |= {"keyframes": [{**MEDIA, "at": "first"}], "guides": [{"audio": {"part": "unused"}, "frame": 0}]}
    with fleet.fault(rank=rank, module=module, do="raise"):
        ended = fleet.run(body, {"keyframes.0": prepared["picture 0"], "guides.0": prepared["voice"]})
    assert ended.error is not None
    assert ended.error["message"] == f"[rank {rank}] ValueError: planted fault (stage {stage})"
    assert ended.error["details"] == {"stage": stage, "rank": rank}
    assert_serves_the_next_job(fleet)


def test_a_job_is_cancelled_between_two_encodings(fleet: Fleet, prepared: dict[str, Path]) -> None:
    def cancel(message: Message) -> None:
        if message["op"] == "event" and message["event"].get("stage") == "encode_media":
            fleet.send({"op": "cancel", "job_id": message["job_id"]})

    guides = [{**MEDIA, "frame": number} for number in range(8)]
    inputs = {f"guides.{number}": prepared["picture 0"] for number in range(8)}
    with fleet.fault(module="MiniMaxH3VideoEncoder3d", do="sleep", seconds=0.2):
        job = fleet.start({"task": "encode_media", **SHORT, "guides": guides}, inputs)
        ended: Ended = fleet.finish(job, on_message=cancel)
    assert ended.error is not None
    assert ended.error["code"] == "cancelled"
    assert len(ended.events("step")) < 8
    assert_serves_the_next_job(fleet)
