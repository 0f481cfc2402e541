"""H3EngineSampler: CONDITIONING and an empty LATENT to a sampled LATENT."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ...engine.contract.checks import check_latent_shapes
from ...engine.contract.limits import DEFAULT_STEPS, MAX_SEED, MAX_STEPS, PAD_MULTIPLE
from ...engine.contract.requests import Denoise
from .. import host
from ..convert import conditioning_to_part, latent_streams, part_to_streams, whole_frames
from ..launcher import EngineSpec
from ..waiting import ready_engine, run_job
from .common import engine_input, known_keywords, node_errors, schema

_MAX_PAD_SEQ_LEN = 2**20


class H3EngineSampler(io.ComfyNode):  # type: ignore[misc]
    """Denoises video and sound together on the engine."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Return the node's inputs and outputs."""
        return schema(
            node_id="H3EngineSampler",
            display_name="H3 Engine Sampler",
            description="Makes the latents of a video and its sound, on all ranks of the engine.",
            inputs=[
                engine_input(),
                io.Conditioning.Input("conditioning", tooltip="The prompt, from H3 Engine Text Encode."),
                io.Latent.Input("latent", tooltip="Size and duration, from H3 Engine Empty Latent."),
                io.Int.Input(
                    "steps",
                    default=DEFAULT_STEPS,
                    min=1,
                    max=MAX_STEPS,
                    tooltip="How many times the model runs (forwards); 30 to 50 are usual, more is slower. "
                    "(diffusers counts one more.)",
                ),
                io.Int.Input(
                    "seed",
                    default=0,
                    min=0,
                    max=MAX_SEED,
                    control_after_generate=True,
                    tooltip="Start of the noise; the same seed gives the same video.",
                ),
                io.Int.Input(
                    "pad_seq_len",
                    default=0,
                    min=0,
                    max=_MAX_PAD_SEQ_LEN,
                    step=PAD_MULTIPLE,
                    optional=True,
                    tooltip="Length to pad the model's sequence to, in rows (text, sound and video; 5 s at 1344x768 "
                    f"have about 38,000), a multiple of {PAD_MULTIPLE}; 0 is off. The same for prompts of different "
                    "length, it keeps an engine with 'compile' from compiling again. It does not change the video.",
                    **known_keywords(io.Int.Input, advanced=True),
                ),
            ],
            outputs=[io.Latent.Output("samples", display_name="LATENT", tooltip="Video and sound, sampled.")],
        )

    @classmethod
    async def execute(
        cls,
        *,
        engine: EngineSpec,
        conditioning: list[list[Any]],
        latent: dict[str, Any],
        steps: int,
        seed: int,
        pad_seq_len: int = 0,
    ) -> io.NodeOutput:
        """Return the sampled latent."""
        with node_errors():
            video, audio = latent_streams(latent)
            frames = whole_frames(video)
            part = conditioning_to_part(conditioning)
            facts = (await ready_engine(engine)).facts
            check_latent_shapes(tuple(video.shape), tuple(audio.shape), facts)
            height, width = (side * facts.spatial_ratio for side in video.shape[3:])
            request = Denoise("denoise", width, height, frames, steps, seed, pad_seq_len or None)
            notes = []
            if any(stream.count_nonzero() for stream in (video, audio)):
                notes.append("only the latent's size and duration are used, not its content: it has no mask.")
            result = await run_job(engine, request, {"conditioning": part}, notes=notes)
            samples = part_to_streams(result.pieces["latents"][0])
        return io.NodeOutput({"samples": host.nested(samples)})
