"""Running the engine's stages in the test's own process, on one rank."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.distributed import HashStore

from engine.checkpoint import open_checkpoint
from engine.conditioning import NOTHING, Conditions
from engine.models.bundle import Models
from engine.models.loading import load_models
from engine.parallel.layout import Layout
from engine.parallel.mesh import Mesh
from engine.rank_options import WEIGHTED, VaeOptions
from engine.runner_media import JobMedia
from engine.stages.base import Latents, PromptEmbeds, StageContext
from engine.stages.decode_audio import decode_audio
from engine.stages.decode_video import decode_video
from engine.stages.denoise import denoise
from engine.stages.encode_media import encode_media
from engine.stages.encode_prompt import encode_prompt
from engine.vae.crew import VaeCrew, build_crew

CPU = torch.device("cpu")


@dataclass
class Calls:
    """What a stage told its context: boundaries and reports, in order."""

    log: list[str | tuple[int, int]] = field(default_factory=list)

    def boundary(self) -> None:
        """Note a boundary."""
        self.log.append("boundary")

    def report(self, step: int, total: int) -> None:
        """Note a report."""
        self.log.append((step, total))


def load(folder: Path, *, dtype: torch.dtype = torch.float32, keep: frozenset[str] = frozenset(WEIGHTED)) -> Models:
    """Load a checkpoint on the CPU."""
    return load_models(open_checkpoint(folder), device=CPU, dtype=dtype, keep=keep, on_bytes=lambda *_: None)


def crew(models: Models, *, tile: int = 256, overlap: int = 64, **options: Any) -> VaeCrew:
    """Return the owner of the VAEs on one rank."""
    mesh = Mesh(Layout(0, 1, 1), HashStore())
    return build_crew(models, mesh, VaeOptions(vae_tile=tile, vae_tile_overlap=overlap, **options))


def context(models: Models, calls: Calls | None = None) -> StageContext:
    """Return a one-rank context."""
    calls = calls or Calls()
    return StageContext(models, CPU, calls.report, calls.boundary, crew(models))


@dataclass(frozen=True)
class Result:
    """What the four stages made; ``frames`` [F, H, W, 3] fp32 0..1, ``audio`` [1, 2, N]."""

    embeds: PromptEmbeds
    latents: Latents
    frames: torch.Tensor
    audio: torch.Tensor
    conditions: Conditions = NOTHING


def run_t2va(models: Models, *, prompt: str, width: int, height: int, frames: int, steps: int, seed: int) -> Result:
    """Run the four stages of a text's request."""
    return run_media(models, JobMedia(frames), prompt=prompt, width=width, height=height, steps=steps, seed=seed)


def run_media(
    models: Models, media: JobMedia, *, prompt: str, width: int, height: int, steps: int, seed: int
) -> Result:
    """Run all stages of a request with ``media``, which are prepared."""
    ctx = context(models)
    embeds = encode_prompt(ctx, prompt=prompt, shown=media.shown())
    encoded = encode_media(ctx, media.media())
    assert embeds is not None
    assert encoded is not None
    conditions = media.assemble(encoded)
    latents = denoise(
        ctx,
        embeds,
        width=width,
        height=height,
        frames=media.frames,
        steps=steps,
        seed=seed,
        conditions=conditions,
    )
    audio = decode_audio(ctx, latents.audio)
    assert audio is not None
    return Result(embeds, latents, torch.cat(list(decode_video(ctx, latents.video))), audio, conditions)
