"""H3EngineDecode and H3EngineDecodeToVideo: a sampled LATENT to pictures and sound."""

from __future__ import annotations

from io import BytesIO
from typing import Any

from comfy_api.latest import InputImpl, io

from ...engine.contract.errors import RequestError
from ...engine.contract.geometry import FPS, SAMPLE_RATE
from ...engine.contract.requests import Decode
from ..convert import ImageStream, latent_to_part, piece_to_audio
from ..launcher import EngineSpec
from ..waiting import run_job
from .common import engine_input, node_errors, schema

_PRECISIONS = ("uint8", "float32")


def _latent_input() -> Any:
    return io.Latent.Input("latent", tooltip="Video and sound, from H3 Engine Sampler.")


class H3EngineDecode(io.ComfyNode):  # type: ignore[misc]
    """Decodes to tensors, for further nodes."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Return the node's inputs and outputs."""
        return schema(
            node_id="H3EngineDecode",
            display_name="H3 Engine Decode",
            description=f"Decodes to images ({FPS} frames per second) and sound, for nodes that work on them.",
            inputs=[
                engine_input(),
                _latent_input(),
                io.Combo.Input(
                    "frame_precision",
                    options=list(_PRECISIONS),
                    default="uint8",
                    optional=True,
                    tooltip="How pictures travel from the engine: uint8 is 8 bits a colour, as in a video file; "
                    "float32 is unrounded and four times as large.",
                ),
            ],
            outputs=[
                io.Image.Output("images", display_name="IMAGE", tooltip=f"All frames, {FPS} per second."),
                io.Audio.Output("audio", display_name="AUDIO", tooltip="Stereo, 32 kHz."),
            ],
        )

    @classmethod
    async def execute(
        cls, *, engine: EngineSpec, latent: dict[str, Any], frame_precision: str = "uint8"
    ) -> io.NodeOutput:
        """Return images and sound."""
        with node_errors():
            if frame_precision not in _PRECISIONS:
                raise RequestError(
                    "out_of_range",
                    f"There is no precision {frame_precision!r}.",
                    field="frame_precision",
                    value=frame_precision,
                    remedy=f"Use {' or '.join(_PRECISIONS)}.",
                )
            request = Decode("decode", "tensors", "float32" if frame_precision == "float32" else "uint8")
            stream = ImageStream()
            result = await run_job(engine, request, {"latents": latent_to_part(latent)}, images=stream)
            audio = piece_to_audio(result.pieces["audio"][0], SAMPLE_RATE)
        return io.NodeOutput(stream.images(), audio)


class H3EngineDecodeToVideo(io.ComfyNode):  # type: ignore[misc]
    """Decodes to an MP4, encoded on the engine while it decodes."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Return the node's inputs and outputs."""
        return schema(
            node_id="H3EngineDecodeToVideo",
            display_name="H3 Engine Decode to Video",
            description=f"Decodes to a finished video with sound: MP4, H.264 at {FPS} frames per second, AAC stereo. "
            "Needs far less memory than decoding to images.",
            inputs=[engine_input(), _latent_input()],
            outputs=[io.Video.Output("video", display_name="VIDEO", tooltip="For Save Video and its kind.")],
        )

    @classmethod
    async def execute(cls, *, engine: EngineSpec, latent: dict[str, Any]) -> io.NodeOutput:
        """Return the video."""
        with node_errors():
            result = await run_job(engine, Decode("decode", "mp4"), {"latents": latent_to_part(latent)})
        return io.NodeOutput(InputImpl.VideoFromFile(BytesIO(result.pieces["video"][0])))
