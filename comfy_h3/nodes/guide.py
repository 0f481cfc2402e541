"""H3EngineGuide: a picture, clip or sound at a place of the timeline, added to a CONDITIONING."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from comfy_api.latest import io

from ...engine.contract.check_media import check_media, resolve_guides
from ...engine.contract.errors import RequestError
from ...engine.contract.geometry import AUDIO_LATENTS_PER_SECOND, FPS
from ...engine.contract.media import Guide
from ...engine.contract.requests import EncodeMedia
from ..conditioning import Conditioning, with_guides
from ..convert import latent_streams, whole_frames
from ..launcher import EngineSpec
from ..media import Uploads
from ..waiting import ready_engine, run_job
from .common import clip_inputs, clip_of, engine_input, node_errors, schema

_UNITS = ("seconds", "frames")
_PART = "guide"


class H3EngineGuide(io.ComfyNode):  # type: ignore[misc]
    """Encodes a guide and puts it behind those that a conditioning has."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Return the node's inputs and outputs."""
        return schema(
            node_id="H3EngineGuide",
            display_name="H3 Engine Guide",
            description="Holds a picture, a clip, a sound, or a clip with its sound at a place of the video. Chain "
            "several for several places. The text encoder does not see them.",
            inputs=[
                engine_input(),
                io.Conditioning.Input(
                    "conditioning", tooltip="The prompt, from H3 Engine Text Encode or another H3 Engine Guide."
                ),
                io.Latent.Input(
                    "latent", tooltip="Size and duration: the latent that H3 Engine Sampler gets, or one like it."
                ),
                io.Float.Input(
                    "position",
                    default=0.0,
                    min=-10_000.0,
                    max=10_000.0,
                    step=0.01,
                    tooltip="Where it starts, in the unit below; a negative number counts from the end: "
                    "-1 frame is the last one.",
                ),
                io.Combo.Input(
                    "unit", options=list(_UNITS), default=_UNITS[0], tooltip=f"Of position; {FPS} frames are a second."
                ),
                io.Image.Input(
                    "image",
                    optional=True,
                    tooltip="A picture, or a clip of 5, 22, 39, … (17k+5) frames; a longer one is cut to the next "
                    "such count, of fewer than 5 the first is used.",
                ),
                *(given for given in clip_inputs("image", what="A clip") if given.id != "image"),
            ],
            outputs=[
                io.Conditioning.Output(
                    "guided", display_name="CONDITIONING", tooltip="With the guide; ComfyUI's own nodes read it too."
                )
            ],
        )

    @classmethod
    async def execute(
        cls,
        *,
        engine: EngineSpec,
        conditioning: Conditioning,
        latent: dict[str, Any],
        position: float,
        unit: str,
        image: torch.Tensor | None = None,
        video: Any = None,
        audio: dict[str, Any] | None = None,
        fps: float = float(FPS),
    ) -> io.NodeOutput:
        """Return the conditioning with the guide."""
        media_input = "image" if video is None else "video"
        start = "request.guides[0]"
        placed = "seconds" if unit == "seconds" and position >= 0 else "frame"
        inputs = {"position": f"{start}.{placed}", "audio": f"{start}.audio", "fps": f"{start}.media.fps"}
        with node_errors(**inputs, **{media_input: start}):
            streams = latent_streams(latent)
            frames = whole_frames(streams[0])
            guide = _start(position, unit)
            resolve_guides((guide,), frames)
            clip = clip_of(video=video, images=("image", image), audio=audio, fps=fps)
            if clip.file is None and clip.images is None and clip.audio is None:
                raise RequestError(
                    "missing_field",
                    "There is nothing to hold.",
                    field="image",
                    remedy="Connect an image, a video or a sound.",
                )
            facts = (await ready_engine(engine)).facts
            uploads = Uploads()
            media, sound = uploads.clip(_PART, clip)
            height, width = (side * facts.spatial_ratio for side in streams[0].shape[3:])
            guide = replace(guide, media=media, audio=sound)
            request = EncodeMedia("encode_media", width, height, frames, guides=(guide,))
            check_media(request)
            result = await run_job(engine, request, uploads.parts, report=_report)
            return io.NodeOutput(with_guides(conditioning, result.pieces["conditioning"][0], result.facts))


def _start(position: float, unit: str) -> Guide:
    """Return a guide without media that starts at a position; seconds from the end are given in frames."""
    if unit == "seconds":
        return Guide(seconds=position) if position >= 0 else Guide(round(position * FPS))
    if unit not in _UNITS:
        remedy = f"Use {' or '.join(_UNITS)}."
        raise RequestError("out_of_range", f"There is no unit {unit!r}.", field="unit", value=unit, remedy=remedy)
    if not float(position).is_integer():
        raise RequestError(
            "out_of_range",
            "A frame is a whole number.",
            field="position",
            value=position,
            remedy="Use a whole number, or the unit seconds.",
        )
    return Guide(round(position))


def _report(facts: dict[str, Any]) -> str:
    """Return what was held where, from the facts of the job."""
    lines = []
    for guide in facts.get("conditions") or ():
        start, count, sound = guide["frame"], guide.get("frames") or 0, guide.get("audio_latents") or 0
        held = [f"{count} {'frames' if count > 1 else 'frame'}"] if count else []
        held += [f"{sound / AUDIO_LATENTS_PER_SECOND:.2f} s of sound"] if sound else []
        lines.append(f"{' and '.join(held)} from frame {start} ({start / FPS:.2f} s)")
    return "\n".join(lines)
