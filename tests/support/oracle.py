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
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from diffusers import MiniMaxH3ModularPipeline
from diffusers.modular_pipelines import minimax_h3
from PIL import Image
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


@dataclass(frozen=True)
class Conditioned:
    """What diffusers made of a request with keyframes or references.

    Attributes:
        made: the result; ``frames_uint8`` is rounded here from ``frames``.
        token_tags [L], position_ids [S, 3].
        video_conditions: latents [1, C, t, h, w]. audio_conditions: rows [2a, Ca]; both in packed order.
        prepared: of each keyframe or reference, ``frames`` [F, H, W, 3] uint8 and ``waveform`` [2, N] as far as it has
            them, the way diffusers resized and resampled them.
    """

    made: Reference
    token_tags: torch.Tensor
    position_ids: torch.Tensor
    video_conditions: list[torch.Tensor]
    audio_conditions: list[torch.Tensor]
    prepared: list[dict[str, torch.Tensor]]


def run_t2va(folder: Path, requests: list[dict[str, Any]], *, dtype: torch.dtype = torch.float32) -> list[Reference]:
    """Run diffusers' t2va workflow on ``folder``, on one thread, once for each request.

    Args:
        requests: prompt, width, height, frames, steps (forwards) and seed of each.
    """
    with tempfile.TemporaryDirectory() as scratch:
        _serve(folder, requests, workflow="t2va", dtype=dtype, out=scratch)
        return [Reference(**load_file(f"{scratch}/{index}.safetensors")) for index in range(len(requests))]


def run_conditioned(folder: Path, requests: list[dict[str, Any]]) -> list[Conditioned]:
    """Run diffusers' fl2va or ref2va workflow on ``folder``, in fp32 on one thread, once for each request.

    Args:
        requests: as of `run_t2va`, and either ``first`` and ``last`` [H, W, 3] uint8, one or both, or ``references``,
            a list of {"kind": image|video|audio, "frames": [F, H, W, 3] uint8, "fps", "audio": [c, N], "sample_rate"}.
    """
    with tempfile.TemporaryDirectory() as scratch:
        media: dict[str, torch.Tensor] = {}
        plain = [_without_tensors(request, str(index), media) for index, request in enumerate(requests)]
        save_file(media, f"{scratch}/media.safetensors")
        _serve(folder, plain, workflow=None, dtype=torch.float32, out=scratch)
        return [_conditioned(load_file(f"{scratch}/{index}.safetensors")) for index in range(len(requests))]


def _without_tensors(value: Any, path: str, media: dict[str, torch.Tensor]) -> Any:
    """Return ``value`` as JSON; its tensors go to ``media`` and leave their names."""
    if isinstance(value, torch.Tensor):
        media[path] = value.contiguous()
        return {"tensor": path}
    if isinstance(value, dict):
        return {key: _without_tensors(item, f"{path}.{key}", media) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_tensors(item, f"{path}.{number}", media) for number, item in enumerate(value)]
    return value


def _conditioned(tensors: dict[str, torch.Tensor]) -> Conditioned:
    def some(group: str) -> list[torch.Tensor]:
        names = [f"{group}.{number}" for number in range(len(tensors))]
        return [tensors[name] for name in names if name in tensors]

    prepared: list[dict[str, torch.Tensor]] = []
    while found := {
        name: tensors[key] for name in ("frames", "waveform") if (key := f"prepared.{len(prepared)}.{name}") in tensors
    }:
        prepared.append(found)
    return Conditioned(
        Reference(**{field.name: tensors[field.name] for field in fields(Reference)}),
        tensors["token_tags"],
        tensors["position_ids"],
        some("video_conditions"),
        some("audio_conditions"),
        prepared,
    )


def _serve(folder: Path, requests: list[dict[str, Any]], *, workflow: str | None, dtype: torch.dtype, out: str) -> None:
    """Have ``requests`` answered in ``out`` by a process of its own."""
    job = {"folder": str(folder), "requests": requests, "workflow": workflow, "out": out}
    subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.support.oracle"],
        input=json.dumps({**job, "dtype": str(dtype).removeprefix("torch.")}),
        text=True,
        check=True,
        cwd=ROOT,
        timeout=240,
        env=with_media_libraries(
            {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
        ),
    )


def _run(pipeline: Any, request: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Run a text's request twice: as floats and as PIL pictures."""
    states = [_call(pipeline, request, {}, output_type) for output_type in ("np", "pil")]
    pictures = np.stack([np.asarray(picture) for picture in states[1].get("videos")[0]])
    return {**_result(states[0]), "frames_uint8": torch.from_numpy(pictures)}


def _call(pipeline: Any, request: dict[str, Any], media: dict[str, Any], output_type: str) -> Any:
    return pipeline(
        prompt=request["prompt"],
        width=request["width"],
        height=request["height"],
        num_frames=request["frames"],
        num_inference_steps=request["steps"] + 1,  # diffusers counts the grid's points
        generator=torch.Generator().manual_seed(request["seed"]),
        output_type=output_type,
        **media,
    )


def _result(state: Any) -> dict[str, torch.Tensor]:
    frames = torch.from_numpy(np.asarray(state.get("videos")))[0]
    return {
        "prompt_embeds": state.get("prompt_embeds"),
        "video_latents": state.get("latents"),
        "audio_latents": state.get("audio_latents"),
        "frames": frames,
        "frames_uint8": (frames * 255).round().to(torch.uint8),
        "audio": state.get("audio"),
    }


def _run_conditioned(pipeline: Any, request: dict[str, Any], tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Run a request with media once."""

    def picture(entry: dict[str, str]) -> Image.Image:
        return Image.fromarray(tensors[entry["tensor"]].numpy())

    media: dict[str, Any] = {
        name: picture(request[key]) for key, name in (("first", "image"), ("last", "last_image")) if key in request
    }
    if "references" in request:
        media["references"] = [_reference(entry, tensors) for entry in request["references"]]
    state = _call(pipeline, request, media, "np")
    made = {**_result(state), "token_tags": state.get("text_token_tags"), "position_ids": state.get("position_ids")}
    for group, name in (("video_conditions", "condition_latents"), ("audio_conditions", "audio_condition_latents")):
        made |= {f"{group}.{number}": latent for number, latent in enumerate(state.get(name) or [])}
    shown = [SimpleNamespace(image=keyframe) for keyframe in state.get("keyframes") or []]
    for number, entry in enumerate(state.get("normalized_references") or shown):
        if getattr(entry, "image", None) is not None:
            made[f"prepared.{number}.frames"] = torch.from_numpy(np.array(entry.image))[None]
        if getattr(entry, "frames", None) is not None:
            made[f"prepared.{number}.frames"] = torch.from_numpy(np.array(entry.frames))
        if getattr(entry, "audio", None) is not None:
            made[f"prepared.{number}.waveform"] = entry.audio
    return made


def _reference(entry: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Any:
    """Return diffusers' own reference; its sound has a dimension for channels."""
    frames, audio = (tensors[entry[key]["tensor"]] if key in entry else None for key in ("frames", "audio"))
    rate = entry.get("sample_rate")
    if entry["kind"] == "audio":
        return minimax_h3.MiniMaxH3AudioReference(audio, sample_rate=rate)
    assert frames is not None
    if entry["kind"] == "image":
        return minimax_h3.MiniMaxH3ImageReference(Image.fromarray(frames[0].numpy()))
    return minimax_h3.MiniMaxH3VideoReference(frames.numpy(), fps=entry["fps"], audio=audio, sample_rate=rate)


class AnyLength(MiniMaxH3ModularPipeline):
    """The pipeline with short videos allowed."""

    min_duration = 0.0


def main() -> None:
    """Serve one job from standard input (the oracle's own process)."""
    job = json.load(sys.stdin)
    torch.set_num_threads(1)
    pipeline = AnyLength.from_pretrained(job["folder"])
    workflow = {} if job["workflow"] is None else {"workflow": job["workflow"]}
    pipeline.load_components(dtype=getattr(torch, job["dtype"]), **workflow)
    for index, request in enumerate(job["requests"]):
        if job["workflow"] == "t2va":
            tensors = _run(pipeline, request)
        else:
            tensors = _run_conditioned(pipeline, request, load_file(f"{job['out']}/media.safetensors"))
        save_file({key: value.contiguous() for key, value in tensors.items()}, f"{job['out']}/{index}.safetensors")


if __name__ == "__main__":
    main()
