"""The MiniMax-H3 engine: a server, a controller and a fleet of ranks.

Runs as ``python -m engine``. Never imports ComfyUI or ``comfy_h3``.
"""
