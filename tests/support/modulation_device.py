"""What the tests of modulation tables run on the fake accelerator: denoising, the weights where they were placed."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import torch

from engine.models.bundle import Models
from engine.offload.modulation import Modulation
from engine.offload.owner import ModelOwner, place_models
from engine.offload.source import OwnMemory
from engine.placement import Needs
from engine.rank_options import RankOptions
from engine.stages.base import Latents, PromptEmbeds, StageContext
from engine.stages.denoise import denoise

from . import stages
from .fake_accelerator import FakeDevice

STEPS = 4
TEXT_ROWS = 9
LONG = 40
CASES: dict[str, dict[str, Any]] = {
    "projections with their blocks": {"modulation_tables_mb": 0},
    "tables": {"modulation_tables_mb": 10},
    "offload": {"modulation_tables_mb": 0, "offload": ("dit",)},
    "offload and tables": {"modulation_tables_mb": 10, "offload": ("dit",)},
}
LONG_CASES: dict[str, dict[str, Any]] = {
    "a long run": {"modulation_tables_mb": 0},
    "tables above the budget": {"modulation_tables_mb": 1},
}


def report(device: FakeDevice, folder: str) -> dict[str, Any]:
    """Return what each case held and moved, and by how much its result differs from that of the first of its kind."""
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    for steps, cases in ((STEPS, CASES), (LONG, LONG_CASES)):
        plain: Latents | None = None
        for name, options in cases.items():
            made, found[name] = _run(device, folder, steps=steps, options=options)
            plain = plain or made
            pairs = ((made.video, plain.video), (made.audio, plain.audio))
            found[name]["differing"] = sum(int((ours != theirs).sum()) for ours, theirs in pairs)
    return found


def _run(device: FakeDevice, folder: str, *, steps: int, options: dict[str, Any]) -> tuple[Latents, dict[str, Any]]:
    """Denoise; return the latents and what was counted from the second step on, when tables have been made."""
    # The weights of the run before are in cycles, with their hooks.
    gc.collect()
    models = stages.load(Path(folder), keep=frozenset({"transformer"}))
    placed = place_models(models, _rank_options(folder, options), needs=Needs({}))
    owner = ModelOwner(models, placed, device.torch, OwnMemory(device.torch), rank=0)
    modulation = Modulation(options["modulation_tables_mb"], projections=owner.projections)
    begun = []

    def boundary() -> None:
        if len(begun) == 1:
            device.reset()
        begun.append(device.counters().allocated)

    with owner.using("transformer", stage="denoise"), torch.no_grad():
        made = _denoise(models, device, modulation, boundary, steps)
        owner.check()
    counted = device.counters()
    weights = placed.components["transformer"].weights
    return Latents(made.video.cpu(), made.audio.cpu()), {
        "peak": counted.peak,
        "between": begun[1],
        "moved": counted.to_device,
        "tables": modulation.held,
        "projections": sum(unit.bytes for unit in weights.modulation),
        "weights": weights.bytes,
    }


def _denoise(models: Models, device: FakeDevice, modulation: Modulation, boundary: Any, steps: int) -> Latents:
    embeds = torch.randn(1, TEXT_ROWS, models.facts.text_dim, generator=torch.Generator().manual_seed(5))
    ctx = StageContext(models, device.torch, lambda *_: None, boundary, None, modulation)
    conditioning = PromptEmbeds(embeds, torch.ones(TEXT_ROWS, dtype=torch.long))
    return denoise(ctx, conditioning, width=64, height=32, frames=22, steps=steps, seed=3)


def _rank_options(folder: str, options: dict[str, Any]) -> RankOptions:
    return RankOptions(
        model=folder,
        device="hpu",
        dtype="fp32",
        stages=("denoise",),
        link="",
        data_timeout=60.0,
        ulysses_degree=1,
        **options,
    )
