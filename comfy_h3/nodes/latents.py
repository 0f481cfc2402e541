"""H3EngineEmptyLatent: the size and duration of a video as an empty LATENT; other nodes take the same inputs.

Raises `RequestError` from what is no node.
"""

from __future__ import annotations

from typing import Any

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
                *size_inputs(width, height, low=_MULTIPLE, tooltip="width : height from 1:4 to 4:1."),
                seconds_input(),
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
            latent, frames = empty_latent(width, height, seconds)
        host.NodeDisplay().text(length_report(seconds, frames))
        return io.NodeOutput(latent, frames)


def size_inputs(width: int, height: int, *, low: int, tooltip: str, optional: bool = False) -> list[Any]:
    """Return the inputs ``width`` and ``height``; ``tooltip`` goes behind what is said of both.

    Args:
        low: smallest value; 0 where it means something.
    """
    said = f"in pixels, a multiple of {_MULTIPLE}; {tooltip}"
    span = {"min": low, "max": _MAX_SIDE, "step": _MULTIPLE, "optional": optional}
    return [
        io.Int.Input("width", default=width, tooltip=f"Width {said}", **span),
        io.Int.Input("height", default=height, tooltip=f"Height {said}", **span),
    ]


def seconds_input() -> Any:
    """Return the input ``seconds``."""
    return io.Float.Input(
        "seconds",
        default=DEFAULT_SECONDS,
        min=0.1,
        max=60.0,
        step=0.1,
        tooltip="Duration in seconds; the model was trained on about 4 to 15 s.",
    )


def empty_latent(width: int, height: int, seconds: float) -> tuple[dict[str, Any], int]:
    """Return an empty LATENT of both streams, and its pixel frames on the lattice.

    Raises:
        RequestError: ``bad_canvas``, ``bad_aspect`` or ``out_of_range``.
    """
    geometry.check_canvas(width, height, multiple=_MULTIPLE)
    frames = geometry.snap_frames(geometry.frames_of_seconds(seconds))
    ratio = _RELEASED.spatial_ratio
    video = torch.zeros(
        1, _RELEASED.latent_channels, geometry.latent_frames(frames), height // ratio, width // ratio
    )  # [1, C, T, h, w]
    audio = torch.zeros(
        1, _RELEASED.audio_latent_channels, geometry.AUDIO_CHANNELS, geometry.audio_latents(frames)
    )  # [1, Ca, 2, A]
    return {"samples": host.nested([video, audio])}, frames


def length_report(seconds: float, frames: int) -> str:
    """Return what a node shows of a duration."""
    lines = [f"{seconds:g} s → {frames} frames ({frames / geometry.FPS:.2f} s at {geometry.FPS} fps)"]
    if not geometry.TRAINED_MIN_FRAMES <= frames <= geometry.TRAINED_MAX_FRAMES:
        lines.append("Note: the model was trained on about 4 to 15 s.")
    return "\n".join(lines)
