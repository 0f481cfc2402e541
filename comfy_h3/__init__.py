"""Everything that knows ComfyUI: nodes, the engine client, the launcher of a local engine."""
