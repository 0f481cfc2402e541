"""H3EngineSampler: CONDITIONING and a LATENT, empty or a shot with a mask, to a sampled LATENT."""

from __future__ import annotations

from typing import Any

import torch
from comfy_api.latest import io

from ...engine.contract.check_masks import MASK_TENSORS, MASKS
from ...engine.contract.conditions import check_conditions
from ...engine.contract.limits import DEFAULT_STEPS, MAX_SEED, MAX_STEPS, PAD_MULTIPLE
from ...engine.contract.requests import Denoise
from ...engine.contract.tensors import check_latent_shapes
from .. import host, timings
from ..conditioning import Conditioning, to_wire
from ..convert import (
    latent_streams,
    latent_to_part,
    own_length,
    part_header,
    part_to_streams,
    whole_frames,
    with_own_length,
    write_part,
)
from ..launcher import EngineSpec
from ..masks import Shot, masks_of_latent
from ..texts import masks_text
from ..waiting import ready_engine, run_job
from .common import engine_input, known_keywords, node_errors, schema

_MAX_PAD_SEQ_LEN = 2**20
_MAX_OUTPUTS = 10


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
                io.Conditioning.Input(
                    "conditioning", tooltip="The prompt, from H3 Engine Text Encode or H3 Engine Guide."
                ),
                io.Latent.Input(
                    "latent",
                    tooltip="Size and duration, from H3 Engine Empty Latent or Keyframes; or a shot with a mask, "
                    "from H3 Engine Latent Mask, Mask From Images or Extend: what the mask leaves out stays.",
                ),
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
                io.Int.Input(
                    "num_outputs",
                    default=1,
                    min=1,
                    max=_MAX_OUTPUTS,
                    optional=True,
                    tooltip="How many videos to make in one go: of seed, seed + 1, seed + 2, … "
                    "The nodes behind run once for each.",
                ),
            ],
            outputs=[
                io.Latent.Output(
                    "samples",
                    display_name="LATENT",
                    is_output_list=True,
                    tooltip="Video and sound, sampled; a list, with one entry an output.",
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
        steps: int,
        seed: int,
        pad_seq_len: int = 0,
        num_outputs: int = 1,
    ) -> io.NodeOutput:
        """Return the sampled latents, a list."""
        with node_errors():
            video, audio = latent_streams(latent)
            frames = whole_frames(video)
            sent = to_wire(conditioning)
            facts = (await ready_engine(engine)).facts
            check_latent_shapes(tuple(video.shape), tuple(audio.shape), facts)
            height, width = (side * facts.spatial_ratio for side in video.shape[3:])
            request = Denoise(
                "denoise",
                width,
                height,
                frames,
                steps,
                seed,
                pad_seq_len or None,
                conditions=sent.conditions,
                references=sent.references,
                num_outputs=num_outputs,
            )
            check_conditions(request, part_header(sent.part, name="conditioning"), facts)
            parts, notes = _edit_parts(latent, (video, audio))
            result = await run_job(
                engine, request, {"conditioning": sent.part, **parts}, notes=notes, report=masks_text
            )
            if "denoise" in result.stages:
                seconds = result.stages["denoise"] / num_outputs
                timings.remember((width, height, frames), steps=steps, seconds=seconds)
            samples = [part_to_streams(piece) for piece in result.pieces["latents"]]
        own = own_length(latent, frames) if MASKS in parts else None
        return io.NodeOutput([with_own_length({"samples": host.nested(streams)}, own) for streams in samples])


def _edit_parts(
    latent: dict[str, Any], streams: tuple[torch.Tensor, torch.Tensor]
) -> tuple[dict[str, bytes], list[str]]:
    """Return the parts of an edit, none of a latent without a mask, and what to say of them."""
    masks = masks_of_latent(latent, Shot.of(latent))
    if masks is not None:
        video, audio = masks.tensors()
        found = {MASK_TENSORS["video"]: video, MASK_TENSORS["audio"]: audio}
        return {"latents": latent_to_part(latent), MASKS: write_part(found)}, list(masks.warnings)
    if any(stream.count_nonzero() for stream in streams):
        return {}, ["only the latent's size and duration are used, not its content: it has no mask."]
    return {}, []
