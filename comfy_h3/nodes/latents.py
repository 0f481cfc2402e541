"""H3EngineEmptyLatent: the size and duration of a video as an empty LATENT."""

from __future__ import annotations

import torch
from comfy_api.latest import io

from ...engine.contract import geometry
from ...engine.contract.limits import DEFAULT_SECONDS, ModelFacts
from .. import host
from .common import node_errors, schema

_RELEASED = ModelFacts()
_MULTIPLE = _RELEASED.canvas_multiple
_MAX_SIDE = 8192


class H3EngineEmptyLatent(io.ComfyNode):  # type: ignore[misc]
    """Makes an empty latent of both streams."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Return the node's inputs and outputs."""
        width, height = geometry.default_canvas(
            short_edge=_RELEASED.canvas_short_edge, max_pixels=_RELEASED.canvas_max_pixels, multiple=_MULTIPLE
        )
        return schema(
            node_id="H3EngineEmptyLatent",
            display_name="H3 Engine Empty Latent",
            description="Size and duration of a video with sound, 24 frames per second. "
            "The frame count moves up to the next one that the model makes (17n+5) and is shown on the node.",
            inputs=[
                io.Int.Input(
                    "width",
                    default=width,
                    min=_MULTIPLE,
                    max=_MAX_SIDE,
                    step=_MULTIPLE,
                    tooltip=f"Width in pixels, a multiple of {_MULTIPLE}; width : height from 1:4 to 4:1.",
                ),
                io.Int.Input(
                    "height",
                    default=height,
                    min=_MULTIPLE,
                    max=_MAX_SIDE,
                    step=_MULTIPLE,
                    tooltip=f"Height in pixels, a multiple of {_MULTIPLE}.",
                ),
                io.Float.Input(
                    "seconds",
                    default=DEFAULT_SECONDS,
                    min=0.1,
                    max=60.0,
                    step=0.1,
                    tooltip="Duration in seconds; the model was trained on about 4 to 15 s.",
                ),
            ],
            outputs=[
                io.Latent.Output("latent", display_name="LATENT", tooltip="Video and sound, both empty."),
                io.Int.Output("frames", display_name="FRAMES", tooltip="Pixel frames at 24 per second."),
            ],
        )

    @classmethod
    def execute(cls, *, width: int, height: int, seconds: float) -> io.NodeOutput:
        """Return the empty latent and its frame count."""
        with node_errors():
            geometry.check_canvas(width, height, multiple=_MULTIPLE)
            asked = geometry.frames_of_seconds(seconds)
            frames = geometry.snap_frames(asked)
        ratio = _RELEASED.spatial_ratio
        video = torch.zeros(
            1, _RELEASED.latent_channels, geometry.latent_frames(frames), height // ratio, width // ratio
        )  # [1, C, T, h, w]
        audio = torch.zeros(
            1, _RELEASED.audio_latent_channels, geometry.AUDIO_CHANNELS, geometry.audio_latents(frames)
        )  # [1, Ca, 2, A]
        host.NodeDisplay().text(_report(seconds, frames))
        return io.NodeOutput({"samples": host.nested([video, audio])}, frames)


def _report(seconds: float, frames: int) -> str:
    lines = [f"{seconds:g} s → {frames} frames ({frames / geometry.FPS:.2f} s at {geometry.FPS} fps)"]
    if not geometry.TRAINED_MIN_FRAMES <= frames <= geometry.TRAINED_MAX_FRAMES:
        lines.append("Note: the model was trained on about 4 to 15 s.")
    return "\n".join(lines)
