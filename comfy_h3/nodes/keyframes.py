"""H3EngineKeyframes: the pictures that a video starts and ends with, its canvas and its duration."""

from __future__ import annotations

import torch
from comfy_api.latest import io

from ...engine.contract import geometry
from ...engine.contract.errors import RequestError
from ...engine.contract.limits import ModelFacts
from .. import host
from ..media import Keyframes, check_images
from .common import node_errors, schema
from .latents import empty_latent, length_report, seconds_input, size_inputs

KeyframesType = io.Custom("H3_KEYFRAMES")
_RELEASED = ModelFacts()


class H3EngineKeyframes(io.ComfyNode):  # type: ignore[misc]
    """Takes a first picture, a last one, or both."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Return the node's inputs and outputs."""
        return schema(
            node_id="H3EngineKeyframes",
            display_name="H3 Engine Keyframes",
            description="The picture that a video starts with, the one that it ends with, or both. The text encoder "
            "sees them as <Picture 1> and <Picture 2>. The canvas follows the first of them unless a size is given.",
            inputs=[
                *size_inputs(0, 0, low=0, tooltip="0: both follow the first picture."),
                seconds_input(),
                io.Image.Input(
                    "first_frame",
                    optional=True,
                    tooltip="What the video starts with; stretched to the canvas.",
                ),
                io.Image.Input(
                    "last_frame",
                    optional=True,
                    tooltip="What the video ends with; cropped to the canvas, or, alone, stretched to it.",
                ),
            ],
            outputs=[
                KeyframesType.Output("keyframes", display_name="KEYFRAMES", tooltip="For H3 Engine Text Encode."),
                io.Latent.Output(
                    "latent", display_name="LATENT", tooltip="Video and sound, both empty, on the keyframes' canvas."
                ),
            ],
        )

    @classmethod
    def execute(
        cls,
        *,
        width: int,
        height: int,
        seconds: float,
        first_frame: torch.Tensor | None = None,
        last_frame: torch.Tensor | None = None,
    ) -> io.NodeOutput:
        """Return the keyframes and the empty latent of their canvas."""
        with node_errors():
            given = {"first_frame": first_frame, "last_frame": last_frame}
            pictures = {name: check_images(images, name=name) for name, images in given.items() if images is not None}
            if not pictures:
                raise RequestError(
                    "missing_field",
                    "There is no keyframe.",
                    field="first_frame",
                    remedy="Connect a first frame, a last frame, or both.",
                )
            width, height = _canvas(width, height, next(iter(pictures.values())))
            latent, frames = empty_latent(width, height, seconds)
        notes = [
            f"Note: {name} holds {len(images)} pictures; the first one is used."
            for name, images in pictures.items()
            if len(images) > 1
        ]
        host.NodeDisplay().text("\n".join([f"Canvas {width}x{height}", length_report(seconds, frames), *notes]))
        first, last = (None if images is None else images[:1] for images in given.values())
        return io.NodeOutput(Keyframes(first, last, width, height, frames), latent)


def _canvas(width: int, height: int, anchor: torch.Tensor) -> tuple[int, int]:
    """Return the canvas: the given one, or that of the shape of ``anchor`` [F, H, W, C]."""
    if width and height:
        return width, height
    if width or height:
        missing = "height" if width else "width"
        raise RequestError(
            "missing_field",
            "Give width and height together, or neither.",
            field=missing,
            value=0,
            remedy=f"Set {missing}, or set both to 0 to follow the first picture.",
        )
    picture_height, picture_width = anchor.shape[1:3]
    return geometry.default_canvas(
        picture_width,
        picture_height,
        short_edge=_RELEASED.canvas_short_edge,
        max_pixels=_RELEASED.canvas_max_pixels,
        multiple=_RELEASED.canvas_multiple,
    )
