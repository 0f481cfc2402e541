"""Weights of the blocks' layers kept in fp8 or int8: which, the bytes they take, how far results move, refusals."""

from __future__ import annotations

import dataclasses
import json
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed import HashStore

from engine import packages
from engine.checkpoint import open_checkpoint
from engine.config import OPTIONS
from engine.config_offload import resolve_offload
from engine.contract.errors import ConfigError
from engine.models import loading
from engine.models.bundle import Models
from engine.models.storage import FP8, check_storage, reduce, unpack_in_forwards
from engine.offload.layout import DTYPES, held_tensors
from engine.offload.owner import ModelOwner, place_models
from engine.offload.source import OwnMemory
from engine.parallel.compile import compile_blocks
from engine.parallel.layout import Layout
from engine.parallel.mesh import Mesh
from engine.parallel.sharding import apply_sequence_parallel
from engine.placement import Held, Needs, compute_dtype, flat_bytes, is_reduced, stored
from engine.planner.weights import ServedModel, Setup, unpacked_bytes
from engine.rank_options import OffloadOptions, ParallelOptions, RankOptions
from tests.support.live_bytes import LiveBytes
from tests.support.rank_group import run_on_ranks
from tests.support.side_folder import find_torchao
from tests.support.stages import CPU
from tests.support.weight_ranks import PROMPT, difference, latents, load

pytestmark = pytest.mark.usefixtures("one_thread")

COMPONENTS = ("text_encoder", "transformer")
KINDS = ("full", "fp8", "int8")
OFFLOAD = RankOptions(
    model="", device="cpu", dtype="fp32", stages=(), link="", data_timeout=60, ulysses_degree=1,
    offload=("dit", "text_encoder"),
)  # fmt: skip
LATENTS_OFF = MappingProxyType({"fp8": 0.06, "int8": 0.012})
"""Latents after one step of the tiny model against full precision: norm of the difference over the norm."""
TEXT_OFF = MappingProxyType({"fp8": 0.12, "int8": 0.03})
"""The same of the text encoder's hidden states, after 50 layers."""


@pytest.fixture(scope="module", autouse=True)
def torchao() -> None:
    find_torchao()


@pytest.fixture(scope="module")
def models(tiny_checkpoint: Path) -> dict[str, Models]:
    """Transformer and text encoder of each kind of storage, fp32."""
    found = {}
    for kind in KINDS:
        both = [load(tiny_checkpoint, component, storage=kind)[0] for component in COMPONENTS]
        both[1].text_encoder = both[0].text_encoder
        found[kind] = both[1]
    return found


def _encode(models: Models) -> torch.Tensor:
    with torch.no_grad():
        state: torch.Tensor = models.text_encoder(input_ids=PROMPT, use_cache=False).last_hidden_state
    return state


def _off(wanted: torch.Tensor, found: torch.Tensor) -> float:
    return float((wanted - found).norm() / wanted.norm())


def _check_held(made: nn.Module, like: nn.Module, component: str, *, dtype: str, kind: str) -> int:
    """Assert that ``made`` holds what is counted for the tensors of ``like``; return how many are reduced."""
    held, reduced = held_tensors(made), 0
    read = like.state_dict().keys()
    for tensor, value in [*like.named_parameters(), *like.named_buffers()]:
        own = DTYPES[value.dtype]
        plain = compute_dtype(component, tensor, dtype) if own == "fp32" and tensor in read else own
        counted = stored(component, tensor, tuple(value.shape), plain, kind)
        there = [part for key, part in held.items() if key == tensor or key.startswith(f"{tensor}.")]
        assert sorted(there, key=str) == sorted(counted, key=str), tensor
        reduced += is_reduced(component, tensor, value.shape)
    return reduced


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("component", COMPONENTS)
def test_a_rank_holds_what_the_placement_counts_tensor_by_tensor(
    models: dict[str, Models], component: str, kind: str
) -> None:
    like = getattr(models["full"], component)
    reduced = _check_held(getattr(models[kind], component), like, component, dtype="fp32", kind=kind)
    assert reduced == sum(1 for tensor in like.state_dict() if _is_layer_of_a_block(tensor, like))


@pytest.mark.parametrize("kind", ["fp8", "int8"])
def test_the_same_holds_when_the_rest_is_bf16(models: dict[str, Models], tiny_checkpoint: Path, kind: str) -> None:
    made, _ = load(tiny_checkpoint, "transformer", storage=kind, dtype=torch.bfloat16)
    _check_held(made.transformer, models["full"].transformer, "transformer", dtype="bf16", kind=kind)
    assert all(torch.isfinite(part).all() for part in latents(made))


def _is_layer_of_a_block(tensor: str, model: nn.Module) -> bool:
    """Say it another way: a linear layer's weight below a list of blocks, the vision tower's excepted."""
    layer, _, kind = tensor.rpartition(".")
    listed = ("token_refiner.refiner_blocks.", "transformer_blocks.", "language_model.layers.")
    return kind == "weight" and tensor.startswith(listed) and isinstance(model.get_submodule(layer), nn.Linear)


def test_norms_biases_and_all_outside_the_blocks_keep_their_type(models: dict[str, Models]) -> None:
    for component in COMPONENTS:
        whole, kept = (held_tensors(getattr(models[kind], component)) for kind in ("full", "fp8"))
        same = {name for name in whole if whole[name] == kept[name]}
        assert all(kept[name].dtype == "fp8" for name in whole.keys() - same)
        assert {name for name in whole if name.endswith(".bias") or "norm" in name} <= same
    transformer = held_tensors(models["fp8"].transformer)
    for name in ("proj_in.weight", "time_embedder.linear_1.weight", "proj_out.weight", "context_embedder.weight"):
        assert transformer[name].dtype == "fp32", name
    assert transformer["transformer_blocks.0.adaln_proj.linear.weight"].dtype == "fp8"


def test_a_layer_in_int8_takes_its_elements_and_five_bytes_a_row() -> None:
    kept = stored("transformer", "transformer_blocks.3.ff.net.2.weight", (48, 64), "bf16", "int8")
    assert sum(held.bytes for held in kept) == 48 * 64 + 48 * 5
    assert stored("transformer", "transformer_blocks.3.norm1.weight", (48,), "bf16", "int8") == [Held((48,), "bf16")]
    assert stored("transformer", "proj_in.weight", (48, 96), "fp32", "int8") == [Held((48, 96), "fp32")]


def test_every_number_of_fp8_comes_back_as_it_was_and_nothing_becomes_nan() -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(FP8)
    numbers = codes[~codes.float().isnan()].reshape(2, -1)
    for dtype in (torch.float32, torch.bfloat16):
        again = reduce(numbers.to(dtype), "fp8")
        assert torch.equal(again.view(torch.uint8), numbers.view(torch.uint8))
    large = reduce(torch.tensor([[1e6, -1e6, 460.0]]), "fp8").float()
    assert large.tolist() == [[448.0, -448.0, 448.0]]


@pytest.mark.parametrize("kind", ["fp8", "int8"])
def test_results_move_no_further_than_the_storage_lets_them(models: dict[str, Models], kind: str) -> None:
    whole, kept = models["full"], models[kind]
    for wanted, found in zip(latents(whole), latents(kept), strict=True):
        assert 1e-4 < _off(wanted, found) < LATENTS_OFF[kind]
    assert 1e-4 < _off(_encode(whole), _encode(kept)) < TEXT_OFF[kind]


@pytest.mark.parametrize("kind", ["fp8", "int8"])
def test_a_weight_is_converted_before_the_next_one_is_read(
    tiny_checkpoint: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive: list[weakref.ref[torch.Tensor]] = []
    most = 0
    plain = loading.safe_open

    class Watched:
        def __init__(self, tensors: Any) -> None:
            self._tensors = tensors

        def get_tensor(self, name: str) -> torch.Tensor:
            nonlocal most
            tensor: torch.Tensor = self._tensors.get_tensor(name)
            if is_reduced("transformer", name, tensor.shape):
                most = max(most, sum(read() is not None for read in alive))
                alive.append(weakref.ref(tensor))
            return tensor

    @contextmanager
    def opened(*args: Any, **kwargs: Any) -> Iterator[Watched]:
        with plain(*args, **kwargs) as tensors:
            yield Watched(tensors)

    monkeypatch.setattr(loading, "safe_open", opened)
    load(tiny_checkpoint, "transformer", storage=kind)
    assert len(alive) > 10
    assert most == 0


def test_an_error_in_a_forward_leaves_the_weights_as_they_were_kept(models: dict[str, Models]) -> None:
    block = models["fp8"].transformer.transformer_blocks[0]
    before = held_tensors(block)
    with pytest.raises(RuntimeError, match="shapes"):
        block.attn.to_q(torch.zeros(3, 7))
    assert held_tensors(block) == before


@pytest.mark.parametrize("kind", ["fp8", "int8"])
def test_blocks_that_stream_give_the_same_bits_compiled_or_not(tiny_checkpoint: Path, kind: str) -> None:
    both = [load(tiny_checkpoint, component, storage=kind)[0] for component in COMPONENTS]
    models = dataclasses.replace(both[1], text_encoder=both[0].text_encoder)
    wanted = [*latents(models), _encode(models)]
    placement = place_models(models, OFFLOAD, needs=Needs({}))
    owner = ModelOwner(models, placement, CPU, OwnMemory(CPU), rank=0)
    with owner.using("text_encoder", stage="encode_prompt"):
        owner.check()
        states = _encode(models)
    with owner.using("transformer", stage="denoise"), owner.projections(models.transformer):
        owner.check()
        made = latents(models)
        apply_sequence_parallel(models.transformer, Mesh(Layout(0, 1, 1), HashStore()))
        compile_blocks(models.transformer, backend="eager")
        torch.compiler.reset()
        compiled = latents(models)
    owner.check()
    assert all(torch.equal(a, b) for a, b in zip(wanted, [*made, states], strict=True))
    assert difference(wanted[:2], compiled) <= 1e-6
    counted = placement.components["transformer"].weights
    assert counted.bytes == sum(held.bytes for held in held_tensors(models.transformer).values()) + _padding(models)


def _padding(models: Models) -> int:
    """Return the bytes between the tensors of the transformer's units."""
    inside = [held for name, held in held_tensors(models.transformer).items() if "blocks." in name]
    return flat_bytes(inside) - sum(held.bytes for held in inside)


@pytest.mark.parametrize("kind", ["fp8", "int8"])
def test_a_plan_leaves_room_for_the_copy_that_a_product_takes(
    models: dict[str, Models], tiny_checkpoint: Path, kind: str
) -> None:
    setup = Setup(parallel=ParallelOptions(ulysses_degree=1), offload=OffloadOptions(block_storage=kind), dtype="fp32")
    served = ServedModel.of(open_checkpoint(tiny_checkpoint))
    for component in COMPONENTS:
        taken = 0
        for name, layer in getattr(models[kind], component).named_modules():
            if isinstance(layer, nn.Linear) and is_reduced(component, f"{name}.weight", layer.weight.shape):
                rows = torch.zeros(1, layer.in_features)
                with torch.no_grad(), LiveBytes() as counter:
                    made = layer(rows)
                taken = max(taken, counter.peak - made.nbytes)
        counted = unpacked_bytes(served, setup, component)
        assert 0 <= taken - counted <= 0.01 * counted
        full = dataclasses.replace(setup, offload=OffloadOptions())
        assert unpacked_bytes(served, full, component) == 0


@pytest.mark.ranks
def test_two_ranks_give_what_one_gives_with_the_same_storage(tiny_checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "model").symlink_to(tiny_checkpoint)
    run_on_ranks("tests.support.storage_ranks:two", ranks=2, folder=tmp_path)
    for found in json.loads((tmp_path / "found.json").read_text()):
        assert set(found) == {"fp8, ulysses", "fp8, tensor", "fp8, text encoder", "int8, ulysses"}
        assert max(found.values()) < 1e-5, found


REFUSED = {
    "fp8, sharded": ({"block_storage": "fp8", "shard_weights": True}, "--shard-weights"),
    "int8, sharded": ({"block_storage": "int8", "shard_weights": True}, "--shard-weights"),
    "int8, tensor": ({"block_storage": "int8", "tp_degree": 2}, "--tp-degree"),
    "int8, text encoder": ({"block_storage": "int8", "text_encoder_tp_degree": 4}, "--text-encoder-tp-degree"),
}


def _resolve(**values: Any) -> None:
    resolve_offload({option.name: option.default for option in OPTIONS} | values)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_work_with_reduced_weights_is_refused_before_a_rank_starts(name: str) -> None:
    values, remedy = REFUSED[name]
    with pytest.raises(ConfigError) as caught:
        _resolve(**values)
    assert (caught.value.code, caught.value.field) == ("config_conflict", "block_storage")
    assert caught.value.value == values["block_storage"]
    assert remedy in str(caught.value.remedy)


@pytest.mark.parametrize(
    "values",
    [
        {"block_storage": "fp8", "tp_degree": 2, "text_encoder_tp_degree": 2, "compile": True, "offload": ("dit",)},
        {"block_storage": "int8", "compile": True, "offload": ("dit", "text_encoder")},
    ],
)
def test_what_works_with_reduced_weights_is_let_through(values: dict[str, Any]) -> None:
    _resolve(**values)


def test_int8_without_torchao_is_refused_before_a_rank_starts_and_fp8_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    found = packages.importlib.util.find_spec
    monkeypatch.setattr(packages.importlib.util, "find_spec", lambda name: None if name == "torchao" else found(name))
    with pytest.raises(ConfigError) as caught:
        _resolve(block_storage="int8")
    error = caught.value
    assert (error.code, error.field, error.value) == ("missing_package", "block_storage", "int8")
    assert "torchao" in error.message
    assert "--block-storage" in str(error.remedy)
    _resolve(block_storage="fp8")


def test_a_torchao_that_does_not_load_is_told_before_weights_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao", None)  # an import of it fails
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    with pytest.raises(ConfigError) as caught:
        check_storage("int8", CPU, torch.float32)
    assert (caught.value.code, caught.value.field) == ("missing_package", "block_storage")
    check_storage("fp8", CPU, torch.float32)


def test_a_device_that_cannot_do_it_is_told_before_weights_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(*_: object) -> torch.Tensor:
        raise RuntimeError("no kernel for Float8_e4m3fn\nand a long trace")

    monkeypatch.setattr("engine.models.storage.reduce", cannot)
    with pytest.raises(ConfigError) as caught:
        check_storage("fp8", CPU, torch.bfloat16)
    assert (caught.value.code, caught.value.field, caught.value.value) == ("start_failed", "block_storage", "fp8")
    assert "no kernel for Float8_e4m3fn." in caught.value.message


def test_a_layer_of_a_components_own_kind_is_refused() -> None:
    class Own(nn.Linear):
        pass

    model = nn.Module()
    model.transformer_blocks = nn.ModuleList([nn.Sequential(Own(4, 4))])
    with pytest.raises(ConfigError) as caught:
        unpack_in_forwards(model, "transformer", storage="fp8", dtype=torch.float32)
    assert (caught.value.code, caught.value.field) == ("start_failed", "block_storage")
    assert "transformer.transformer_blocks.0.0" in caught.value.message
