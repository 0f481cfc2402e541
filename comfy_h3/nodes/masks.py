"""H3EngineLatentMask and H3EngineMaskFromImages: a LATENT with a mask of what is made anew.

``H3EngineLatentMask`` leaves on its node, as the output ``h3_mask`` of its last run: ``key``, of the source's pictures
and sound in `kept`; ``mask``, of the connected MASK there; ``carried``, of the mask that the latent came with;
``canvas``, the latent's size; ``report``, ``notes``, and ``sampling``, the last one of that size. The page's editor
starts from these; without the page the node works from its document alone.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch
from comfy_api.latest import io

from ...engine.contract.errors import RequestError
from ...engine.contract.geometry import FPS
from ...engine.contract.mask_document import MaskDocument, read_document
from .. import host, kept, timings
from ..masks import (
    CONNECTED,
    Shot,
    StreamMasks,
    masks_of_arrays,
    masks_of_document,
    masks_of_latent,
    preview,
    raster_of_file,
    to_pixels,
)
from ..media import check_audio, check_images
from ..texts import mask_report_text
from .common import known_keywords, node_errors, schema

_DOCUMENT = "document"


class H3EngineLatentMask(io.ComfyNode):  # type: ignore[misc]
    """Paints a mask onto a latent."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Return the node's inputs and outputs."""
        return schema(
            node_id="H3EngineLatentMask",
            display_name="H3 Engine Latent Mask",
            description="What of a shot is made anew, painted on its frames and its sound; everything else stays. "
            "The shaded cells are exactly what the engine regenerates.",
            inputs=[
                io.Latent.Input("latent", tooltip="The shot to edit, from H3 Engine Encode Media or a sampler."),
                io.String.Input(
                    _DOCUMENT,
                    multiline=True,
                    default="",
                    tooltip="The edit as JSON (docs/mask-document.md), written by the editor. Empty keeps everything.",
                ),
                io.Image.Input("source_images", optional=True, tooltip="The shot's frames, to paint on."),
                io.Audio.Input("source_audio", optional=True, tooltip="The shot's sound, shown as a waveform."),
                fps_input("source_images"),
                io.Mask.Input(
                    "mask",
                    optional=True,
                    tooltip="Masks of a tracker or segmenter, 24 a second, for a layer that imports them.",
                ),
            ],
            outputs=_outputs(preview_of="The source"),
            # So that the page can run what leads to this node, and no more.
            is_output_node=True,
        )

    @classmethod
    def fingerprint_inputs(cls, document: str = "", **_: Any) -> list[Any]:
        """Return what changes when a layer's file does."""
        try:
            files = [(name, host.input_file(name)) for name in _files(read_document(document or ""))]
        except RequestError:
            return []
        return [(name, file and (file.stat().st_mtime_ns, file.stat().st_size)) for name, file in files]

    @classmethod
    def execute(
        cls,
        *,
        latent: dict[str, Any],
        document: str,
        source_images: torch.Tensor | None = None,
        source_audio: dict[str, Any] | None = None,
        fps: float = float(FPS),
        mask: torch.Tensor | None = None,
    ) -> io.NodeOutput:
        """Return the latent with its mask, the mask in pixels and a preview."""
        with node_errors():
            images = None if source_images is None else check_images(source_images, name="source_images")
            audio = None if source_audio is None else check_audio(source_audio, name="source_audio")
            shot = Shot.of(latent)
            workflow = host.workflow_id(cls.hidden.extra_pnginfo)
            host.NodeDisplay().canvas(dataclasses.asdict(shot), workflow=workflow)
            painted = read_document(document, path=_DOCUMENT)
            masks = masks_of_document(painted, shot, _rasters(painted, shot, mask), path=_DOCUMENT)
            notes = _source_notes(images, shot, fps=fps)
            before = masks_of_latent(latent, shot)
            carried = None
            if before is not None:
                carried = kept.keep_cells(before.video, before.audio)
                masks = masks.joined(before)
                notes.append("Note: the latent came with a mask; what either of both regenerates is regenerated.")
            key = None if images is None and audio is None else kept.keep(images, audio, fps=fps)
            mask_key = None if mask is None else kept.keep(mask, fps=float(FPS))
            shown = {"key": key, "mask": mask_key, "carried": carried, "workflow": workflow}
            return _result(latent, masks, shot, images, fps=fps, notes=notes, shown=shown)


class H3EngineMaskFromImages(io.ComfyNode):  # type: ignore[misc]
    """Puts a MASK batch onto a latent."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Return the node's inputs and outputs."""
        return schema(
            node_id="H3EngineMaskFromImages",
            display_name="H3 Engine Mask From Images",
            description="A MASK batch, for example of a tracker or SAM, as the mask of a latent: white is made anew. "
            "A cell of 16 pixels and up to 4 frames takes the largest value in it, so that nothing thin is lost.",
            inputs=[
                io.Latent.Input("latent", tooltip="The shot to edit, from H3 Engine Encode Media or a sampler."),
                io.Mask.Input(
                    "mask",
                    tooltip="One mask for all frames, or one a frame at 24 a second; of fewer the last one is held. "
                    "As large as the canvas, or as the latent.",
                ),
                io.Float.Input(
                    "sound",
                    default=0.0,
                    min=0.0,
                    max=1.0,
                    step=0.05,
                    optional=True,
                    tooltip="The mask of all of the sound: 0 keeps it, 1 makes it anew, between is a blend.",
                ),
                io.Boolean.Input(
                    "average",
                    default=False,
                    optional=True,
                    tooltip="A cell takes the average of its 16x16 pixels in place of the largest.",
                    **known_keywords(io.Boolean.Input, advanced=True),
                ),
                io.Image.Input("source_images", optional=True, tooltip="The shot's frames, for the preview."),
                fps_input("source_images"),
            ],
            outputs=_outputs(preview_of="The source"),
        )

    @classmethod
    def execute(
        cls,
        *,
        latent: dict[str, Any],
        mask: torch.Tensor,
        sound: float = 0.0,
        average: bool = False,
        source_images: torch.Tensor | None = None,
        fps: float = float(FPS),
    ) -> io.NodeOutput:
        """Return the latent with its mask, the mask in pixels and a preview."""
        with node_errors():
            images = None if source_images is None else check_images(source_images, name="source_images")
            shot = Shot.of(latent)
            masks = masks_of_arrays(mask, sound, shot, average=average, path="mask")
            notes = [f"Note: {warning}" for warning in masks.warnings]
            return _result(latent, masks, shot, images, fps=fps, notes=notes)


def fps_input(images: str) -> Any:
    """Return the input ``fps`` of the pictures of the input ``images``."""
    return io.Float.Input(
        "fps",
        default=float(FPS),
        min=1.0,
        max=1000.0,
        step=0.01,
        optional=True,
        tooltip=f"Pictures a second of {images}.",
        **known_keywords(io.Float.Input, advanced=True),
    )


def _outputs(*, preview_of: str) -> list[Any]:
    return [
        io.Latent.Output("masked", display_name="LATENT", tooltip="The latent with its mask, for H3 Engine Sampler."),
        io.Mask.Output("pixels", display_name="MASK", tooltip="What is really made anew, in pixels, one mask a frame."),
        io.Image.Output("preview", display_name="IMAGE", tooltip=f"{preview_of}, small, with the mask tinted."),
    ]


def _files(document: MaskDocument) -> list[str]:
    """Return the uploaded files that a document's layers paint with."""
    used = (layer.file for layer in document.layers if layer.kind == "raster" and layer.enabled)
    return sorted({file for file in used if file != CONNECTED})


def _rasters(document: MaskDocument, shot: Shot, mask: torch.Tensor | None) -> dict[str, np.ndarray[Any, Any]]:
    """Return the pictures of raster layers; of files that are not there nothing, which the contract tells."""
    found: dict[str, np.ndarray[Any, Any]] = {}
    if mask is not None:
        found[CONNECTED] = mask.detach().float().clamp(0, 1).cpu().numpy()
    for name in _files(document):
        file: Path | None = host.input_file(name)
        if file is not None:
            found[name] = raster_of_file(file, frames=shot.frames, field=_DOCUMENT)
    return found


def _source_notes(images: torch.Tensor | None, shot: Shot, *, fps: float) -> list[str]:
    """Return what to say of pictures that are not quite the latent's."""
    if images is None:
        return []
    count, (height, width) = len(kept.clock_order(len(images), fps=fps)), images.shape[1:3]
    ratio = width * shot.height / (height * shot.width)
    if not 1 / 1.05 <= ratio <= 1.05:
        return [
            f"Note: source_images are {width}x{height}, the latent {shot.width}x{shot.height}: they are scaled and "
            "cropped to its shape, and so is the result. A clip whose sides are multiples of 32 keeps its pixels."
        ]
    # The last chunk may hold the clip's last picture.
    if not 0 <= shot.frames - count < 17:
        return [f"Note: source_images last {count} frames at {FPS} fps, the latent {shot.frames}."]
    return []


def _result(
    latent: dict[str, Any],
    masks: StreamMasks,
    shot: Shot,
    images: torch.Tensor | None,
    *,
    fps: float,
    notes: list[str],
    shown: dict[str, str | None] | None = None,
) -> io.NodeOutput:
    report = dataclasses.asdict(masks.report(shot))
    last = timings.last_of(dataclasses.astuple(shot))
    lines = [mask_report_text(report), *(f"Note: {warning}" for warning in report["warnings"]), *notes]
    if last is not None:
        lines.insert(1, f"The last run of this size took {last.seconds:.1f} s for {last.steps} steps.")
    host.NodeDisplay().text("\n".join(lines))
    left = {
        **(shown or {"key": None}),
        "canvas": dataclasses.asdict(shot),
        "report": report,
        "notes": notes,
        "sampling": last and dataclasses.asdict(last),
    }
    return io.NodeOutput(
        {**latent, "noise_mask": host.nested(masks.tensors())},
        to_pixels(masks.video, shot.frames),
        preview(masks.video, shot, images, fps=fps),
        ui={"h3_mask": [left]},
    )
