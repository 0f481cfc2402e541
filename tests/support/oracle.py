"""diffusers' own MiniMax-H3 pipeline, the reference that parity is tested against.

Its Qwen3-VL processor imports torchvision, whose wheel does not load beside a CPU build of torch: it lives in the side
folder ``.cache/oracle`` (see ``install_torchvision``), and the two operator schemas that it registers fakes for are
declared before its import. Nothing here is used by the engine.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

FOLDER = Path(__file__).resolve().parents[2] / ".cache" / "oracle"
_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_libraries: list[torch.library.Library] = []


@dataclass(frozen=True)
class Reference:
    """What diffusers made of a request.

    ``prompt_embeds`` [1, L, D]; ``video_latents`` [1, C, T, h, w]; ``audio_latents`` [2, Ca, A]; ``frames``
    [F, H, W, 3] fp32 0..1; ``frames_uint8`` the same as its PIL output; ``audio`` [1, 2, N].
    """

    prompt_embeds: torch.Tensor
    video_latents: torch.Tensor
    audio_latents: torch.Tensor
    frames: torch.Tensor
    frames_uint8: torch.Tensor
    audio: torch.Tensor


def install_torchvision() -> None:
    """Put torchvision's Python side within reach, downloading it once."""
    if not (FOLDER / "torchvision").is_dir():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(FOLDER)]
        subprocess.run([*pip, "torchvision==0.28.0"], check=True, timeout=280)
    if importlib.util.find_spec("torchvision") is None:
        sys.path.append(str(FOLDER))
        library = torch.library.Library("torchvision", "DEF")
        for schema in _SCHEMAS:
            library.define(schema)
        _libraries.append(library)


@lru_cache(maxsize=2)
def load_pipeline(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """Return diffusers' pipeline on ``folder``, without its lower limit on the duration."""
    install_torchvision()
    from diffusers import MiniMaxH3ModularPipeline

    class AnyLength(MiniMaxH3ModularPipeline):
        """The pipeline with short videos allowed."""

        min_duration = 0.0

    pipeline = AnyLength.from_pretrained(str(folder))
    pipeline.load_components(workflow="t2va", dtype=dtype)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def run_t2va(
    folder: Path, *, prompt: str, width: int, height: int, frames: int, steps: int, seed: int,
    dtype: torch.dtype = torch.float32,
) -> Reference:  # fmt: skip
    """Run ``steps`` forwards of diffusers' t2va workflow, and its decoders on the latents it made."""
    pipeline = load_pipeline(folder, dtype)
    arguments = {
        "prompt": prompt, "width": width, "height": height, "num_frames": frames, "num_inference_steps": steps + 1,
    }  # fmt: skip
    outputs = {}
    for output_type in ("np", "pil"):
        outputs[output_type] = pipeline(
            **arguments, output_type=output_type, generator=torch.Generator().manual_seed(seed)
        )
    state = outputs["np"]
    pictures = np.stack([np.asarray(picture) for picture in outputs["pil"].get("videos")[0]])
    return Reference(
        prompt_embeds=state.get("prompt_embeds"),
        video_latents=state.get("latents"),
        audio_latents=state.get("audio_latents"),
        frames=torch.from_numpy(np.asarray(state.get("videos")))[0],
        frames_uint8=torch.from_numpy(pictures),
        audio=state.get("audio"),
    )
