"""H3EngineComposite: source and result of an edit, joined through its mask."""

from __future__ import annotations

from typing import Any

import torch
from comfy_api.latest import io

from ...engine.contract.errors import RequestError
from ...engine.contract.geometry import FPS
from .. import host, kept
from ..composite import composite_audio, composite_images
from ..convert import own_length
from ..masks import Shot, StreamMasks, masks_of_arrays, masks_of_latent
from ..media import check_audio, check_images
from .common import known_keywords, node_errors, schema
from .masks import fps_input

_MAX_FEATHER = 256
_MAX_FEATHER_MS = 500.0
_MAX_OFFSET = 100_000


class H3EngineComposite(io.ComfyNode):  # type: ignore[misc]
    """Keeps the source's own pixels and samples where nothing was made anew."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Return the node's inputs and outputs."""
        return schema(
            node_id="H3EngineComposite",
            display_name="H3 Engine Composite",
            description="Puts what was made anew into the source: outside of the mask its pixels and samples stay its "
            "own, bit for bit. What the source has before or after the result is joined to it; "
            "frames that only lengthened the clip are cut, so that it comes out as long as it went in.",
            inputs=[
                io.Latent.Input(
                    "latent", tooltip="The latent with the mask that the sampler got, not the one that it made."
                ),
                io.Image.Input("source_images", optional=True, tooltip="The frames before the edit."),
                io.Image.Input(
                    "result_images", optional=True, tooltip="The frames of the result, from H3 Engine Decode."
                ),
                io.Audio.Input("source_audio", optional=True, tooltip="The sound before the edit; its rate is kept."),
                io.Audio.Input("result_audio", optional=True, tooltip="The sound of the result."),
                io.Int.Input(
                    "feather",
                    default=8,
                    min=0,
                    max=_MAX_FEATHER,
                    optional=True,
                    tooltip="Pixels over which an edge fades in, on the inside of the mask.",
                ),
                io.Float.Input(
                    "sound_feather",
                    default=5.0,
                    min=0.0,
                    max=_MAX_FEATHER_MS,
                    step=1.0,
                    optional=True,
                    tooltip="Milliseconds over which the sound fades in, on the inside of the mask.",
                ),
                fps_input("source_images"),
                io.Int.Input(
                    "offset",
                    default=0,
                    min=-_MAX_OFFSET,
                    max=_MAX_OFFSET,
                    optional=True,
                    tooltip="Frame of the result at which the source begins, at 24 a second; from H3 Engine Extend.",
                    **known_keywords(io.Int.Input, advanced=True),
                ),
            ],
            outputs=[
                io.Image.Output("images", display_name="IMAGE", tooltip=f"All frames, {FPS} per second."),
                io.Audio.Output("audio", display_name="AUDIO", tooltip="The sound, at the source's rate."),
            ],
        )

    @classmethod
    def execute(
        cls,
        *,
        latent: dict[str, Any],
        source_images: torch.Tensor | None = None,
        result_images: torch.Tensor | None = None,
        source_audio: dict[str, Any] | None = None,
        result_audio: dict[str, Any] | None = None,
        feather: int = 8,
        sound_feather: float = 5.0,
        fps: float = float(FPS),
        offset: int = 0,
    ) -> io.NodeOutput:
        """Return the joined frames and sound; of what comes from one side only, that."""
        with node_errors():
            pictures = {"source_images": source_images, "result_images": result_images}
            sounds = {"source_audio": source_audio, "result_audio": result_audio}
            _check(pictures, sounds)
            shot = Shot.of(latent)
            masks, own = _masks(latent, shot), own_length(latent, shot.frames)
            length = None if own is None else own.frames
            images = _cut(result_images, length) if source_images is None else source_images
            if source_images is not None and result_images is not None:
                images = composite_images(
                    source_images, result_images, masks, shot, feather=feather, offset=offset, fps=fps, length=length
                )
            audio = _cut_sound(result_audio, length) if source_audio is None else source_audio
            if source_audio is not None and result_audio is not None:
                audio = composite_audio(
                    source_audio, result_audio, masks, feather_ms=sound_feather, offset=offset, length=length
                )
        key = None if images is None else kept.keep(images, audio, fps=float(FPS))
        host.NodeDisplay().text("\n".join(_report(source_images, images, shot)))
        return io.NodeOutput(images, audio, ui={"h3_clip": [{"key": key, "offset": min(0, offset)}]})


def _cut(images: torch.Tensor | None, length: int | None) -> torch.Tensor | None:
    """Return pictures of a result without those that it has only because the clip was lengthened."""
    return images if images is None else images[:length]


def _cut_sound(audio: dict[str, Any] | None, length: int | None) -> dict[str, Any] | None:
    if audio is None or length is None:
        return audio
    return {**audio, "waveform": audio["waveform"][..., : round(length * audio["sample_rate"] / FPS)]}


def _masks(latent: dict[str, Any], shot: Shot) -> StreamMasks:
    """Return the latent's masks; without any everything was made anew."""
    masks = masks_of_latent(latent, shot)
    return masks_of_arrays(None, None, shot, path="latent") if masks is None else masks


def _check(pictures: dict[str, torch.Tensor | None], sounds: dict[str, dict[str, Any] | None]) -> None:
    if all(value is None for value in (*pictures.values(), *sounds.values())):
        raise RequestError(
            "missing_field",
            "There is nothing to join.",
            field="source_images",
            remedy="Connect the source's and the result's images, their sound, or both.",
        )
    for name, images in pictures.items():
        if images is not None:
            check_images(images, name=name)
    for name, audio in sounds.items():
        if audio is not None:
            check_audio(audio, name=name)


def _report(source: torch.Tensor | None, images: torch.Tensor | None, shot: Shot) -> list[str]:
    if images is None:
        return ["Sound alone"]
    lines = [f"{len(images)} frames ({len(images) / FPS:.2f} s)"]
    if source is not None and tuple(source.shape[1:3]) != (shot.height, shot.width):
        lines.append(
            f"Note: the source was scaled and cropped from {source.shape[2]}x{source.shape[1]} to "
            f"{shot.width}x{shot.height}: its pixels are not its own any more."
        )
    return lines
