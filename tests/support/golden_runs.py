"""The golden forwards and sampling runs, done with our layout, conditions, masks and sampling; see `golden`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
from diffusers import MiniMaxH3Scheduler

from engine.conditioning import EncodedCondition
from engine.masking import UNMASKED, Edit, Masks
from engine.offload.modulation import Modulation
from engine.packing import LatentGrid, PackedLayout, build_layout, pack_audio, pack_video, unpack_audio, unpack_video
from engine.parallel.mesh import Mesh
from engine.parallel.sharding import apply_sequence_parallel, sequence_parallel_of
from engine.sampling import sample, set_schedules

from . import golden

CPU = torch.device("cpu")
Rows = tuple[torch.Tensor, torch.Tensor]
MASKED_ON_RANKS = ("e_cut_inside_a_patch", "j_guides_and_both_masks")
ON_RANKS = (
    *("i_guides_three_images", "p_guides_with_all_refs_124", "g_random_fractions__velocity_times_mask"),
    *MASKED_ON_RANKS,
)


def unmasked(kind: str) -> list[str]:
    """Return the runs of ``forward`` or ``sampling`` that this stage serves: whole, without masks."""
    runs = golden.index()[kind]
    return [
        name
        for name, run in runs.items()
        if not (run.get("mask") or run.get("masked") or run.get("start_step")) and run.get("shift_video", 12.0) == 12.0
    ]


def masked(kind: str) -> list[str]:
    """Return those with masks, fractions by the rule that we follow."""
    runs = golden.index()[kind]
    return [name for name, run in runs.items() if run.get("mask") or run.get("masked")]


def masks_of(tensors: dict[str, torch.Tensor], source: str, rows: Rows, layout: PackedLayout, patch: int) -> Masks:
    """Return the masks of a run whose source are the tensors ``source`` with ``video`` and ``audio`` filled in."""
    if "mask_cell_video" not in tensors:
        return UNMASKED
    latents = (tensors[source.format(stream)] for stream in ("video", "audio"))
    edit = Edit(*latents, tensors["mask_cell_video"], tensors["mask_cell_audio"])
    return edit.masks(*rows, layout=layout, scheduler=MiniMaxH3Scheduler(), patch=patch)


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
    rows = tensors["video_rows"], tensors["audio_rows"]
    masks = masks_of(tensors, "{}_x", rows, layout, grid.patch)
    own = {
        f"{stream}_rows": None if mask is None else mask.times(torch.tensor(run[f"sigma_{stream}"]))
        for stream, mask in (("video", masks.video), ("audio", masks.audio))
    }
    times, indices = layout.row_times(run["timestep_video"], 1 - run["sigma_audio"], **own)
    extras = layout.sequence_inputs() if sequence_parallel_of(model) is not None else {}
    with torch.no_grad():
        video, audio = model(
            hidden_states=rows[0][None],
            audio_hidden_states=rows[1][None],
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
    tensors = golden.tensors("sampling", name)
    made = sampled(model, name)
    return max(float((made[i] - tensors[f"final_{stream}"]).abs().max()) for i, stream in enumerate(("video", "audio")))


def sampled(model: Any, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the video and audio latents that we make of a golden run."""
    run = golden.index()["sampling"][name]
    tensors, conditions, grid, tags = _parts("sampling", name)
    layout = build_layout(tags, grid, conditions.blocks())
    shifts = MiniMaxH3Scheduler(run["shift_video"]), MiniMaxH3Scheduler(run["shift_audio"])
    schedules = set_schedules(*shifts, steps=run["forwards"], device=CPU)
    pictures = conditions.video_rows(
        [_condition_noise(block.video, grid, run["seed"]) for block in conditions.blocks() if block.video],
        scheduler=schedules.video,
        patch=grid.patch,
        device=CPU,
    )
    video_rows = torch.cat([*pictures, pack_video(tensors["noise_video"], grid.patch)])
    audio_rows = torch.cat([*conditions.audio_rows(CPU), pack_audio(tensors["noise_audio"])])
    made = sample(
        model,
        video_rows=video_rows,
        audio_rows=audio_rows,
        prompt_embeds=tensors["text_states"][None],
        layout=layout,
        schedules=schedules,
        boundary=lambda: None,
        report=lambda step, total: None,
        modulation=Modulation(),
        masks=masks_of(tensors, "source_{}", (video_rows, audio_rows), layout, grid.patch),
    )
    return unpack_video(made[0], grid), unpack_audio(made[1], grid)


def kept_cells(model: Any, name: str) -> dict[str, tuple[int, int]]:
    """Return of each stream of a golden run how many values are kept, and how many of them are not the source's."""
    tensors = golden.tensors("sampling", name)
    found = {}
    for stream, made in zip(("video", "audio"), sampled(model, name), strict=True):
        kept = (tensors[f"mask_cell_{stream}"] == 0).expand(made.shape)
        source = tensors[f"source_{stream}"]
        different = made[kept].view(torch.int32) != source[kept].view(torch.int32)
        found[stream] = (int(kept.sum()), int(different.sum()))
    return found


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
    found = {name: forward_difference(model, name) for name in (*unmasked("forward"), *masked("forward"))}
    found |= {name: sampling_difference(model, name) for name in ON_RANKS}
    kept = {name: kept_cells(model, name) for name in MASKED_ON_RANKS}
    (folder / f"golden-{mesh.layout.rank}.json").write_text(json.dumps({"differences": found, "kept": kept}))
