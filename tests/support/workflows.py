"""A saved workflow as the prompt that ComfyUI's page would send."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from PIL import Image

from tests.support.comfyui import ROOT
from tests.support.media_files import gradient, noise, tone, write_clip, write_sound

_AFTER_GENERATE = "control_after_generate"


def template(name: str) -> dict[str, Any]:
    """Return one of our templates."""
    loaded: dict[str, Any] = json.loads((ROOT / "workflows" / f"{name}.json").read_text())
    return loaded


def to_prompt(workflow: dict[str, Any], object_info: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return ``workflow`` in API format.

    Args:
        object_info: of the server. changes: ``NodeType__input`` → value, on every node of the type.
    """
    links = {link[0]: [str(link[1]), link[2]] for link in workflow["links"]}
    prompt = {}
    for node in workflow["nodes"]:
        kind = node["type"]
        if kind not in object_info:
            continue
        values = list(node.get("widgets_values") or [])
        inputs: dict[str, Any] = {}
        for slot in node["inputs"]:
            if "widget" in slot:
                inputs[slot["name"]] = values.pop(0)
                if _options(object_info[kind], slot["name"]).get(_AFTER_GENERATE):
                    values.pop(0)
            if slot["link"] is not None:
                inputs[slot["name"]] = links[slot["link"]]
        named = (path.split("__") for path in changes)
        inputs |= {name: changes[f"{owner}__{name}"] for owner, name in named if owner == kind}
        prompt[str(node["id"])] = {"class_type": kind, "inputs": inputs}
    return prompt


def node_of(prompt: dict[str, Any], kind: str) -> str:
    """Return the id of the one node of a type."""
    (found,) = [name for name, node in prompt.items() if node["class_type"] == kind]
    return found


def _options(info: dict[str, Any], name: str) -> dict[str, Any]:
    for group in ("required", "optional"):
        spec = info["input"].get(group, {}).get(name)
        if spec is not None and len(spec) > 1:
            return dict(spec[1])
    return {}


def write_media(folder: Path) -> None:
    """Write the files that the templates name into ComfyUI's input folder."""
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(gradient(96, 128)).save(folder / "example.png")
    write_clip(folder / "clip.mp4", noise(48, 64, frames=52), sound=tone(2.1, 44_100, 2), sound_rate=44_100)
    write_sound(folder / "voice.wav", tone(2.2, 44_100), 44_100)
