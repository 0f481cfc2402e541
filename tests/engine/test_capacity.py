"""What an engine can take: guarded at its start, asked for each request, told in ``/v1/info``."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from engine.checkpoint import open_checkpoint
from engine.cli.main import build_parser
from engine.cli.options import given_options
from engine.client import EngineClient, Outcome
from engine.config import build_config
from engine.contract.checks import Plan, check_request
from engine.contract.errors import ConfigError, EngineError, RequestError
from engine.contract.limits import Limits, ModelFacts
from engine.contract.requests import STAGES, Denoise, Generate, parse_request
from engine.contract.tensors import Headers
from engine.planner.capacity import Capacity, find_capacity
from engine.planner.request import RequestSize
from engine.planner.sizing import size_of_denoise
from engine.server.uploads import read_headers
from tests.support.engine_process import EngineProcess

TIGHT = ("--gpu-memory", "0.015")
"""GB; without offload the weights of the tiny model leave no room for a second of video."""
FITS: dict[str, Any] = {"task": "generate", "prompt": "a fox", "frames": 22, "width": 64, "height": 64, "steps": 2}
TOO_LONG = {**FITS, "frames": 362}
KEYFRAME = [{"at": "first", "media": {"part": "picture", "format": "frames"}}]


def capacity_of(model: Path, *words: str) -> Capacity:
    arguments = build_parser().parse_args(["serve", "--model", str(model), "--device", "cpu", *words])
    config = build_config(given_options(arguments))
    found = find_capacity(config, open_checkpoint(config.model, stages=config.stages, options=config.model_options))
    assert found is not None
    return found


def checked(capacity: Capacity, request: dict[str, Any]) -> Plan:
    facts = capacity.plan.model.facts
    return check_request(parse_request(request), facts=facts, limits=Limits(), headers={}, stages=STAGES)


def check(capacity: Capacity, request: dict[str, Any]) -> None:
    capacity.check(checked(capacity, request), {}, {})


def refusal(model: Path, *words: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        capacity_of(model, *words)
    assert caught.value.code == "does_not_fit"
    return caught.value


def options_that_fit(error: ConfigError) -> list[str]:
    found = re.search(r"^This fits.*: (--.*)$", error.remedy or "")
    assert found, error
    return shlex.split(found[1])


def test_a_refused_start_names_its_needs_its_budget_and_a_configuration(tiny_checkpoint: Path) -> None:
    error = refusal(tiny_checkpoint, *TIGHT)
    assert error.field == "gpu_memory"
    assert re.search(r"takes [\d.]+ MB on rank 0, [\d.]+ MB more than the 15.0 MB of its device", error.message)
    assert re.search(r"up to \d+ frames", error.remedy or "")
    assert "no room for 1.6 s of video" in error.message
    assert "--offload" in options_that_fit(error)
    assert capacity_of(tiny_checkpoint, *TIGHT, *options_that_fit(error)).plan.fits


def test_a_start_that_lacks_host_memory_is_refused(tiny_checkpoint: Path) -> None:
    error = refusal(tiny_checkpoint, "--offload", "--gpu-memory", "1", "--host-memory", "0.001")
    assert error.field == "host_memory"
    assert "of host memory" in error.message


def test_where_nothing_fits_no_configuration_is_named(tiny_checkpoint: Path) -> None:
    error = refusal(tiny_checkpoint, "--gpu-memory", "0.002")
    assert "No layout of these ranks fits" in (error.remedy or "")


def test_what_of_the_usual_request_fits_is_planned_and_what_is_longer_refused(tiny_checkpoint: Path) -> None:
    capacity = capacity_of(tiny_checkpoint, "--gpu-memory", "0.022")
    assert capacity.plan.fits
    assert 39 < capacity.plan.request.frames < 362
    check(capacity, FITS)
    with pytest.raises(RequestError) as caught:
        check(capacity, TOO_LONG)
    error = caught.value
    assert (error.code, error.field) == ("does_not_fit", "request.frames")
    assert error.details["needed_bytes"] > 22_000_000
    shorter = re.search(r"What fits: (\d+) frames", error.remedy or "")
    assert shorter, error
    check(capacity, {**FITS, "frames": int(shorter[1])})
    with pytest.raises(RequestError):
        check(capacity, {**FITS, "frames": int(shorter[1]) + 17})


def test_of_a_request_only_its_own_stages_count(tiny_checkpoint: Path) -> None:
    capacity = capacity_of(tiny_checkpoint, "--offload", "--gpu-memory", "0.08")
    size = RequestSize(width=256, height=256, frames=362)
    capacity.check_size(size, ("denoise",))
    with pytest.raises(RequestError, match="decode_video takes"):
        capacity.check_size(size, ("decode_audio", "decode_video"))


def test_an_engine_of_references_alone_is_planned_for_requests_with_them(tiny_checkpoint: Path) -> None:
    words = ("--partitions", "transformer_ref", "--offload", "dit", "--gpu-memory", "1")
    plan = capacity_of(tiny_checkpoint, *words).plan
    assert plan.request.with_references
    denoise = next(stage for stage in plan.ranks[0].stages if stage.stage == "denoise")
    placed = plan.ranks[0].placement.components["transformer_ref"]
    assert denoise.weights["transformer_ref"] == placed.device_bytes > 0


def test_masks_count_for_the_times_that_they_have(tiny_checkpoint: Path) -> None:
    capacity = capacity_of(tiny_checkpoint, "--offload", "--gpu-memory", "0.1")
    edit = {"source": {"media": {"part": "v"}}, "video_mask": 1.0}
    request = parse_request({**FITS, "steps": 50, "edit": edit})
    assert isinstance(request, Generate)
    capacity.check_generate(request, text_tokens=4, parts={}, found={"mask_levels": 2})
    with pytest.raises(RequestError, match="denoise takes") as caught:
        capacity.check_generate(request, text_tokens=4, parts={}, found={"mask_levels": 512})
    assert "masks of zeros and ones" in str(caught.value.remedy)


def test_a_job_that_took_more_of_a_device_than_was_planned_is_told_with_the_remedy(
    tiny_checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    capacity = capacity_of(tiny_checkpoint, "--offload", "--gpu-memory", "0.1", "--nproc-per-node", "2")
    plan = checked(capacity, FITS)
    planned = capacity.check(plan, {}, {})
    plan = dataclasses.replace(plan, planned=planned)
    first, second = planned["denoise"]
    for kind, took in (("device", [first, second]), ("process", [first, second + 10**7]), ("device", [first])):
        capacity.compare("a-job", plan, {"kind": kind, "stages": {"denoise": took}})
    capacity.compare("a-job", plan, {})
    assert not caplog.text
    capacity.compare("a-job", plan, {"kind": "device", "stages": {"denoise": [first, second + 3 * 10**7]}})
    assert "a-job: denoise took" in caplog.text
    assert "on rank 1, 30.0 MB more than was planned" in caplog.text
    assert "--gpu-memory 0.07 or less" in caplog.text


def test_padding_that_does_not_fit_is_named_with_what_would(tiny_checkpoint: Path) -> None:
    capacity = capacity_of(tiny_checkpoint, "--offload", "--gpu-memory", "0.02")
    with pytest.raises(RequestError) as caught:
        check(capacity, {**FITS, "pad_seq_len": 64_000})
    assert (caught.value.field, caught.value.value) == ("request.pad_seq_len", 64_000)
    told = re.fullmatch(
        r"Leave pad_seq_len out: the \d+ rows of this request fit, or use (\d+) at most.", caught.value.remedy
    )
    assert told, caught.value
    check(capacity, FITS)
    check(capacity, {**FITS, "pad_seq_len": int(told[1])})
    with pytest.raises(RequestError, match="does not fit"):
        check(capacity, {**FITS, "pad_seq_len": int(told[1]) + 64})
    with pytest.raises(RequestError) as caught:
        check(capacity, {**TOO_LONG, "pad_seq_len": 64_000})
    assert caught.value.field == "request.frames"


def denoise(folder: Path, masks: dict[str, torch.Tensor], **fields: Any) -> tuple[Plan, Headers, dict[str, Path]]:
    """Return an edit of a source by ``masks``: the checked request, its parts' headers and files."""
    source = {"video": torch.zeros(1, 24, 7, 4, 4), "audio": torch.zeros(1, 32, 2, 37)}
    text = {"prompt_embeds": torch.zeros(1, 9, 32), "token_tags": torch.ones(9, dtype=torch.long)}
    parts = {"conditioning": text, "latents": source, **({"masks": masks} if masks else {})}
    files = {name: folder / name for name in parts}
    for name, tensors in parts.items():
        save_file(tensors, files[name])
    request = parse_request(
        {"task": "denoise", "width": 64, "height": 64, "frames": 22, "steps": 50, "seed": 0, **fields}
    )
    headers = read_headers(files, request)
    facts = ModelFacts(text_dim=32)
    return check_request(request, facts=facts, limits=Limits(), headers=headers, stages=STAGES), headers, files


def test_an_edit_is_admitted_by_the_times_that_its_masks_really_have(tiny_checkpoint: Path, tmp_path: Path) -> None:
    capacity = capacity_of(tiny_checkpoint, "--offload", "--gpu-memory", "0.03")
    simple = torch.zeros(1, 1, 7, 4, 4)
    simple[..., 2:] = 1
    capacity.check(*denoise(tmp_path, {"video_noise_mask": simple, "audio_noise_mask": torch.zeros(1, 1, 2, 37)}))
    fractions = torch.linspace(0, 1, 112).reshape(1, 1, 7, 4, 4)
    with pytest.raises(RequestError, match="denoise takes"):
        capacity.check(*denoise(tmp_path, {"video_noise_mask": fractions}))


@pytest.mark.parametrize(
    ("values", "fields", "levels"),
    [
        ([0.0, 1.0], {}, 1),
        ([0.0, 0.25, 0.2501, 0.5, 0.9999], {}, 4),
        ([1.0], {"audio_mask": 1.0}, 0),
        ([1.0], {"audio_mask": 0.5}, 1),
        ([math.nan, math.inf, -1.0, 0.0], {}, 1),
        ([], {"video_mask": 0.5, "audio_mask": 0.0}, 2),
        ([], {}, 0),
    ],
)
def test_the_values_of_masks_below_1_are_counted_in_256ths(
    tmp_path: Path, values: list[float], fields: dict[str, Any], levels: int
) -> None:
    cells = torch.tensor([values[i % len(values)] for i in range(112)]).reshape(1, 1, 7, 4, 4) if values else None
    plan, headers, files = denoise(tmp_path, {} if cells is None else {"video_noise_mask": cells}, **fields)
    assert isinstance(plan.request, Denoise)
    assert size_of_denoise(plan.request, headers, files).mask_levels == levels


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("transformer/config.json", {"num_layers": "x"}),
        ("transformer/config.json", {"num_layers": 10**9}),
        ("vae/config.json", {"block_out_channels": None}),
        ("vae/config.json", {"decoder_num_attention_heads": 0}),
        ("audio_vae/config.json", {"latent_dim": "x"}),
        ("modular_model_index.json", {"canvas_max_pixels": -1}),
    ],
)
def test_a_configuration_that_describes_no_model_is_named(
    tiny_checkpoint: Path, tmp_path: Path, file: str, change: dict[str, Any]
) -> None:
    shutil.copytree(tiny_checkpoint, tmp_path / "model")
    path = tmp_path / "model" / file
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ConfigError) as caught:
        capacity_of(tmp_path / "model")
    assert caught.value.code == "checkpoint_invalid"
    assert file.split("/", maxsplit=1)[0] in str(caught.value.field)


def test_without_a_known_budget_all_is_let_through(tiny_checkpoint: Path) -> None:
    capacity = capacity_of(tiny_checkpoint)
    assert not capacity.limited
    assert capacity.plan.request.frames == 362
    check(capacity, TOO_LONG)


@pytest.mark.parametrize("stages", ["encode_prompt,encode_media", "denoise", "decode_video,decode_audio"])
def test_an_engine_of_some_stages_is_planned_for_these(tiny_checkpoint: Path, stages: str) -> None:
    capacity = capacity_of(tiny_checkpoint, "--stages", stages, "--gpu-memory", "1")
    told = capacity.describe()
    assert {stage["stage"] for stage in told["ranks"][0]["stages"]} == set(stages.split(","))
    assert (told["step_seconds"] > 0) == (stages == "denoise")


def test_ranks_are_told_what_the_plan_leaves_room_for(tiny_checkpoint: Path) -> None:
    capacity = capacity_of(tiny_checkpoint, "--gpu-memory", "0.1", "--nproc-per-node", "2")
    assert len(capacity.needs) == 2
    for rank, needs in zip(capacity.plan.ranks, capacity.needs, strict=True):
        stages = {stage.stage: stage for stage in rank.stages}
        assert needs.running["transformer"] == stages["denoise"].beside.total
        assert needs.always == stages["denoise"].always
    held = dataclasses.replace(capacity, plan=dataclasses.replace(capacity.plan, ranks=()))
    assert held.needs == ()


@pytest.fixture(scope="module")
def engine(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """An engine with the options that the refusal of another named."""
    folder = tmp_path_factory.mktemp("engine")
    options = (*TIGHT, *options_that_fit(refusal(tiny_checkpoint, *TIGHT)))
    with EngineProcess(tiny_checkpoint, folder, ranks=1, options=options, media=True) as engine:
        yield engine


def run(engine: EngineProcess, folder: Path, request: dict[str, Any], **inputs: Path) -> Outcome:
    async def go() -> Outcome:
        async with EngineClient(engine.url) as client:
            return await client.run(request, folder=folder, inputs=inputs)

    return asyncio.run(go())


@pytest.mark.ranks
def test_a_request_that_does_not_fit_wakes_no_rank_and_the_next_job_runs(engine: EngineProcess, tmp_path: Path) -> None:
    info = engine.get("/v1/info")
    plan = info["plan"]
    assert info["offload"]["offload"]
    assert plan["fits"]
    assert plan["device_bytes"] == 15_000_000
    assert plan["ranks"][0]["components"]["transformer"]["host_bytes"] > 0
    with pytest.raises(EngineError) as caught:
        run(engine, tmp_path, TOO_LONG)
    assert (caught.value.code, caught.value.field) == ("does_not_fit", "request.frames")
    assert engine.metric("jobs_started_total") == 0
    outcome = run(engine, tmp_path, {**FITS, "container": "tensors"})
    assert "latents" in outcome.outputs
    job = engine.get("/v1/jobs")["jobs"][-1]
    assert set(job["memory"]["stages"]) >= {"encode_prompt", "denoise", "decode_video", "decode_audio"}
    assert all(peaks[0] > 0 for peaks in job["memory"]["stages"].values())


@pytest.mark.ranks
def test_a_request_whose_size_follows_from_its_pictures_is_refused_when_they_are_read(
    engine: EngineProcess, tmp_path: Path
) -> None:
    picture = tmp_path / "picture"
    save_file({"frames": torch.zeros(1, 64, 128, 3, dtype=torch.uint8)}, picture)
    request = {key: value for key, value in TOO_LONG.items() if key not in ("width", "height")}
    started = engine.metric("jobs_started_total")
    with pytest.raises(EngineError) as caught:
        run(engine, tmp_path, {**request, "keyframes": KEYFRAME}, picture=picture)
    assert caught.value.code == "does_not_fit"
    assert engine.metric("jobs_started_total") == started
    assert "latents" in run(engine, tmp_path, {**FITS, "seed": 3, "container": "tensors"}).outputs
