"""diffusers' own MiniMax-H3 pipeline, the reference that parity is tested against.

It runs in a process of its own, with torchvision, which its Qwen3-VL processor imports, from the tests' side folder.
Nothing here is used by the engine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from .side_folder import with_media_libraries

ROOT = Path(__file__).resolve().parents[2]


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


def run_t2va(folder: Path, requests: list[dict[str, Any]], *, dtype: torch.dtype = torch.float32) -> list[Reference]:
    """Run diffusers' t2va workflow on ``folder``, on one thread, once for each request.

    Args:
        requests: prompt, width, height, frames, steps (forwards) and seed of each.
    """
    with tempfile.TemporaryDirectory() as scratch:
        job = {"folder": str(folder), "requests": requests, "dtype": str(dtype).removeprefix("torch."), "out": scratch}
        subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "tests.support.oracle"],
            input=json.dumps(job),
            text=True,
            check=True,
            cwd=ROOT,
            timeout=240,
            env=with_media_libraries(
                {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
            ),
        )
        return [Reference(**load_file(f"{scratch}/{index}.safetensors")) for index in range(len(requests))]


def _run(pipeline: Any, request: dict[str, Any]) -> Reference:
    """Run one request twice: as floats and as PIL pictures."""
    import numpy as np

    states = [
        pipeline(
            prompt=request["prompt"],
            width=request["width"],
            height=request["height"],
            num_frames=request["frames"],
            num_inference_steps=request["steps"] + 1,  # diffusers counts the grid's points
            generator=torch.Generator().manual_seed(request["seed"]),
            output_type=output_type,
        )
        for output_type in ("np", "pil")
    ]
    pictures = np.stack([np.asarray(picture) for picture in states[1].get("videos")[0]])
    return Reference(
        prompt_embeds=states[0].get("prompt_embeds"),
        video_latents=states[0].get("latents"),
        audio_latents=states[0].get("audio_latents"),
        frames=torch.from_numpy(np.asarray(states[0].get("videos")))[0],
        frames_uint8=torch.from_numpy(pictures),
        audio=states[0].get("audio"),
    )


def main() -> None:
    """Serve one job from standard input (the oracle's own process)."""
    from diffusers import MiniMaxH3ModularPipeline

    class AnyLength(MiniMaxH3ModularPipeline):
        """The pipeline with short videos allowed."""

        min_duration = 0.0

    job = json.load(sys.stdin)
    torch.set_num_threads(1)
    pipeline = AnyLength.from_pretrained(job["folder"])
    pipeline.load_components(workflow="t2va", dtype=getattr(torch, job["dtype"]))
    for index, request in enumerate(job["requests"]):
        reference = _run(pipeline, request)
        tensors = {field.name: getattr(reference, field.name).contiguous() for field in fields(reference)}
        save_file(tensors, f"{job['out']}/{index}.safetensors")


if __name__ == "__main__":
    main()
