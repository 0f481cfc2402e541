"""What the planner says that each stage takes at its peak, against what is allocated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.checkpoint import open_checkpoint
from engine.contract.geometry import SAMPLES_PER_AUDIO_LATENT
from engine.placement import compute_dtype
from engine.planner.activations import StageBytes, always_bytes, rank_needs, rank_stages, step_table_bytes
from engine.planner.activations_sound import decode_sound_peak, encode_sound_peak
from engine.planner.activations_transformer import RankRows, transformer_peak
from engine.planner.activations_vae import TileCount, count_chunks, slot_count, vae_weights
from engine.planner.request import MediumSize, RequestSize
from engine.planner.sizes import RELEASED
from engine.planner.weights import ServedModel, Setup, held_bytes, rank_tensors, rank_weights
from engine.rank_options import ParallelOptions, VaeOptions
from engine.vae import chunks, crew, tiles
from engine.vae.sound_slices import sliced
from tests.support import stages
from tests.support.fake_accelerator import run_on_device
from tests.support.live_bytes import FusedAttention, LiveBytes
from tests.support.planner_models import ONE, RELEASED_MODEL, build_on_meta, inputs_of, request


@pytest.fixture(scope="module")
def checkpoints(tiny_checkpoint: Path, small_checkpoint: Path) -> dict[str, Path]:
    """Return the folder of each preset."""
    return {"tiny": tiny_checkpoint, "small": small_checkpoint}


@pytest.fixture(scope="module")
def models(checkpoints: dict[str, Path]) -> dict[str, ServedModel]:
    return {preset: ServedModel.of(open_checkpoint(folder)) for preset, folder in checkpoints.items()}


STAGES = {
    "encode_prompt": "encode_prompt",
    "picture": "encode_media",
    "clip": "encode_media",
    "sound": "encode_media",
    "denoise": "denoise",
    "decode_audio": "decode_audio",
    "decode_video": "decode_video",
}
"""What is measured on the fake accelerator, and the stage that it belongs to."""


def test_stages_take_what_was_planned_within_fifteen_percent_on_the_fake_accelerator(
    checkpoints: dict[str, Path], models: dict[str, ServedModel]
) -> None:
    folders = {preset: str(folder) for preset, folder in checkpoints.items()}
    found = run_on_device("tests.support.planner_cases:report", folders=folders)
    assert len(found) == 8
    assert {stage for case in found for stage in case[-1]} == STAGES.keys()
    for preset, dtype, (width, height, frames, rows), measured in found:
        setup = Setup(parallel=ONE, dtype=dtype)
        size = request(width=width, height=height, frames=frames, text_rows=rows, steps=2)
        for name, allocated in measured.items():
            planned = plan_stage(models[preset], setup, size, name, STAGES[name])
            assert planned == pytest.approx(allocated, rel=0.15), (preset, dtype, width, name)


def plan_stage(model: ServedModel, setup: Setup, size: RequestSize, name: str, stage: str) -> int:
    """Return what a stage takes besides gather buffers that were kept, where all weights but a VAE's are there."""
    ratio = model.facts.spatial_ratio
    cells = size.height // ratio, size.width // ratio
    media = {
        "picture": MediumSize(video=(1, *cells)),
        "clip": MediumSize(video=(size.latent_frames, *cells)),
        "sound": MediumSize(audio=size.audio_latents),
    }
    found = rank_stages(model, setup, 0, replace(size, media=(media[name],) if name in media else ()))[stage]
    tables = step_table_bytes(model, setup, size) if stage == "denoise" else 0
    workspace = found.workspace if stage == "decode_video" else 0
    return found.activations + found.vae + tables + workspace


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(("width", "frames", "text"), [(1344, 362, 256), (768, 22, 16_384)])
def test_a_forward_of_the_released_transformer_peaks_where_it_was_walked_to(
    width: int, frames: int, text: int, dtype: str
) -> None:
    config = {**RELEASED["transformer"], "num_layers": 2}
    model = ServedModel({"transformer": config})
    setup = Setup(parallel=ONE, dtype=dtype)
    rows = RankRows.of(model, setup, 0, request(width=width, frames=frames, text_rows=text))
    measured = forward_on_meta(model, rows, dtype)
    planned = transformer_peak(model, setup, request(), rows, tables=False)
    assert planned == pytest.approx(measured, rel=0.01)


def forward_on_meta(model: ServedModel, rows: RankRows, dtype: str) -> int:
    """Return the bytes of the inputs and of what is alive beside them at the peak of a forward without memory."""
    transformer = build_on_meta("transformer", model.configs["transformer"]).eval().requires_grad_(False)
    compute = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
    for name, parameter in transformer.named_parameters():
        if compute_dtype("transformer", name, dtype) == dtype:
            parameter.data = parameter.data.to(compute)
    inputs = inputs_of(model, rows, compute, device="meta")
    with torch.no_grad(), FusedAttention(), LiveBytes() as live:
        transformer(**inputs, return_dict=False)
    return live.peak + sum(tensor.nbytes for tensor in inputs.values())


@pytest.mark.parametrize("latents", [37, 207, 603])
def test_sound_through_the_released_vae_peaks_where_it_was_walked_to(latents: int) -> None:
    vae = build_on_meta("audio_vae", RELEASED["audio_vae"]).eval().requires_grad_(False)
    with torch.no_grad(), sliced(vae), LiveBytes() as live:
        vae.decode(torch.empty(2, 32, latents, device="meta"))
    assert decode_sound_peak(RELEASED_MODEL, latents) == pytest.approx(live.peak, rel=0.05)
    sound = torch.empty(2, 1, latents * SAMPLES_PER_AUDIO_LATENT, device="meta")
    with torch.no_grad(), sliced(vae), LiveBytes() as live:
        vae.encode(sound)
    assert encode_sound_peak(RELEASED_MODEL, latents) == pytest.approx(live.peak + sound.nbytes, rel=0.05)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_prompt_with_and_without_pictures_takes_what_was_planned(dtype: str, checkpoints: dict[str, Path]) -> None:
    folder, compute = checkpoints["tiny"], {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
    encoder = stages.load(folder, dtype=compute, keep=frozenset({"text_encoder"})).text_encoder
    encoder.language_model.layers = encoder.language_model.layers[:4]  # they are alike
    model = ServedModel.of(open_checkpoint(folder))
    for rows, grids in ((300, ()), (600, ((1, 32, 32),)), (1300, ((1, 32, 32), (1, 32, 64)))):
        size = request(text_rows=rows, vision=grids)
        planned = rank_stages(model, Setup(parallel=ONE, dtype=dtype), 0, size)["encode_prompt"]
        assert planned.activations == pytest.approx(encode(encoder, size, compute), rel=0.15), rows


def encode(encoder: Any, size: RequestSize, dtype: torch.dtype) -> int:
    """Return the bytes of the pictures, and of what is alive beside them at the peak, by a CPU's own kernels."""
    ids, start = torch.zeros(1, size.text_rows, dtype=torch.long), 1
    for _, height, width in size.vision:
        ids[0, start : start + height * width // 4] = encoder.config.image_token_id
        start += height * width // 4 + 1
    shown: dict[str, Any] = {}
    if size.vision:
        pixels = torch.zeros(size.vision_patches, encoder.visual.patch_embed.proj.weight[0].numel(), dtype=dtype)
        shown = {
            "pixel_values": pixels,
            "image_grid_thw": torch.tensor(size.vision),
            "mm_token_type_ids": (ids > 0).long(),
        }
    with torch.no_grad(), LiveBytes() as live:
        encoder(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, **shown)
    return live.peak + sum(tensor.nbytes for tensor in shown.values())


def test_attention_on_a_cpu_makes_no_matrix_of_scores_either(
    checkpoints: dict[str, Path], models: dict[str, ServedModel]
) -> None:
    model, setup, size = models["tiny"], Setup(parallel=ONE, dtype="fp32"), request(width=64, height=64, frames=22)
    rows = RankRows.of(model, setup, 0, replace(size, text_rows=1500))
    transformer = stages.load(checkpoints["tiny"], keep=frozenset({"transformer"})).transformer
    inputs = inputs_of(model, rows, torch.float32, device="cpu")
    with torch.no_grad(), LiveBytes() as live:
        transformer(**inputs, return_dict=False)
    measured = live.peak + sum(tensor.nbytes for tensor in inputs.values())
    assert transformer_peak(model, setup, size, rows, tables=False) == pytest.approx(measured, rel=0.15)


@pytest.mark.parametrize(("height", "width"), [(64, 64), (256, 272), (768, 1344), (2048, 448)])
def test_tiles_chunks_and_gather_buffers_are_counted_as_the_crew_deals_them(height: int, width: int) -> None:
    setup = Setup(parallel=ParallelOptions(ulysses_degree=3, rank_weights=(1.0, 2.0, 1.5)), vae=VaeOptions())
    grid = tiles.Grid.cover(height, width, tiles.TileGeometry(), ratio=16)
    assert TileCount.cover(height, width, setup) == TileCount(grid.rows.length, grid.columns.length, grid.count)
    for latent_frames in (2, 7, 12, 107):
        count = count_chunks(latent_frames)
        assert count == chunks.count_chunks(latent_frames)
        rounds = crew.deal(count * grid.count, vae_weights(setup))
        largest = max(sum(shares) for _, shares in rounds)
        wanted = [min(grid.count - 1 + largest, count * grid.count)]
        wanted += [max(shares[rank] for _, shares in rounds) for rank in (1, 2)]
        assert [slot_count(setup, rank, chunks=count, tiles=grid.count) for rank in range(3)] == wanted


def test_vaes_that_stay_count_always_and_others_only_while_they_are_used() -> None:
    size = request(media=(MediumSize(video=(1, 48, 84)), MediumSize(audio=80, reference=True)))
    resident = Setup(parallel=ONE, vae=VaeOptions(vae_resident=True))
    staged = Setup(parallel=ONE)
    both = sum(held_bytes(rank_tensors(RELEASED_MODEL, staged, name)) for name in ("vae", "audio_vae"))
    assert always_bytes(RELEASED_MODEL, resident, 0) == both
    assert always_bytes(RELEASED_MODEL, staged, 0) == 0
    stays, comes = (rank_stages(RELEASED_MODEL, setup, 0, size) for setup in (resident, staged))
    assert [stages_of(stays, "vae"), stages_of(comes, "vae")] == [
        set(),
        {"encode_media", "decode_audio", "decode_video"},
    ]
    needs = rank_needs(RELEASED_MODEL, staged, 0, size, rank_weights(RELEASED_MODEL, staged, 0))
    assert needs.between == max(comes[name].total for name in ("encode_media", "decode_audio", "decode_video"))
    assert needs.running["transformer_ref"] == comes["denoise"].total


def stages_of(found: Mapping[str, StageBytes], part: str) -> set[str]:
    return {name for name, stage in found.items() if getattr(stage, part)}
