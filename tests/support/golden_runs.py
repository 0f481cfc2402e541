"""The golden forwards and sampling runs, done with our layout, conditions and sampling; see `golden`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
from diffusers import MiniMaxH3Scheduler

from engine.conditioning import EncodedCondition
from engine.packing import LatentGrid, build_layout, pack_audio, pack_video, unpack_audio, unpack_video
from engine.parallel.mesh import Mesh
from engine.parallel.sharding import apply_sequence_parallel, sequence_parallel_of
from engine.sampling import sample, set_schedules

from . import golden

CPU = torch.device("cpu")
ON_RANKS = ("i_guides_three_images", "p_guides_with_all_refs_124")


def unmasked(kind: str) -> list[str]:
    """Return the runs of ``forward`` or ``sampling`` that this stage serves: whole, without masks."""
    runs = golden.index()[kind]
    return [
        name
        for name, run in runs.items()
        if not (run.get("mask") or run.get("masked") or run.get("start_step")) and run.get("shift_video", 12.0) == 12.0
    ]


def wrapped(mesh: Mesh | None) -> Any:
    """Return the golden transformer, shared by the ranks of ``mesh``."""
    model = golden.transformer()
    if mesh is not None:
        apply_sequence_parallel(model, mesh)
    return model


def _parts(file: str, name: str) -> tuple[dict[str, torch.Tensor], golden.Conditions, LatentGrid, torch.Tensor]:
    """Return a run's tensors, conditions, grid and tags."""
    run, tensors = golden.index()[file][name], golden.tensors(file, name)
    video, audio = (tensors[f"{stream}_x" if file == "forward" else f"noise_{stream}"] for stream in ("video", "audio"))
    config = golden.index()["transformer_config"]
    grid = LatentGrid(
        channels=config["in_channels"],
        frames=video.shape[2],
        height=video.shape[3],
        width=video.shape[4],
        audio_channels=config["audio_in_channels"],
        audio_length=audio.shape[3],
        patch=config["patch_size"][1],
    )
    length = tensors["text_states"].shape[0]
    tags = tensors.get("text_tags", tensors.get("row_tag", torch.ones(length)))[:length].long()
    return tensors, golden.conditions(run, tensors), grid, tags


def forward_difference(model: Any, name: str, *, late: int = 0) -> float:
    """Return by how much the velocities of a golden forward miss; ``late``: frames that guides are moved by."""
    run = golden.index()["forward"][name]
    tensors, conditions, grid, tags = _parts("forward", name)
    moved = tuple(EncodedCondition(entry.frame + late, entry.video, entry.audio) for entry in conditions.conditions)
    layout = build_layout(tags, grid, dataclasses.replace(conditions, conditions=moved).blocks())
    times, indices = layout.row_times(run["timestep_video"], 1 - run["sigma_audio"])
    extras = layout.sequence_inputs() if sequence_parallel_of(model) is not None else {}
    with torch.no_grad():
        video, audio = model(
            hidden_states=tensors["video_rows"][None],
            audio_hidden_states=tensors["audio_rows"][None],
            encoder_hidden_states=tensors["text_states"][None],
            timestep=times,
            timestep_indices=indices,
            return_dict=False,
            **layout.forward_inputs(CPU),
            **extras,
        )
    targets = video[0, layout.condition_video_rows :], audio[0, layout.condition_audio_rows :]
    return _difference(grid, targets, (tensors["velocity_video"], tensors["velocity_audio"]))


def sampling_difference(model: Any, name: str) -> float:
    """Return by how much the latents of a golden run miss."""
    run = golden.index()["sampling"][name]
    tensors, conditions, grid, tags = _parts("sampling", name)
    layout = build_layout(tags, grid, conditions.blocks())
    schedules = set_schedules(MiniMaxH3Scheduler(12.0), MiniMaxH3Scheduler(3.0), steps=run["forwards"], device=CPU)
    pictures = conditions.video_rows(
        [_condition_noise(block.video, grid, run["seed"]) for block in conditions.blocks() if block.video],
        scheduler=schedules.video,
        patch=grid.patch,
        device=CPU,
    )
    made = sample(
        model,
        video_rows=torch.cat([*pictures, pack_video(tensors["noise_video"], grid.patch)]),
        audio_rows=torch.cat([*conditions.audio_rows(CPU), pack_audio(tensors["noise_audio"])]),
        prompt_embeds=tensors["text_states"][None],
        layout=layout,
        schedules=schedules,
        boundary=lambda: None,
        report=lambda step, total: None,
    )
    return _difference(grid, made, (tensors["final_video"], tensors["final_audio"]))


def _condition_noise(size: tuple[int, int, int], grid: LatentGrid, seed: int) -> torch.Tensor:
    """Return the noise of a golden condition: drawn in rows, from the seed's beginning for each of them."""
    frames, height, width = size
    own = dataclasses.replace(grid, frames=frames, height=height, width=width)
    rows = frames * (height // grid.patch) * (width // grid.patch)
    drawn = torch.randn((rows, grid.channels * grid.patch**2), generator=torch.Generator().manual_seed(seed))
    return unpack_video(drawn, own)


def _difference(
    grid: LatentGrid, rows: tuple[torch.Tensor, torch.Tensor], wanted: tuple[torch.Tensor, torch.Tensor]
) -> float:
    """Return the largest difference between the target's video and audio rows and the latents wanted."""
    made = (unpack_video(rows[0], grid), unpack_audio(rows[1], grid))
    return max(float((a - b).abs().max()) for a, b in zip(made, wanted, strict=True))


def on_ranks(mesh: Mesh, folder: Path) -> None:
    """Write the differences that this rank finds when all of ``mesh`` share the sequence."""
    model = wrapped(mesh)
    found = {name: forward_difference(model, name) for name in unmasked("forward")}
    found |= {name: sampling_difference(model, name) for name in ON_RANKS}
    (folder / f"golden-{mesh.layout.rank}.json").write_text(json.dumps(found))
