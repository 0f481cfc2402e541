"""Nodes for the tests alone: what a graph could bring that ours must refuse or note."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import folder_paths
import torch
from comfy.nested_tensor import NestedTensor
from safetensors.torch import save_file


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
        streams = [torch.ones(batch, channels, 7, 4, 4), torch.ones(batch, 32, 2, sound)]
        return ({"samples": NestedTensor(streams)},)


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


class _Any(str):
    """A type that ComfyUI takes for every other one, of older nodes too: it compares with ``!=``."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __ne__(self, other: object) -> bool:
        return False


class H3TestStore:
    """Writes the tensors of what is connected to ``output/<name>.safetensors``: ``samples.0``, ``noise_mask.1``, …"""

    RETURN_TYPES = ()
    FUNCTION = "store"
    CATEGORY = "tests"
    OUTPUT_NODE = True

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"value": (_Any("*"), {}), "name": ("STRING", {"default": "stored"})}}

    def store(self, value: Any, name: str) -> dict[str, Any]:
        found: dict[str, torch.Tensor] = {}
        _gather(value, "value", found)
        folder = Path(folder_paths.get_output_directory())
        folder.mkdir(exist_ok=True)
        save_file(found, folder / f"{name}.safetensors")
        return {"ui": {"stored": [name]}}


def _gather(value: Any, name: str, found: dict[str, torch.Tensor]) -> None:
    if getattr(value, "is_nested", False):
        value = list(value.unbind())
    if isinstance(value, torch.Tensor):
        found[name] = value.contiguous()
    elif isinstance(value, (dict, list)):
        for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
            _gather(entry, str(key) if name == "value" else f"{name}.{key}", found)


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
    "H3TestStore": H3TestStore,
}
