"""Streaming on the fake accelerator: what `run_on_device` runs, and what it finds, for the tests to judge.

Results are compared on the device itself, where every weight is aligned alike.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from engine.checkpoint import open_checkpoint
from engine.contract.errors import JobError
from engine.models.bundle import Models
from engine.models.home import Home
from engine.models.loading import load_models
from engine.offload.modulation import Modulation
from engine.offload.owner import ModelOwner, place_models
from engine.offload.source import OwnMemory
from engine.parallel.weights import WeightDivision, weight_meshes
from engine.placement import Needs
from engine.rank_options import RankOptions
from engine.stacks_shares import TRANSFORMER
from engine.stages.base import PromptEmbeds, StageContext
from engine.stages.denoise import denoise
from engine.stages.encode_prompt import encode_prompt
from tests.support import stages
from tests.support.fake_accelerator import FakeDevice

MODELS = ("text_encoder", "transformer")
FAMILIES = ("dit", "text_encoder", "vae")
RESIDENT = (0, 1, 2, 99)
SIZES = {"width": 64, "height": 64, "frames": 22, "steps": 2, "seed": 1}
Report = dict[str, Any]


def options(**chosen: Any) -> RankOptions:
    """Return a rank's options; ``chosen`` are those of `OffloadOptions`."""
    fixed = {"model": "", "device": "hpu", "dtype": "fp32", "stages": (), "link": "", "data_timeout": 1.0}
    return RankOptions(ulysses_degree=1, **fixed, **chosen)  # type: ignore[arg-type]


class Bench:
    """Tiny models that are owned anew for each case."""

    def __init__(self, device: FakeDevice, folder: str) -> None:
        self.device = device
        self.models: Models = stages.load(Path(folder), keep=frozenset(MODELS))
        self._homes = [Home(getattr(self.models, name)) for name in MODELS]
        self.at: list[Report] = []

    def rest(self) -> None:
        """Have all weights on the host, as they were loaded."""
        for home in self._homes:
            home.come_back()

    def own(self, **chosen: Any) -> ModelOwner:
        """Return the owner of the models, which are on the host before."""
        self.rest()
        told = options(**chosen)
        placement = place_models(self.models, told, needs=Needs({}))
        return ModelOwner(self.models, placement, self.device.torch, OwnMemory(self.device.torch), rank=0)

    def run(self, owner: ModelOwner, tables_mb: int = 4000) -> list[torch.Tensor]:
        """Encode a prompt and denoise; return what came out, on the CPU."""
        modulation = Modulation(tables_mb, projections=owner.projections)
        ctx = StageContext(
            self.models, self.device.torch, lambda *_: None, owner.check, modulation=modulation, owner=owner
        )
        embeds = encode_prompt(ctx, prompt="a red kite")
        assert embeds is not None
        latents = denoise(ctx, embeds, **SIZES)
        modulation.forget()
        return [tensor.cpu() for tensor in (embeds.prompt_embeds, latents.video, latents.audio)]

    def see(self, owner: ModelOwner) -> torch.Tensor:
        """Run the vision tower alone, which a prompt without pictures passes over; return what it sees."""
        with owner.using("text_encoder", stage="test") as encoder:
            size = encoder.visual.patch_embed.proj.weight[0].numel()
            pixels = torch.randn(16, size, generator=torch.Generator().manual_seed(2)).to(self.device.torch)
            seen = encoder.visual(pixels, grid_thw=torch.tensor([[1, 4, 4]], device=self.device.torch))
            return seen.last_hidden_state.cpu() if hasattr(seen, "last_hidden_state") else seen[0].cpu()

    def watch(self, owner: ModelOwner) -> Callable[[], list[Report]]:
        """Note at every block that runs what is on the device; return what stops it and tells."""
        seen: list[Report] = []
        handles = []
        for name, stack, streams in _stacks(self.models, owner):

            def note(block: torch.nn.Module, _: Any, number: int, stack: str = stack, streams: Any = streams) -> None:
                owner.check()
                types = {p.device.type for n, p in block.named_parameters() if "adaln_proj" not in n}
                seen.append({"stack": stack, "number": number, "types": sorted(types), "inside": list(owner.inside),
                             "units": [list(stream.on_device) for stream in streams]})  # fmt: skip

            for number, block in enumerate(getattr(self.models, name).get_submodule(stack)):
                hook = lambda module, args, number=number, note=note: note(module, args, number)  # noqa: E731
                handles.append(block.register_forward_pre_hook(hook))

        def stop() -> list[Report]:
            for handle in handles:
                handle.remove()
            return seen

        return stop


def _stacks(models: Models, owner: ModelOwner) -> list[tuple[str, str, Any]]:
    return [
        (name, stream.units[0].name.rpartition(".")[0], list(owner._components[name]._streams))
        for name, placed in owner.placement.components.items()
        for stream in placed.streams
    ]


def placed_bytes(owner: ModelOwner) -> Report:
    """Return what the placement says of each component."""
    return {
        name: {"device": placed.device_bytes, "host": placed.host_bytes, "stays": placed.stays,
               "resident": [sorted(stream.resident) for stream in placed.streams],
               "slots": [stream.slots for stream in placed.streams]}
        for name, placed in owner.placement.components.items()
    }  # fmt: skip


def subsets(device: FakeDevice, folder: str) -> list[Report]:
    """Every subset of families and number of resident blocks: results, places and bytes."""
    bench, reference, told = Bench(device, folder), None, []
    chosen = [c for size in range(4) for c in itertools.combinations(FAMILIES, size)]
    for families in chosen:
        # The VAEs are not owned here: naming them changes nothing, and one number shows it.
        for resident in RESIDENT if "vae" not in families and families else (0,):
            bench.rest()
            begun = device.counters().allocated
            owner = bench.own(offload=families, resident_blocks=resident)
            stop = bench.watch(owner)
            device.reset()
            made = bench.run(owner)
            peak, moved = device.counters().peak - begun, device.counters().to_device
            again = bench.run(owner)
            made.append(bench.see(owner))
            seen = stop()
            reference = reference or made
            owner.check()
            told.append(
                {"families": families, "resident": resident, "seen": seen, "peak": peak, "moved": moved,
                 "layers": _unit_bytes(owner), "placed": placed_bytes(owner),
                 "held": owner.held(), "host": owner.host_bytes,
                 "same": [torch.equal(a, b) for a, b in zip(made, reference, strict=True)],
                 "again": [torch.equal(a, b) for a, b in zip(again, reference[:3], strict=True)]}
            )  # fmt: skip
            told[-1]["resting"] = device.counters().allocated - begun
            owner.remove()
            told[-1]["left"] = device.counters().allocated - begun
            told[-1]["hooks"] = _hooks(bench.models)
            del owner
    return told


def _unit_bytes(owner: ModelOwner) -> list[int]:
    """Return the bytes of a vision block and of a decoder layer."""
    return [units[0].bytes for units in owner.placement.components["text_encoder"].weights.stacks.values()]


def _hooks(models: Models) -> int:
    return sum(
        len(module._forward_hooks) + len(module._forward_pre_hooks)
        for name in MODELS
        for module in getattr(models, name).modules()
    )


def budgets(device: FakeDevice, folder: str) -> Report:
    """One at a time where both do not fit; what a full device tells; what runs afterwards."""
    bench = Bench(device, folder)
    roomy = bench.own(offload=("dit", "text_encoder"), resident_blocks=1)
    wanted = bench.run(roomy)
    both = placed_bytes(roomy)
    roomy.remove()
    del roomy
    largest = max(component["device"] for component in both.values())
    owner = bench.own(offload=("dit", "text_encoder"), resident_blocks=1, gpu_memory=(largest + 1) / 1e9)
    stop = bench.watch(owner)
    made = bench.run(owner)
    told: Report = {
        "stays": {name: component["stays"] for name, component in placed_bytes(owner).items()},
        "inside": sorted({tuple(at["inside"]) for at in stop()}),
        "after": list(owner.inside),
        "same": [torch.equal(a, b) for a, b in zip(made, wanted, strict=True)],
    }
    told["failed"] = _run_short_of_memory(bench, owner, device)
    told["inside_after_failure"] = list(owner.inside)
    told["left_after_failure"] = owner.held()
    owner.check()
    told["recovered"] = [torch.equal(a, b) for a, b in zip(bench.run(owner), wanted, strict=True)]
    owner.remove()
    told["auto"] = _auto(bench)
    return told


def _run_short_of_memory(bench: Bench, owner: ModelOwner, device: FakeDevice) -> Report:
    device.limit(device.counters().allocated + owner.placement.components["text_encoder"].device_bytes // 2)
    try:
        bench.run(owner)
    except JobError as error:
        return error.to_dict()
    finally:
        device.limit()
    raise AssertionError("it cannot fit")


def _auto(bench: Bench) -> list[list[int]]:
    """Return how many blocks of each stack are found to stay, given what 0, 7 and 50 take."""
    bench.rest()
    chosen: dict[str, Any] = {"offload": ("text_encoder",)}

    def place(**more: Any) -> Any:
        return place_models(bench.models, options(**chosen, **more), needs=Needs({}))

    found = []
    for budget in (place(resident_blocks=count).on_device("text_encoder") for count in (0, 7, 50)):
        held = place(resident_blocks=None, gpu_memory=budget / 1e9).components["text_encoder"]
        found.append([len(stream.resident) for stream in held.streams])
    return found


def divided(device: FakeDevice, folder: str) -> Report:
    """A transformer whose layers are divided (over one rank), read to the host: results, and where its weights were."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    mesh, _ = weight_meshes(device.torch, tensor=distributed.group.WORLD, shard=None)
    made, told = [], {}
    for name, divisions in {"whole": {}, "divided": {"transformer": WeightDivision(TRANSFORMER, tensor=mesh)}}.items():
        models = load_models(
            open_checkpoint(Path(folder)),
            device=device.torch,
            dtype=torch.float32,
            keep=frozenset({"transformer"}),
            on_bytes=lambda *_: None,
            divisions=divisions,
            from_host=frozenset({"transformer"}),
        )
        placement = place_models(models, options(offload=("dit",)), needs=Needs({}))
        seen: list[Any] = told.setdefault(name, [])
        blocks = models.transformer.transformer_blocks

        def look(*_: Any, block: Any = blocks[1], seen: list[Any] = seen) -> None:
            weight = block.attn.to_q.weight
            seen.append((type(weight).__name__, weight.device.type))

        look()
        owner = ModelOwner(models, placement, device.torch, OwnMemory(device.torch), rank=0)
        blocks[1].register_forward_pre_hook(look)
        made.append(_denoise_noise(models, owner, device))
        owner.remove()
        look()
    return {**told, "same": torch.equal(*made)}


def _denoise_noise(models: Models, owner: ModelOwner, device: FakeDevice) -> torch.Tensor:
    """Denoise with conditioning that is noise; return the picture's latents."""
    modulation = Modulation(projections=owner.projections)
    ctx = StageContext(models, device.torch, lambda *_: None, owner.check, modulation=modulation, owner=owner)
    noise = torch.randn(1, 7, models.transformer.config.text_dim, generator=torch.Generator().manual_seed(0))
    embeds = PromptEmbeds(noise.to(device.torch), torch.ones(7, dtype=torch.long, device=device.torch))
    return denoise(ctx, embeds, **SIZES).video.cpu()


def report(device: FakeDevice, folder: str) -> Report:
    """Return all of it."""
    return {
        "subsets": subsets(device, folder),
        "budgets": budgets(device, folder),
        "divided": divided(device, folder),
    }
