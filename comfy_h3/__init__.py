"""Everything that knows ComfyUI: nodes, the engine client, the launcher of a local engine."""

from __future__ import annotations

from typing import Any


async def comfy_entrypoint() -> Any:
    """Return the extension that ComfyUI registers and add our routes (the imports wait until ComfyUI asks)."""
    from .nodes import H3EngineExtension
    from .routes import add_routes

    add_routes()
    return H3EngineExtension()
