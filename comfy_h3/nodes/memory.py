"""H3EngineMemory: where an engine's weights live, and what that takes.

Values may come through links, which no schema checks; the engine checks them again with what only it knows. Raises
`RequestError`.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from comfy_api.latest import io

from ...engine.contract.errors import RequestError
from .. import host
from ..launcher import EngineSpec, MemorySpec
from ..planning import OFFLOADS, plan_of, plan_text
from .common import Engine, check_choice, engine_input, known_keywords, node_errors, schema

_STORAGES = ["full", "fp8", "int8"]
_AS_MANY_AS_FIT = -1
_MOST_BLOCKS = 1000
_MOST_GB = 10_000.0


class H3EngineMemory(io.ComfyNode):  # type: ignore[misc]
    """Lets a local engine keep its weights in host memory, and says beforehand whether it fits."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Return the node's inputs and outputs."""
        default = MemorySpec()
        return schema(
            node_id="H3EngineMemory",
            display_name="H3 Engine Memory",
            description="Keeps weights of a local engine in host memory and streams them to the GPU while they are "
            "used, so that the model runs on cards that are smaller than it; says beforehand what it takes.",
            inputs=[
                engine_input(),
                io.Combo.Input(
                    "offload",
                    options=list(OFFLOADS),
                    default="all",
                    tooltip="What streams from host memory, block by block: all (transformer and text encoder), one of "
                    "them, or nothing. The VAEs are on the GPU only while they are used in any case.",
                ),
                io.Int.Input(
                    "resident_blocks",
                    default=_AS_MANY_AS_FIT,
                    min=_AS_MANY_AS_FIT,
                    max=_MOST_BLOCKS,
                    tooltip="Blocks of each that stay on the GPU while it runs; more is faster. -1: as many as fit.",
                ),
                io.Float.Input(
                    "gpu_memory",
                    default=0.0,
                    min=0.0,
                    max=_MOST_GB,
                    step=0.1,
                    tooltip="Memory of each GPU that the engine may use, GB of 1e9 bytes; 0: what is free when it "
                    "starts. Leave some for the desktop and for ComfyUI's own models.",
                ),
                io.Float.Input(
                    "host_memory",
                    default=0.0,
                    min=0.0,
                    max=_MOST_GB,
                    step=0.1,
                    optional=True,
                    tooltip="The machine's memory that the engine may use, GB of 1e9 bytes; 0: all that it has.",
                    **known_keywords(io.Float.Input, advanced=True),
                ),
                io.Combo.Input(
                    "block_storage",
                    options=_STORAGES,
                    default=default.block_storage,
                    optional=True,
                    tooltip="How the weights of blocks are kept: full, or in 8 bits (fp8, int8), half the memory and "
                    "half the streaming, computed as before; the pictures change a little.",
                    **known_keywords(io.Combo.Input, advanced=True),
                ),
                io.Int.Input(
                    "modulation_tables_mb",
                    default=default.modulation_tables_mb,
                    min=0,
                    max=10**6,
                    optional=True,
                    tooltip="Room for what a run's times make of the modulation, computed once, MB of 1e6 bytes; it "
                    "saves 26 GB of weights, and the pictures are the same. 0: off.",
                    **known_keywords(io.Int.Input, advanced=True),
                ),
                io.Boolean.Input(
                    "vae_resident",
                    default=default.vae_resident,
                    optional=True,
                    tooltip="Keep both VAEs on the GPU between uses, if they fit: for large cards.",
                    **known_keywords(io.Boolean.Input, advanced=True),
                ),
            ],
            outputs=[Engine.Output("h3_engine", display_name="ENGINE")],
        )

    @classmethod
    async def execute(
        cls,
        *,
        engine: EngineSpec,
        offload: str,
        resident_blocks: int,
        gpu_memory: float,
        host_memory: float = 0.0,
        block_storage: str = "full",
        modulation_tables_mb: int = 4000,
        vae_resident: bool = False,
    ) -> io.NodeOutput:
        """Return the engine with these options, and show its plan."""
        with node_errors():
            if engine.url:
                raise RequestError(
                    "out_of_range",
                    "This engine runs already: where its weights live was said when it was started.",
                    field="engine",
                    value=engine.url,
                    remedy="Start it with h3-engine serve --offload …, or clear url of H3 Engine Connect.",
                )
            check_choice("offload", offload, list(OFFLOADS))
            check_choice("block_storage", block_storage, _STORAGES)
            _check_range("resident_blocks", resident_blocks, _AS_MANY_AS_FIT, _MOST_BLOCKS)
            _check_range("gpu_memory", gpu_memory, 0, _MOST_GB)
            _check_range("host_memory", host_memory, 0, _MOST_GB)
            _check_range("modulation_tables_mb", modulation_tables_mb, 0, 10**6)
        memory = MemorySpec(
            offload=OFFLOADS[offload],
            resident_blocks=_blocks(resident_blocks) if OFFLOADS[offload] else MemorySpec.resident_blocks,
            gpu_memory=gpu_memory or None,
            host_memory=host_memory or None,
            block_storage=block_storage,
            modulation_tables_mb=modulation_tables_mb,
            vae_resident=vae_resident,
        )
        spec = replace(engine, memory=memory)
        plan = await asyncio.to_thread(plan_of, spec)
        host.NodeDisplay().text(plan_text(plan))
        return io.NodeOutput(spec)


def _blocks(count: int) -> str:
    return "auto" if count == _AS_MANY_AS_FIT else str(count)


def _check_range(name: str, value: Any, low: float, high: float) -> None:
    if not isinstance(value, (int, float)) or not low <= value <= high:
        raise RequestError(
            "out_of_range",
            f"{name} is {low:g} to {high:g}.",
            field=name,
            value=value,
            remedy=f"Use {low:g} to {high:g}.",
        )
