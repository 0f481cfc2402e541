"""What ComfyUI loads from this folder."""

from .comfy_h3 import comfy_entrypoint

WEB_DIRECTORY = "./web"
__all__ = ["WEB_DIRECTORY", "comfy_entrypoint"]
