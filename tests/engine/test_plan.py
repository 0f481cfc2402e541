"""``h3-engine plan`` and what it stands on: tables, reasons, pictures; nothing is loaded."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from engine.checkpoint import open_checkpoint
from engine.cli.main import main
from engine.config_presets import preset_names
from engine.models.loading import load_models
from engine.offload.owner import weights_of
from engine.placement import Needs, plan_placement
from engine.planner.model import read_model, released_model
from engine.planner.plan import Hardware, make_plan, needs_of, place
from engine.planner.request import RequestSize
from engine.planner.search import longest, nearest, options_of, search
from engine.planner.time import Speeds
from engine.planner.weights import Setup, rank_weights
from engine.rank_options import OffloadOptions, ParallelOptions, RankOptions, VaeOptions
from scripts.memory_tables import PAGE, fill
from tests.support.engine_process import ROOT

ALL = ("dit", "text_encoder")
USUAL = RequestSize(width=1344, height=768, frames=362, text_rows=512)
SMALL = RequestSize(width=128, height=64, frames=39, text_rows=64, steps=4)


def gb(device: float | None, host: float | None = None) -> Hardware:
    """Return hardware of so many GB."""
    sizes = [None if size is None else round(size * 1e9) for size in (device, host)]
    return Hardware(device_bytes=sizes[0], host_bytes=sizes[1])


def setup_of(ranks: int = 1, offload: tuple[str, ...] = (), **offload_options: Any) -> Setup:
    options = OffloadOptions(offload=offload, resident_blocks=None if offload else 0, **offload_options)
    return Setup(parallel=ParallelOptions(ulysses_degree=ranks), offload=options)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = main(["plan", *words])
    told = capsys.readouterr()
    return status, told.out, told.err


def test_a_table_tells_what_each_stage_takes_and_why_other_configurations_do_not_fit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, text, _ = run(capsys, "--gpus", "2", "--gpu-memory", "24", "--host-memory", "256")
    lines = text.splitlines()
    assert status == 0
    assert any(
        re.fullmatch(r"GB \(1e9 bytes\) on the device of rank [01], the fullest of 2, of 24.00:", line)
        for line in lines
    )
    table = {line.split()[0]: float(line.split()[-1]) for line in lines if line.startswith(("encode", "den", "dec"))}
    assert list(table) == ["encode_prompt", "encode_media", "denoise", "decode_video", "decode_audio"]
    assert max(table.values()) == table["denoise"] <= 24
    assert "It fits." in lines
    compared = lines[lines.index("ulysses, ring, tp and the text encoder; what has no column is as above.") + 1 :]
    assert compared[0].split()[:4] == ["offload", "ulysses", "ring", "tp"]
    assert compared[1].startswith("dit,text_encoder ")
    assert compared[1].endswith("fits")
    assert any(re.search(r"  lacks [\d.]+ GB$", line) for line in compared)
    assert max(len(line) for line in compared) <= 100


def test_a_search_puts_what_fits_first_and_of_that_the_fastest() -> None:
    choices = search(released_model(), setup_of(), USUAL, gb(48, 256), gpus=2)
    fitting = [choice.plan.fits for choice in choices]
    assert fitting == sorted(fitting, reverse=True)
    fits = [choice for choice in choices if choice.plan.fits]
    fastest = min(choice.seconds for choice in fits)
    later = [choice.seconds for choice in fits if choice.seconds > 1.05 * fastest]
    assert 1 < len(later) < len(fits)
    assert [choice.seconds for choice in fits][-len(later) :] == sorted(later)
    assert all(choice.plan.problems for choice in choices if not choice.plan.fits)
    assert len({choice.options for choice in choices}) == len(choices)


@pytest.mark.parametrize(("gbs", "layout"), [(25, (2, 1)), (10, (1, 2)), (200, (2, 1))])
def test_a_ring_is_chosen_only_where_links_are_slow(gbs: float, layout: tuple[int, int]) -> None:
    hardware = dataclasses.replace(gb(24, 256), speeds=Speeds(link_gbs=gbs))
    best, *others = search(released_model(), setup_of(), USUAL, hardware, gpus=2)
    assert (best.plan.setup.parallel.ulysses_degree, best.plan.setup.parallel.ring_degree) == layout
    rings = [other.seconds for other in others if other.plan.fits and other.plan.setup.parallel.ring_degree == 2]
    if gbs == 25:
        assert 0.95 < min(rings) / best.seconds < 1, "as fast as Ulysses, nearly"


def test_json_has_the_numbers_of_every_rank(capsys: pytest.CaptureFixture[str]) -> None:
    status, text, _ = run(capsys, "--preset", "2x24gb", "--json")
    plan = json.loads(text)
    assert status == 0
    assert plan["fits"]
    assert plan["device_bytes"] == 24_000_000_000
    assert [rank["rank"] for rank in plan["ranks"]] == [0, 1]
    stages = {stage["stage"]: stage["total_bytes"] for stage in plan["ranks"][0]["stages"]}
    assert max(stages.values()) == stages["denoise"] <= plan["device_bytes"]
    placed = plan["ranks"][1]["components"]
    assert set(placed) == {"transformer", "transformer_ref"}
    assert placed["transformer"]["streamed_blocks"] + placed["transformer"]["resident_blocks"] == 52


def test_a_plan_is_drawn_against_the_budget(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "plan.png"
    assert run(capsys, "--preset", "2x24gb", "--plot", str(file))[0] == 0
    with Image.open(file) as picture:
        assert picture.width > picture.height > 300
        assert len(picture.convert("RGB").getcolors(2**20) or ()) > 20


@pytest.mark.parametrize(
    ("words", "field", "said"),
    [
        (("--preset", "1x24"), "preset", "1x24gb"),
        (("--steps", "0"), "steps", "1 to 1000"),
        (("--references", "10"), "references", "0 to 9"),
        (("--width", "640"), "height", "Add --height"),
        (("--width", "650", "--height", "640"), "width", "32"),
        (("--seconds", "-1"), "seconds", "0.25 to 3600"),
        (("--seconds", "nan"), "seconds", "0.25 to 3600"),
        (("--gpus", "0"), "nproc_per_node", "1 to 1024"),
        (("--gpu-memory", "-3"), "gpu_memory", "0.001"),
        (("--tflops", "0"), "tflops", "above 0"),
        (("--gpus", "4", "--tp-degree", "3"), "tp_degree", "3"),
        (("--model", "/nowhere/at/all"), "model", "/nowhere/at/all"),
        (("--plot", "/nowhere/plan.png"), "plot", "can be written"),
        (("--offload", "vaes"), "offload", "vae"),
    ],
)
def test_what_is_wrong_with_the_options_is_named(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], field: str, said: str
) -> None:
    status, _, error = run(capsys, "--gpus", "2", "--gpu-memory", "24", *words)
    assert status == 2
    assert f"[{field}" in error, error
    assert said in error


def test_a_plan_needs_neither_weight_files_nor_torch(tiny_checkpoint: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(tiny_checkpoint, bare, ignore=shutil.ignore_patterns("*.safetensors", "*.index.json"))
    code = (
        "import sys; from engine.cli import main; "
        f"status = main(['plan', '--model', {str(bare)!r}, '--gpus', '2', '--device', 'cpu', '--gpu-memory', '0.1']); "
        "sys.exit(status or ('torch' in sys.modules) * 7)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert "MB (1e6 bytes) on the device" in done.stdout


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_fits_or_says_what_length_does(capsys: pytest.CaptureFixture[str], name: str) -> None:
    status, text, _ = run(capsys, "--preset", name, "--json")
    plan = json.loads(text)
    assert (status, plan["fits"]) in [(0, True), (2, False)]
    if not plan["fits"]:
        assert name == "1x24gb"
        assert plan["longest_frames"] >= 12 * 24
    budget = plan["device_bytes"]
    assert budget == int(name.partition("x")[2].partition("gb")[0]) * 10**9


def test_the_tables_of_the_memory_page_are_what_the_planner_prints() -> None:
    page = PAGE.read_text()
    assert re.findall(r"^### (.*)$", page, re.MULTILINE) == preset_names()
    assert fill(page) == page, "run scripts/memory_tables.py"


def test_the_longest_that_fits_fits_and_the_next_does_not() -> None:
    model, setup, hardware = released_model(), setup_of(1, ALL), gb(20)
    frames = longest(make_plan(model, setup, USUAL, hardware))
    assert frames is not None
    fits = [
        make_plan(model, setup, dataclasses.replace(USUAL, frames=frames + more), hardware).fits for more in (0, 17)
    ]
    assert fits == [True, False]


def test_the_nearest_that_fits_offloads_before_it_changes_the_layout_or_takes_something_away() -> None:
    model = released_model()
    found = nearest(make_plan(model, setup_of(2), USUAL, gb(24)))
    assert found is not None
    assert found.plan.fits
    assert found.options == options_of(make_plan(model, setup_of(2, ALL), USUAL, gb(24)))
    assert found.losses == ()


@pytest.mark.parametrize(
    ("host", "options", "lost"),
    [
        (140, "--partitions transformer", ["references"]),
        (120, "--block-storage fp8", ["8 bits"]),
        (80, "--block-storage fp8 --partitions transformer", ["references", "8 bits"]),
    ],
)
def test_where_host_memory_lacks_the_least_is_given_up_and_said(host: float, options: str, lost: list[str]) -> None:
    found = nearest(make_plan(released_model(), setup_of(1, ALL), USUAL, gb(40, host)))
    assert found is not None
    assert found.plan.fits
    assert found.options.endswith(options)
    assert [word in loss for word, loss in zip(lost, found.losses, strict=True)] == [True] * len(lost)


def test_nothing_is_named_where_nothing_fits() -> None:
    assert nearest(make_plan(released_model(), setup_of(1), USUAL, gb(4, 16))) is None


@pytest.mark.parametrize("offload", [(), ("dit",), ALL], ids=["nothing", "dit", "both"])
@pytest.mark.parametrize("storage", ["full", "fp8"])
def test_ranks_place_their_weights_as_was_planned(
    tiny_checkpoint: Path, offload: tuple[str, ...], storage: str
) -> None:
    setup = dataclasses.replace(setup_of(1, offload, block_storage=storage), dtype="fp32", accelerator=False)
    fixed = {"model": "", "device": "cpu", "dtype": "fp32", "stages": (), "link": "", "data_timeout": 60.0}
    options = RankOptions(ulysses_degree=1, **fixed, **vars(setup.offload))  # type: ignore[arg-type]
    models = load_models(
        open_checkpoint(tiny_checkpoint),
        device=torch.device("cpu"),
        dtype=torch.float32,
        keep=frozenset(setup.components(read_model(tiny_checkpoint), 0)),
        on_bytes=lambda component, done, total: None,
        storage=storage,
    )
    real = weights_of(models, options)
    model = read_model(tiny_checkpoint)
    planned = {name: held for name, held in rank_weights(model, setup, 0).items() if name in real}
    assert planned == real
    whole = sum(held.bytes for held in real.values())
    for budget in (None, whole // 2, whole, 2 * whole):
        needs = needs_of(model, setup, 0, SMALL)
        assert place(model, setup, 0, SMALL, budget) == plan_placement(real, options, budget=budget, needs=needs)


def test_more_blocks_stay_as_the_budget_grows_and_never_more_than_fit() -> None:
    model, setup = released_model(), setup_of(1, ALL)
    weights = {name: held for name, held in rank_weights(model, setup, 0).items() if "vae" not in name}
    needs = Needs(dict.fromkeys(weights, 20 * 10**9), between=10**9, always=10**9)
    counts = []
    for budget in range(30, 100, 10):
        placed = plan_placement(weights, setup.offload, budget=budget * 10**9, needs=needs)
        counts.append(sum(len(stream.resident) for stream in placed.components["transformer"].streams))
        assert placed.on_device("transformer") + 21 * 10**9 <= budget * 10**9
    assert counts == sorted(counts)
    assert (counts[0] < 10, counts[-1]) == (True, 52)


def test_vaes_that_stay_are_counted_at_all_times() -> None:
    model, setup = released_model(), setup_of(1, ALL)
    resident = dataclasses.replace(setup, vae=VaeOptions(vae_resident=True))
    stages = [
        {stage.stage: stage for stage in make_plan(model, each, USUAL, gb(80)).ranks[0].stages}
        for each in (setup, resident)
    ]
    more = stages[1]["denoise"].always - stages[0]["denoise"].always
    assert more == stages[0]["decode_video"].beside.vae + stages[0]["decode_audio"].beside.vae


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (("--gpus", "64", "--gpu-memory", "80"), "gpus"),
        (("--gpus", "1", "--gpu-memory", "24", "--width", "33554432", "--height", "33554432"), "width"),
        (("--gpus", "1", "--gpu-memory", "24", "--keyframes", "1", "--references", "1"), "keyframes"),
        (("--gpus", "1", "--gpu-memory", "24", "--resident-blocks", "4"), "resident_blocks"),
        (("--gpus", "1", "--gpu-memory", "80", "--offload", "--plot", "."), "plot"),
        (("--gpus", "1", "--gpu-memory", "80", "--partitions", "transformer", "--references", "2"), "references"),
        (("--gpus", "1", "--gpu-memory", "80", "--partitions", "transformer_ref", "--keyframes", "1"), "keyframes"),
        (("--job", "7d0b3f0a-6f0e-4a53-9a0e-0d6a3f2b1c9d", "--gpus", "1", "--gpu-memory", "80"), "job"),
    ],
)
def test_what_cannot_be_planned_names_its_option(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], field: str
) -> None:
    status, _, told = run(capsys, *words)
    assert status == 2
    assert f"[{field}" in told


def test_beside_a_running_engine_options_that_say_what_to_plan_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, told = run(capsys, "--url", "http://127.0.0.1:9", "--seconds", "15", "--offload")
    assert status == 2
    assert "--seconds, --offload cannot change that" in told
    assert "Leave --url out" in told
    status, _, told = run(capsys, "--url", "http://127.0.0.1:9", "--json", "--job", "x", "--plot", "x.png")
    assert (status, "cannot be reached" in told) == (3, True)
