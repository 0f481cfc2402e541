"""H3EngineTextEncode: a prompt to CONDITIONING."""

from __future__ import annotations

from comfy_api.latest import io

from ...engine.contract.errors import RequestError
from ...engine.contract.requests import EncodePrompt
from ..convert import part_to_conditioning
from ..launcher import EngineSpec
from ..waiting import run_job
from .common import engine_input, node_errors, schema


class H3EngineTextEncode(io.ComfyNode):  # type: ignore[misc]
    """Encodes a prompt on the engine."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Return the node's inputs and outputs."""
        return schema(
            node_id="H3EngineTextEncode",
            display_name="H3 Engine Text Encode",
            description="Encodes a prompt with the checkpoint's Qwen3-VL. The model takes no negative prompt.",
            inputs=[
                engine_input(),
                io.String.Input(
                    "prompt",
                    multiline=True,
                    dynamic_prompts=True,
                    default="",
                    tooltip="What is seen and heard, in plain words; at most 2048 tokens (about 1500 words).",
                ),
            ],
            outputs=[
                io.Conditioning.Output(
                    "conditioning", display_name="CONDITIONING", tooltip="ComfyUI's own MiniMax-H3 conditioning."
                )
            ],
        )

    @classmethod
    async def execute(cls, engine: EngineSpec, prompt: str) -> io.NodeOutput:
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
            result = await run_job(engine, EncodePrompt("encode_prompt", prompt))
            return io.NodeOutput(part_to_conditioning(result.pieces["conditioning"][0]))
