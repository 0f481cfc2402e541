"""What each stage takes at its peak on the fake accelerator, for the planner's closed forms to be compared with."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed import HashStore

from engine.frames import TensorFrames
from engine.models.bundle import Models
from engine.offload.modulation import Modulation
from engine.outputs import NoOutputs
from engine.parallel.layout import Layout
from engine.parallel.mesh import Mesh
from engine.rank_options import VaeOptions
from engine.stages.base import Prepared, PromptEmbeds, StageContext
from engine.stages.decode_audio import decode_audio
from engine.stages.decode_video import decode_video
from engine.stages.denoise import denoise
from engine.stages.encode_media import encode_media
from engine.stages.encode_prompt import encode_prompt
from engine.vae import spread
from engine.vae.chunks import count_chunks
from engine.vae.crew import build_crew
from tests.support import stages
from tests.support.fake_accelerator import FakeDevice
from tests.support.live_bytes import FusedAttention

SIZES = ((64, 64, 22, 24), (96, 64, 39, 60))
"""Width, height, frames and text rows of the requests."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
STEPS = 2


class _Bench:
    """One checkpoint in one type on the device."""

    def __init__(self, device: FakeDevice, folder: str, dtype: str) -> None:
        self._device = device
        self._models: Models = stages.load(Path(folder), dtype=DTYPES[dtype])
        for name in ("text_encoder", "transformer"):
            getattr(self._models, name).to(device.torch)
        mesh = Mesh(Layout(0, 1, 1), HashStore())
        mesh.device = device.torch
        vaes = build_crew(self._models, mesh, VaeOptions())
        self._ctx = StageContext(
            self._models,
            device.torch,
            *(lambda *_: None, lambda: None, vaes),
            modulation=Modulation(),
        )

    def forwards(self, width: int, height: int, frames: int, rows: int) -> dict[str, int]:
        """Return the bytes that encoding a prompt and denoising have beside what was there before."""
        embeds = torch.randn(1, rows, self._models.facts.text_dim).to(self._models.dtype)
        conditioning = PromptEmbeds(embeds, torch.ones(rows, dtype=torch.long))
        size = {"width": width, "height": height, "frames": frames}
        return {
            "encode_prompt": self._peak(lambda: encode_prompt(self._ctx, prompt="x" * rows)),
            "denoise": self._peak(lambda: denoise(self._ctx, conditioning, **size, steps=STEPS, seed=1)),
        }

    def vaes(self, width: int, height: int, frames: int) -> dict[str, int]:
        """Return the same of the stages that have a VAE brought in, its weights and gather buffers included."""
        facts, ctx = self._models.facts, self._ctx
        latents = [1, facts.latent_channels, *_cells(width, height, frames, facts.spatial_ratio)]
        sound = round(frames / 24 * 40)
        clip = torch.zeros(frames, height, width, 3, dtype=torch.uint8)
        return {
            "picture": self._peak(lambda: encode_media(ctx, [Prepared(clip[:1])])),
            "clip": self._peak(lambda: encode_media(ctx, [Prepared(clip)])),
            "sound": self._peak(lambda: encode_media(ctx, [Prepared(None, torch.zeros(2, 800 * sound))])),
            "decode_audio": self._peak(lambda: decode_audio(ctx, torch.randn(1, 32, 2, sound))),
            "decode_video": self._peak(lambda: self._decode(torch.randn(latents))),
        }

    def _decode(self, latents: torch.Tensor) -> None:
        chunks = count_chunks(latents.shape[2])
        with TensorFrames(NoOutputs(), torch.rand(1, 2, 800), chunks=chunks, dtype="uint8") as sink:
            for chunk in decode_video(self._ctx, latents):
                sink.add(chunk)

    def _peak(self, stage: Callable[[], object]) -> int:
        assert self._ctx.vaes is not None
        self._ctx.vaes.workspace.release()
        assert self._ctx.modulation is not None
        self._ctx.modulation.forget()
        before = self._device.counters().allocated
        self._device.reset()
        with FusedAttention(), torch.no_grad():
            stage()
        return self._device.counters().peak - before


def _cells(width: int, height: int, frames: int, ratio: int) -> tuple[int, int, int]:
    return (frames - 5) // 17 * 5 + 2, height // ratio, width // ratio


def report(device: FakeDevice, folders: dict[str, str]) -> list[Any]:
    """Return [preset, type, size, bytes by stage] of every case."""
    # Several tiles go together where memory is free; the planner counts what is needed at least.
    spread._LARGEST_BATCH = 1
    found = []
    for (preset, folder), dtype in itertools.product(folders.items(), DTYPES):
        bench = _Bench(device, folder, dtype)
        for size in SIZES:
            # The presets' VAEs differ in width alone.
            vaes = bench.vaes(*size[:3]) if preset == "tiny" else {}
            found.append([preset, dtype, list(size), {**bench.forwards(*size), **vaes}])
    return found
