"""H3EngineTextEncode: a prompt, keyframes and references to CONDITIONING; H3EngineEncodeMedia: a clip to LATENT."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from comfy_api.latest import io

from ...engine.contract.check_media import check_media
from ...engine.contract.errors import RequestError
from ...engine.contract.geometry import FPS
from ...engine.contract.media import Keyframe, Source
from ...engine.contract.requests import EncodeMedia, EncodePrompt
from .. import host
from ..conditioning import from_wire
from ..convert import latent_streams, part_to_streams, told_own_length, whole_frames, with_own_length
from ..launcher import EngineSpec
from ..media import Keyframes, Uploads
from ..texts import references_text
from ..waiting import ready_engine, run_job
from .common import clip_inputs, clip_of, engine_input, node_errors, schema
from .keyframes import KeyframesType
from .latents import size_inputs
from .references import Chain, ReferencesType


class H3EngineTextEncode(io.ComfyNode):  # type: ignore[misc]
    """Encodes a prompt on the engine."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Return the node's inputs and outputs."""
        return schema(
            node_id="H3EngineTextEncode",
            display_name="H3 Engine Text Encode",
            description="Encodes a prompt with the checkpoint's Qwen3-VL, which sees keyframes or references too. "
            "The model takes no negative prompt.",
            inputs=[
                engine_input(),
                io.String.Input(
                    "prompt",
                    multiline=True,
                    dynamic_prompts=True,
                    default="",
                    tooltip="What is seen and heard, in plain words; at most 2048 tokens (about 1500 words). "
                    "It may name <Picture 1>, <Video 1> and <Audio 1>.",
                ),
                KeyframesType.Input(
                    "keyframes",
                    optional=True,
                    tooltip="First and last picture, from H3 Engine Keyframes, whose latent the sampler gets.",
                ),
                ReferencesType.Input(
                    "references",
                    optional=True,
                    tooltip="The chain of H3 Engine Reference Image, Video and Audio; needs latent.",
                ),
                io.Latent.Input(
                    "latent",
                    optional=True,
                    tooltip="Size and duration, the latent that the sampler gets: what references are cut to.",
                ),
            ],
            outputs=[
                io.Conditioning.Output(
                    "conditioning", display_name="CONDITIONING", tooltip="ComfyUI's own MiniMax-H3 conditioning."
                )
            ],
        )

    @classmethod
    async def execute(
        cls,
        engine: EngineSpec,
        prompt: str,
        keyframes: Keyframes | None = None,
        references: Chain | None = None,
        latent: dict[str, Any] | None = None,
    ) -> io.NodeOutput:
        """Return the conditioning of ``prompt``."""
        with node_errors():
            if not prompt.strip():
                raise RequestError(
                    "prompt_empty",
                    "The prompt is empty.",
                    field="prompt",
                    value=prompt,
                    remedy="Describe the shot in a few words.",
                )
            uploads = Uploads()
            request = EncodePrompt("encode_prompt", prompt)
            if keyframes is not None:
                request = _with_keyframes(request, keyframes, uploads)
            if references:
                request = replace(request, references=uploads.references(references))
            check_media(request)
            if references:
                request = await _with_size(request, engine, latent)
            result = await run_job(engine, request, uploads.parts, report=references_text)
            return io.NodeOutput(from_wire(result.pieces["conditioning"][0], result.facts))


def _with_keyframes(request: EncodePrompt, keyframes: Keyframes, uploads: Uploads) -> EncodePrompt:
    asked = []
    if keyframes.first is not None:
        asked.append(Keyframe(uploads.images("first_frame", keyframes.first), "first"))
    if keyframes.last is not None:
        asked.append(Keyframe(uploads.images("last_frame", keyframes.last), "last"))
    return replace(
        request, width=keyframes.width, height=keyframes.height, frames=keyframes.frames, keyframes=tuple(asked)
    )


async def _with_size(request: EncodePrompt, engine: EngineSpec, latent: dict[str, Any] | None) -> EncodePrompt:
    """Return ``request`` for the canvas and length of ``latent``."""
    if latent is None:
        raise RequestError(
            "missing_field",
            "References need the size and duration of the video.",
            field="latent",
            remedy="Connect the latent that H3 Engine Sampler gets, from H3 Engine Empty Latent.",
        )
    video, _ = latent_streams(latent)
    frames = whole_frames(video)
    ratio = (await ready_engine(engine)).facts.spatial_ratio
    return replace(request, width=video.shape[4] * ratio, height=video.shape[3] * ratio, frames=frames)


class H3EngineEncodeMedia(io.ComfyNode):  # type: ignore[misc]
    """Encodes a clip and its sound on the engine."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Return the node's inputs and outputs."""
        return schema(
            node_id="H3EngineEncodeMedia",
            display_name="H3 Engine Encode Media",
            description="A clip and its sound as the latent of both, for editing. The clip is brought to "
            f"{FPS} frames a second, its last picture held up to the next 17n+5.",
            inputs=[
                engine_input(),
                *clip_inputs("images", what="The clip"),
                *size_inputs(0, 0, low=0, optional=True, tooltip="0: both follow the clip."),
            ],
            outputs=[io.Latent.Output("latent", display_name="LATENT", tooltip="Video and sound.")],
        )

    @classmethod
    async def execute(
        cls,
        *,
        engine: EngineSpec,
        video: Any = None,
        images: torch.Tensor | None = None,
        audio: dict[str, Any] | None = None,
        fps: float = float(FPS),
        width: int = 0,
        height: int = 0,
    ) -> io.NodeOutput:
        """Return the latent of the clip."""
        media_input = "images" if video is None else "video"
        inputs = {"audio": "request.source.audio", "fps": "request.source.media.fps", media_input: "request.source"}
        with node_errors(**inputs):
            clip = clip_of(video=video, images=("images", images), audio=audio, fps=fps)
            if clip.file is None and clip.images is None:
                raise RequestError(
                    "missing_field", "There is no clip.", field="video", remedy="Connect a video, or images."
                )
            uploads = Uploads()
            source = Source(*uploads.clip("source", clip))
            request = EncodeMedia("encode_media", width or None, height or None, source=source)
            check_media(request)
            result = await run_job(engine, request, uploads.parts, report=_report)
            samples = part_to_streams(result.pieces["latents"][0])
        own = told_own_length(result.facts, whole_frames(samples[0]))
        return io.NodeOutput(with_own_length({"samples": host.nested(samples)}, own))


def _report(facts: dict[str, Any]) -> str:
    size, own = (facts["width"], facts["height"]), (facts.get("own_width"), facts.get("own_height"))
    came = f" (from {own[0]}x{own[1]}: scaled and cropped)" if None not in own and own != size else ""
    return f"{size[0]}x{size[1]}{came}, {facts['frames']} frames ({facts['frames'] / FPS:.2f} s)"
