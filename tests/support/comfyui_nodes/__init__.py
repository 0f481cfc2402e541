"""Nodes for the tests alone: what a graph could bring that ours must refuse or note."""

from __future__ import annotations

import json
from typing import Any

import torch
from comfy.nested_tensor import NestedTensor


class H3TestConditioning:
    """A conditioning of any width."""

    RETURN_TYPES = ("CONDITIONING",)
    FUNCTION = "make"
    CATEGORY = "tests"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"width": ("INT", {"default": 48})}}

    def make(self, width: int) -> tuple[Any]:
        return ([[torch.randn(1, 6, width), {}]],)


class H3TestLatent:
    """A two-stream latent of 22 frames of 64x64 pixels, odd in one respect."""

    RETURN_TYPES = ("LATENT",)
    FUNCTION = "make"
    CATEGORY = "tests"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"kind": ("STRING", {"default": "full"})}}

    def make(self, kind: str) -> tuple[Any]:
        batch = 2 if kind == "batch" else 1
        channels = 16 if kind == "channels" else 24
        sound = 99 if kind == "sound" else 37
        latent: dict[str, Any] = {
            "samples": NestedTensor([torch.ones(batch, channels, 7, 4, 4), torch.ones(batch, 32, 2, sound)])
        }
        if kind == "mask":
            latent["noise_mask"] = torch.ones(1, 1, 7, 4, 4)
        return (latent,)


class H3TestShow:
    """Shows the shapes of what is connected, as JSON in the output ``shown``."""

    RETURN_TYPES = ()
    FUNCTION = "show"
    CATEGORY = "tests"
    OUTPUT_NODE = True

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"value": ("*", {})}}

    def show(self, value: Any) -> dict[str, Any]:
        return {"ui": {"shown": [json.dumps(_shown(value))]}}


def _shown(value: Any) -> Any:
    """Return tensors as their shapes, the rest as it is."""
    if getattr(value, "is_nested", False):
        return [list(stream.shape) for stream in value.unbind()]
    if isinstance(value, torch.Tensor):
        return list(value.shape)
    if isinstance(value, dict):
        return {key: _shown(entry) for key, entry in value.items()}
    return [_shown(entry) for entry in value] if isinstance(value, (list, tuple)) else value


NODE_CLASS_MAPPINGS = {
    "H3TestConditioning": H3TestConditioning,
    "H3TestLatent": H3TestLatent,
    "H3TestShow": H3TestShow,
}
