"""H3EngineExtend: a shot as part of a longer one, whose rest is to be made."""

from __future__ import annotations

from typing import Any

import torch
from comfy_api.latest import io

from ...engine.contract.extend import Extension, plan_extension
from ...engine.contract.geometry import AUDIO_CHANNELS, FPS, frames_of_latents
from ...engine.contract.mask_cells import CELL
from .. import host
from ..convert import latent_streams, own_length, with_own_length
from ..masks import Shot, StreamMasks, masks_of_latent
from .common import known_keywords, node_errors, schema

_MAX_SECONDS = 60.0


class H3EngineExtend(io.ComfyNode):  # type: ignore[misc]
    """Makes a latent longer and masks what is new."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Return the node's inputs and outputs."""
        seconds = {"default": 0.0, "min": 0.0, "max": _MAX_SECONDS, "step": 0.1}
        return schema(
            node_id="H3EngineExtend",
            display_name="H3 Engine Extend",
            description="Continues a shot: a longer latent that holds it, with a mask of what is new. "
            "Picture and sound stay in step, however often that is done.",
            inputs=[
                io.Latent.Input("latent", tooltip="The shot, from H3 Engine Encode Media or a sampler."),
                io.Float.Input(
                    "after",
                    **{**seconds, "default": 4.0},
                    tooltip="Seconds to add behind it; the length moves up to the next one that the model makes.",
                ),
                io.Float.Input(
                    "before",
                    **seconds,
                    tooltip="Seconds to add in front of it, in steps of 2.125 s, up.",
                ),
                io.Float.Input(
                    "overlap",
                    **seconds,
                    optional=True,
                    tooltip="How many seconds of the shot stay in the new latent, as context, where it grows; for "
                    "shots that are too long to be run whole. 0: all of it. H3 Engine Composite joins the rest.",
                    **known_keywords(io.Float.Input, advanced=True),
                ),
            ],
            outputs=[
                io.Latent.Output("longer", display_name="LATENT", tooltip="The longer latent, its new part masked."),
                io.Int.Output(
                    "offset",
                    display_name="OFFSET",
                    tooltip="Frame of the new latent at which the shot begins, for H3 Engine Composite.",
                ),
            ],
        )

    @classmethod
    def execute(cls, *, latent: dict[str, Any], after: float, before: float, overlap: float = 0.0) -> io.NodeOutput:
        """Return the longer latent and where the shot is in it."""
        with node_errors(latent="source"):
            shot = Shot.of(latent)
            kept = round(overlap * FPS) if overlap else None
            own = own_length(latent, shot.frames)
            plan = plan_extension(shot.frames, own=own, before=before, after=after, overlap=kept)
            longer = _placed(latent, plan)
            masks = _masks(masks_of_latent(latent, shot), plan, shot)
        offset = frames_of_latents(plan.kept_latents.start) - frames_of_latents(plan.taken_latents.start)
        host.NodeDisplay().text(_report(plan, own.frames if own else shot.frames))
        made = {**latent, "samples": longer, "noise_mask": host.nested(masks.tensors())}
        return io.NodeOutput(with_own_length(made, None if own is None or after else plan.own), offset)


def _placed(latent: dict[str, Any], plan: Extension) -> Any:
    """Return both streams of the new length, with what is taken of the source where it is kept."""
    video, audio = latent_streams(latent)
    new_video = video.new_zeros((*video.shape[:2], len(plan.video_mask), *video.shape[3:]))
    new_audio = audio.new_zeros((*audio.shape[:3], len(plan.audio_mask)))
    new_video[:, :, _slice(plan.kept_latents)] = video[:, :, _slice(plan.taken_latents)]
    new_audio[..., _slice(plan.kept_audio)] = audio[..., _slice(plan.taken_audio)]
    return host.nested([new_video, new_audio])


def _masks(before: StreamMasks | None, plan: Extension, shot: Shot) -> StreamMasks:
    """Return the new part's masks, with those that the source had where it is kept."""
    rows, columns = shot.height // CELL, shot.width // CELL
    video = torch.tensor(plan.video_mask)[:, None, None].repeat(1, rows, columns).numpy()
    audio = torch.tensor(plan.audio_mask).repeat(AUDIO_CHANNELS, 1).numpy()
    if before is not None:
        video[_slice(plan.kept_latents)] = before.video[_slice(plan.taken_latents)]
        audio[:, _slice(plan.kept_audio)] = before.audio[:, _slice(plan.taken_audio)]
    return StreamMasks(video, audio)


def _slice(run: range) -> slice:
    return slice(run.start, run.stop)


def _report(plan: Extension, frames: int) -> str:
    """Return what becomes of a shot of ``frames``, its own."""
    kept = plan.kept_frames
    total, end = plan.own.frames, min(kept.stop, plan.own.frames)
    new = total - (end - kept.start)
    first = frames_of_latents(plan.taken_latents.start)
    places = [f"to {kept.start - 1}"] * bool(kept.start) + [f"from {end}"] * (end < total)
    same = f"The shot's frames {first} to {first + end - kept.start - 1} stay"
    return "\n".join(
        [
            f"{frames} → {total} frames ({total / FPS:.2f} s), {new} of them new ({new / FPS:.2f} s)",
            same + (f" as {kept.start} to {end - 1}" if kept.start != first else "") + f"; new {' and '.join(places)}",
        ]
    )
