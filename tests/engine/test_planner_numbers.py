"""The planner's closed forms against the real classes: tensors, bytes, rows, operations and traffic."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count
from transformers import Qwen3VLModel
from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

from engine.checkpoint import open_checkpoint
from engine.checkpoint_facts import TEXT_LAYERS
from engine.contract.limits import ModelFacts
from engine.contract.requests import STAGES
from engine.models.loading import load_models
from engine.packing import Block, build_layout, latent_grid
from engine.parallel import accounting
from engine.placement import ITEM_BYTES, NO_NEEDS, Held, compute_dtype, plan_placement
from engine.planner.activations import rank_needs, rank_stages
from engine.planner.activations_transformer import RankRows, transformer_sizes
from engine.planner.flops import attention_products, transformer_flops
from engine.planner.request import MediumSize, count_rows, vision_grid
from engine.planner.shapes import component_shapes, is_computed
from engine.planner.sizes import RELEASED, Config
from engine.planner.time import Speeds, link_bytes, run_seconds, step_seconds
from engine.planner.weights import ServedModel, Setup, rank_tensors, rank_weights
from engine.rank_options import PARTITIONS, WEIGHTED, OffloadOptions, ParallelOptions, VaeOptions
from engine.stacks import FULL_PRECISION
from engine.stacks_shares import kept_components
from tests.support import stages
from tests.support.planner_models import CLASSES, ONE, RELEASED_MODEL, build_on_meta, inputs_of, request


@pytest.fixture(scope="module")
def checkpoints(tiny_checkpoint: Path, small_checkpoint: Path) -> dict[str, Path]:
    """Return the folder of each preset."""
    return {"tiny": tiny_checkpoint, "small": small_checkpoint}


def read_configs(folder: Path) -> dict[str, Config]:
    return {name: json.loads((folder / name / "config.json").read_text()) for name in WEIGHTED}


def tensors_of(model: Any) -> dict[str, tuple[int, ...]]:
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: tuple(tensor.shape) for name, tensor in named}


@pytest.mark.parametrize("preset", ["tiny", "small", "released"])
@pytest.mark.parametrize("component", ["text_encoder", "transformer", "vae", "audio_vae"])
def test_the_closed_form_names_every_tensor_of_the_real_class_and_its_shape(
    component: str, preset: str, checkpoints: dict[str, Path]
) -> None:
    config = RELEASED[component] if preset == "released" else read_configs(checkpoints[preset])[component]
    model = build_on_meta(component, config)
    found = component_shapes(component, config)
    assert found == tensors_of(model)
    assert {name for name in found if is_computed(name)} == found.keys() - model.state_dict().keys()


def bytes_of(component: str, shapes: Mapping[str, tuple[int, ...]], dtype: str) -> int:
    return sum(
        math.prod(shape) * ITEM_BYTES["fp32" if is_computed(name) else compute_dtype(component, name, dtype)]
        for name, shape in shapes.items()
    )


def test_the_released_models_sizes_follow_from_its_configuration() -> None:
    shapes = {name: component_shapes(name, config) for name, config in RELEASED.items()}
    gigabytes = {
        # bf16, its patch projections, time embedding and heads fp32.
        "transformer": bytes_of("transformer", shapes["transformer"], "bf16") / 1e9,
        # What H3 reads of the text encoder, and all of it: 14 more layers, the last norm and the head.
        "text encoder": bytes_of("text_encoder", shapes["text_encoder"], "bf16") / 1e9,
        "whole text encoder": bytes_of("text_encoder", shapes["text_encoder"], "bf16") / 1e9 + unread_text() / 1e9,
        # As stored, in fp32; in bf16 its encoder, norms and scales alone stay so.
        "video VAE": bytes_of("vae", shapes["vae"], "fp32") / 1e9,
        "audio VAE": bytes_of("audio_vae", shapes["audio_vae"], "bf16") / 1e9,
        # The AdaLN projections among the transformer's.
        "modulation": bytes_of("transformer", modulation(shapes["transformer"]), "bf16") / 1e9,
    }
    assert {name: round(size, 1) for name, size in gigabytes.items()} == {
        "transformer": 66.3,
        "text encoder": 51.5,
        "whole text encoder": 66.7,
        "video VAE": 10.4,
        "audio VAE": 0.6,
        "modulation": 26.0,
    }


def unread_text() -> int:
    """Return the bytes of the tensors of the text encoder that are never read, in bf16."""
    text = RELEASED["text_encoder"]["text_config"]
    shapes = component_shapes("text_encoder", RELEASED["text_encoder"])
    layer = {name: shape for name, shape in shapes.items() if name.startswith("language_model.layers.0.")}
    layers = text["num_hidden_layers"] - TEXT_LAYERS
    head = (text["vocab_size"] + 1) * text["hidden_size"] * ITEM_BYTES["bf16"]
    return layers * bytes_of("text_encoder", layer, "bf16") + head


def modulation(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    return {name: shape for name, shape in shapes.items() if ".adaln_proj." in name}


def test_what_stays_exact_is_what_the_real_classes_keep_in_fp32() -> None:
    for component, cls in {**CLASSES, "text_encoder": Qwen3VLModel}.items():
        assert FULL_PRECISION[component] == frozenset(cls._keep_in_fp32_modules or ()), component


def test_the_released_sizes_are_the_defaults_of_the_real_classes() -> None:
    for component, cls in CLASSES.items():
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            config = dict(cls().config)
        assert component_shapes(component, config) == component_shapes(component, RELEASED[component])


@pytest.fixture(scope="module")
def models(checkpoints: dict[str, Path]) -> dict[str, ServedModel]:
    return {preset: ServedModel.of(open_checkpoint(folder)) for preset, folder in checkpoints.items()}


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("preset", ["tiny", "small"])
def test_a_rank_that_holds_all_of_a_component_holds_the_planned_bytes_of_each_tensor(
    preset: str, dtype: str, checkpoints: dict[str, Path], models: dict[str, ServedModel]
) -> None:
    loaded = stages.load(checkpoints[preset], dtype={"fp32": torch.float32, "bf16": torch.bfloat16}[dtype])
    setup = Setup(parallel=ONE, dtype=dtype)
    for component in WEIGHTED:
        model = getattr(loaded, component)
        real = {name: tensor.nbytes for name, tensor in (*model.named_parameters(), *model.named_buffers())}
        assert {name: held.bytes for name, held in rank_tensors(models[preset], setup, component).items()} == real


def test_ranks_hold_parts_of_layers_and_shares_of_blocks() -> None:
    whole = rank_weights(RELEASED_MODEL, Setup(parallel=ONE), 0)
    parts = Setup(parallel=ParallelOptions(ulysses_degree=1, tp_degree=4, text_encoder_tp_degree=2))
    first, third = rank_weights(RELEASED_MODEL, parts, 0), rank_weights(RELEASED_MODEL, parts, 2)
    assert "text_encoder" in first
    assert third.keys() == {*PARTITIONS, "vae"}
    block = "transformer_blocks"
    divided = first["transformer"].stacks[block][0].bytes / whole["transformer"].stacks[block][0].bytes
    assert divided == pytest.approx(1 / 4, rel=1e-3)
    assert first["transformer"].outside == whole["transformer"].outside
    text, parted = whole["text_encoder"], first["text_encoder"]
    assert parted.stacks["visual.blocks"] == text.stacks["visual.blocks"]
    layers = [held.stacks["language_model.layers"][0].bytes for held in (text, parted)]
    assert layers[1] / layers[0] == pytest.approx(1 / 2, rel=1e-3)
    shares = Setup(parallel=ParallelOptions(ulysses_degree=4, shard_weights=True))
    held = rank_tensors(RELEASED_MODEL, shares, "transformer")
    assert held["transformer_blocks.0.attn.to_q.weight"] == Held((7168 // 4, 5376), "bf16")
    assert held["transformer_blocks.0.norm1.weight"] == Held((5376,), "bf16")
    stage = rank_stages(RELEASED_MODEL, shares, 1, request())["denoise"]
    assert stage.gathered == 2 * sum(
        tensor.bytes * 4 for name, tensor in held.items() if ".7." in name and len(tensor.shape) > 1
    )


@pytest.mark.parametrize("served", [STAGES, ("encode_media", "denoise")], ids=["all", "no decoding"])
def test_ranks_that_leave_encoding_to_the_leader_are_planned_without_encoders(
    tiny_checkpoint: Path, served: tuple[str, ...]
) -> None:
    checkpoint = open_checkpoint(tiny_checkpoint, stages=served)
    others, model = checkpoint.without("encode_media"), ServedModel.of(checkpoint)
    loaded = load_models(
        others,
        device=torch.device("cpu"),
        dtype=torch.float32,
        keep=kept_components(others.components, rank=1),
        on_bytes=lambda component, done, total: None,
    )
    vae = (
        None
        if loaded.vae is None
        else sum(tensor.nbytes for tensor in (*loaded.vae.parameters(), *loaded.vae.buffers()))
    )
    two = ParallelOptions(ulysses_degree=2)
    leader, patch = (
        Setup(parallel=two, vae=VaeOptions(media_encode=how), dtype="fp32", stages=served)
        for how in ("leader", "patch")
    )
    planned = rank_weights(model, leader, 1)
    assert planned.keys() == {name for name in WEIGHTED if getattr(loaded, name) is not None}
    assert (planned["vae"].bytes if "vae" in planned else None) == vae
    assert rank_weights(model, leader, 0) == rank_weights(model, patch, 0)
    size = request(media=(MediumSize(video=(1, 4, 4)),))
    found = [rank_stages(model, setup, rank, size)["encode_media"].vae for setup in (leader, patch) for rank in (0, 1)]
    assert found == [found[0], 0, found[0], found[0]]
    assert found[0] > 0


@pytest.mark.parametrize("pinned", [None, 4096])
def test_the_rows_of_a_request_are_those_of_its_packed_layout(pinned: int | None) -> None:
    facts = ModelFacts()
    media = (
        MediumSize(video=(1, 8, 12)),
        MediumSize(video=(7, 8, 12), audio=20),
        MediumSize(video=(1, 6, 10), reference=True),
        MediumSize(video=(12, 8, 4), audio=60, reference=True),
        MediumSize(audio=80, reference=True),
    )
    size = request(width=192, height=128, frames=39, text_rows=17, media=media, pad_seq_len=pinned)
    kinds = ("condition", "condition", "image", "video", "audio")
    blocks = [Block(kind, medium.video, medium.audio) for kind, medium in zip(kinds, media, strict=True)]
    grid = latent_grid(facts, width=192, height=128, frames=39)
    layout = build_layout(torch.ones(17, dtype=torch.long), grid, blocks, pad_seq_len=pinned)
    runs = size.runs(facts)
    tags = [tag for kind, rows in runs for tag in [{"video": 0, "text": 1, "audio": 2, "padding": 1}[kind]] * rows]
    assert tags == layout.token_tags.tolist()
    half = count_rows(runs, (10, 1000))
    assert half["audio"] == int(((layout.audio_indices >= 10) & (layout.audio_indices < 1000)).sum())
    assert sum(count_rows(runs).values()) - count_rows(runs)["padding"] == layout.used


@pytest.mark.parametrize("side", [(768, 1344), (40, 40), (6000, 5000), (100, 3000), (2048, 2048)])
def test_a_picture_is_shown_in_the_patches_that_the_processor_makes(side: tuple[int, int]) -> None:
    height, width = smart_resize(*side, factor=32, min_pixels=2**16, max_pixels=2**24)
    assert vision_grid(side[1], side[0]) == (1, height // 16, width // 16)


@pytest.mark.parametrize("degrees", [(4, 1), (1, 3), (2, 2), (3, 2)])
def test_keys_and_values_of_other_ranks_are_those_of_the_books(degrees: tuple[int, int]) -> None:
    ulysses, ring = degrees
    weights = tuple(float(1 + place % 2) for place in range(ulysses * ring))
    setup = Setup(parallel=ParallelOptions(ulysses_degree=ulysses, ring_degree=ring, rank_weights=weights))
    row_head = 128 * 2
    for rank in range(ulysses * ring):
        rows = RankRows.of(RELEASED_MODEL, setup, rank, request(frames=22))
        place = {"heads": rows.heads, "index": rows.ulysses_index, "row_head": row_head}
        books = accounting.ulysses_peak_bytes(rows.ulysses_rows, **place)  # type: ignore[arg-type]
        heads = rows.heads[rows.ulysses_index]
        books += accounting.ring_peak_bytes(rows.ring_blocks, heads, rows.ring_index, row_head=row_head)
        assert rows.remote_bytes(row_head) == books
        stage = rank_stages(RELEASED_MODEL, setup, rank, request(frames=22))["denoise"]
        assert stage.remote == books


def test_bytes_between_ranks_are_those_of_the_books() -> None:
    model, size = RELEASED_MODEL, request(frames=22)
    sizes = transformer_sizes(model)
    setup = Setup(parallel=ParallelOptions(ulysses_degree=2, tp_degree=2))
    rows = RankRows.of(model, setup, 1, size)
    heads = {"index": rows.ulysses_index, "row_head": 128 * 2}
    block = max(accounting.ulysses_qkv_bytes(rows.ulysses_rows, rows.heads, **heads))
    block += max(accounting.ulysses_out_bytes(rows.ulysses_rows, rows.heads, **heads))
    block += accounting.tensor_sum_bytes(rows.mine, width=sizes.hidden, element=2, ranks=2)
    refiner = accounting.tensor_sum_bytes(rows.whole_text, width=sizes.hidden, element=2, ranks=2)
    sent = link_bytes(model, setup, rows)
    assert sent.waited == pytest.approx(sizes.layers * block + sizes.refiner_layers * refiner, rel=0.01)
    assert (sent.around, sent.gathered) == (0, 0)
    ring = Setup(parallel=ParallelOptions(ulysses_degree=1, ring_degree=2))
    rows = RankRows.of(model, ring, 1, size)
    assert link_bytes(model, ring, rows).around == sizes.layers * max(
        accounting.ring_bytes(rows.ring_blocks, 56, 1, row_head=128 * 2)
    )


def test_the_operations_of_a_forward_are_those_that_torch_counts(
    checkpoints: dict[str, Path], models: dict[str, ServedModel]
) -> None:
    model, setup = models["tiny"], Setup(parallel=ONE, dtype="fp32")
    rows = RankRows.of(model, setup, 0, request(width=96, height=64, frames=22, text_rows=20))
    transformer = stages.load(checkpoints["tiny"], keep=frozenset({"transformer"})).transformer
    flash = {
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v)
    }
    inputs = inputs_of(model, rows, torch.float32, device="cpu")
    with FlopCounterMode(display=False, custom_mapping=flash) as counter, torch.no_grad():
        transformer(**inputs, return_dict=False)
    assert transformer_flops(model, setup, rows, tables=False) == counter.get_total_flops()


def test_a_ring_is_hidden_by_half_behind_the_attention_at_hand_and_not_beyond_it() -> None:
    setup, size = Setup(parallel=ParallelOptions(ulysses_degree=1, ring_degree=2)), request(frames=124)
    rows = RankRows.of(RELEASED_MODEL, setup, 0, size)
    attention = 4 * 50 * attention_products(transformer_sizes(RELEASED_MODEL), rows) // 2
    around = link_bytes(RELEASED_MODEL, setup, rows).around
    placed = {0: plan_placement({}, setup.offload, budget=None, needs=NO_NEEDS)}
    # So slow a link that it takes 10 times as long as attending to a block, and one that takes a tenth.
    slow, fast = (Speeds(link_gbs=around / (times * attention / 400e12) / 1e9) for times in (10, 0.1))
    links = [step_seconds(RELEASED_MODEL, setup, size, speeds, placed).links for speeds in (slow, fast)]
    merging = links[1] - (0.1 - 0.05) * attention / 400e12 - links_of_heads(rows, fast)
    assert links[0] == pytest.approx((10 - 0.5) * attention / 400e12 + merging + links_of_heads(rows, slow))
    assert 0 < merging < 0.5


def links_of_heads(rows: RankRows, speeds: Speeds) -> float:
    """Return the seconds in which the rows of the output heads travel."""
    return (rows.whole_video * 96 + rows.whole_audio * 32) * 4 / speeds.link_gbs / 1e9


def test_a_step_is_as_slow_as_its_computing_or_its_streaming() -> None:
    setup = Setup(parallel=ONE, offload=OffloadOptions(offload=("dit", "text_encoder")))
    size = request(frames=124)
    weights = {
        name: held for name, held in rank_weights(RELEASED_MODEL, setup, 0).items() if name not in ("vae", "audio_vae")
    }
    needs = rank_needs(RELEASED_MODEL, setup, 0, size, rank_weights(RELEASED_MODEL, setup, 0))
    placed = {0: plan_placement(weights, setup.offload, budget=24 * 10**9, needs=needs)}
    fast, slow = Speeds(), Speeds(host_gbs=1.0)
    quick, held_up = (step_seconds(RELEASED_MODEL, setup, size, speeds, placed) for speeds in (fast, slow))
    assert quick.total == quick.compute > quick.stream
    # 40 GB of blocks, the modulation being in tables.
    assert held_up.total == held_up.stream == pytest.approx(40.1, rel=0.01)
    both = run_seconds(RELEASED_MODEL, setup, size, fast, placed)
    assert both["denoise"] > size.steps * quick.total
    assert set(both) == set(setup.stages)
