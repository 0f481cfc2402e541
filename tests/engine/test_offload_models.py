"""The tiny models under their owner on the CPU, with copies that land late: compiled, failing, twice."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.distributed import HashStore

from engine.models.bundle import Models
from engine.models.home import places
from engine.offload.modulation import Modulation
from engine.offload.owner import ModelOwner, place_models
from engine.offload.source import OwnMemory
from engine.offload.stream_sync import Copies, PlainCopies
from engine.parallel.compile import compile_blocks
from engine.parallel.layout import Layout
from engine.parallel.mesh import Mesh
from engine.parallel.sharding import apply_sequence_parallel
from engine.placement import Needs
from engine.stages.base import PromptEmbeds, StageContext
from engine.stages.denoise import denoise
from engine.stages.encode_prompt import encode_prompt
from tests.support import stages
from tests.support.delayed_copies import DelayedCopies
from tests.support.offload_cases import options

pytestmark = pytest.mark.usefixtures("one_thread")
KEEP = frozenset({"text_encoder", "transformer"})


def own(models: Models, copies: Copies, *, resident: int = 0) -> ModelOwner:
    told = options(offload=("dit", "text_encoder"), resident_blocks=resident)
    placement = place_models(models, told, needs=Needs({}))
    return ModelOwner(models, placement, stages.CPU, OwnMemory(stages.CPU), rank=0, copies=copies)


def run(models: Models, owner: ModelOwner, *, tables_mb: int = 4000) -> tuple[torch.Tensor, torch.Tensor]:
    """Encode and denoise; ``tables_mb`` 0: the projections run in every forward."""
    modulation = Modulation(tables_mb, projections=owner.projections)
    ctx = StageContext(models, stages.CPU, lambda *_: None, owner.check, modulation=modulation, owner=owner)
    embeds = encode_prompt(ctx, prompt="a red kite")
    assert embeds is not None
    return embeds.prompt_embeds, _denoise(ctx, embeds)


def _denoise(ctx: StageContext, embeds: PromptEmbeds) -> torch.Tensor:
    return denoise(ctx, embeds, width=64, height=64, frames=22, steps=2, seed=1).video


@pytest.fixture(scope="module")
def models(tiny_checkpoint: Path) -> Models:
    return stages.load(tiny_checkpoint, keep=KEEP)


@pytest.fixture(scope="module")
def wanted(models: Models) -> tuple[torch.Tensor, torch.Tensor]:
    """With copies that are done at once. The owner is taken away: the weights keep the places that it gave them."""
    owner = own(models, PlainCopies())
    made = run(models, owner)
    owner.remove()
    return made


@pytest.mark.parametrize("tables_mb", [0, 4000])
@pytest.mark.parametrize("resident", [0, 1])
def test_copies_that_land_late_change_nothing(
    models: Models, wanted: tuple[torch.Tensor, torch.Tensor], resident: int, tables_mb: int
) -> None:
    copies = DelayedCopies()
    owner = own(models, copies, resident=resident)
    for _ in range(2):
        made = run(models, owner, tables_mb=tables_mb)
        assert all(torch.equal(a, b) for a, b in zip(made, wanted, strict=True))
    owner.remove()
    owner.check()
    assert copies.reused == 0


def test_compiled_blocks_whose_projections_stream_give_the_same_bits(tiny_checkpoint: Path) -> None:
    """The projection is called within the compiled block, where its hooks are not; the block's bring it."""
    made = []
    for compiled in (False, True):
        models = stages.load(tiny_checkpoint, keep=KEEP)
        apply_sequence_parallel(models.transformer, Mesh(Layout(0, 1, 1), HashStore()))
        if compiled:
            compile_blocks(models.transformer, backend="eager")
        made.append(run(models, own(models, DelayedCopies()), tables_mb=0))
    assert all(torch.equal(a, b) for a, b in zip(*made, strict=True))


def test_a_failing_block_leaves_the_weights_at_home_and_the_next_run_is_as_the_first(
    models: Models, wanted: tuple[torch.Tensor, torch.Tensor]
) -> None:
    owner = own(models, DelayedCopies(), resident=1)
    owner.remove()
    home = {place.name: place.tensor.data_ptr() for place in places(models.transformer)}

    def fail(*_: object) -> None:
        raise ValueError("planted")

    handle = models.transformer.transformer_blocks[1].ff.register_forward_pre_hook(fail)
    with pytest.raises(ValueError, match="planted"):
        run(models, owner)
    handle.remove()
    owner.check()
    owner.remove()
    owner.check()
    assert {place.name: place.tensor.data_ptr() for place in places(models.transformer)} == home
    assert all(torch.equal(a, b) for a, b in zip(run(models, owner), wanted, strict=True))
    owner.remove()
