"""H3EngineSaveLatent and H3EngineLoadLatent: a LATENT with both streams to a file and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from comfy_api.latest import io

from ...engine.contract.errors import RequestError
from .. import host
from ..latent_file import SUFFIX, load_latent, save_latent
from .common import node_errors, schema

_ANY_SUFFIX = ".safetensors"
"""What the input folder may hold from elsewhere, for example from h3-engine generate --keep-latents."""


class H3EngineSaveLatent(io.ComfyNode):  # type: ignore[misc]
    """Saves a latent, and hands it on."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Return the node's inputs and outputs."""
        return schema(
            node_id="H3EngineSaveLatent",
            display_name="H3 Engine Save Latent",
            description="Saves a latent of MiniMax-H3 with video, sound and masks as one file, and hands it on: "
            "between sampler and decode, what was sampled is on disk before decoding starts.",
            inputs=[
                io.Latent.Input("latent", tooltip="Video and sound, for example from H3 Engine Sampler."),
                io.String.Input(
                    "filename_prefix",
                    default="latents/h3",
                    tooltip="Name of the file in ComfyUI's output folder, with folders if you like; it gets a number.",
                ),
            ],
            outputs=[io.Latent.Output("latent_out", display_name="LATENT", tooltip="The same latent.")],
            hidden=[io.Hidden.prompt, io.Hidden.extra_pnginfo],
            is_output_node=True,
        )

    @classmethod
    def execute(cls, *, latent: dict[str, Any], filename_prefix: str) -> io.NodeOutput:
        """Write the file; return the latent."""
        with node_errors():
            path, result = host.new_output(filename_prefix, SUFFIX)
            texts = {"prompt": cls.hidden.prompt, **(cls.hidden.extra_pnginfo or {})}
            known = {name: json.dumps(text) for name, text in texts.items() if text is not None}
            left_out = save_latent(path, latent, texts={} if host.metadata_disabled() else known)
        lines = [f"Saved {result['subfolder']}/{result['filename']}".replace(" /", " ")]
        if left_out:
            lines.append(f"Without {' and '.join(left_out)}: too long for such a file.")
        host.NodeDisplay().text("\n".join(lines))
        return io.NodeOutput(latent, ui={"latents": [result]})


class H3EngineLoadLatent(io.ComfyNode):  # type: ignore[misc]
    """Loads a saved latent."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Return the node's inputs and outputs."""
        return schema(
            node_id="H3EngineLoadLatent",
            display_name="H3 Engine Load Latent",
            description="Loads a latent of MiniMax-H3, to decode it again or to go on from it.",
            inputs=[
                io.Combo.Input(
                    "file",
                    options=host.stored_files(inputs=_ANY_SUFFIX, outputs=SUFFIX),
                    tooltip="A file of H3 Engine Save Latent in ComfyUI's output folder, or a .safetensors of "
                    "h3-engine generate --keep-latents in its input folder.",
                )
            ],
            outputs=[
                io.Latent.Output("latent", display_name="LATENT", tooltip="Video and sound, and the masks it had.")
            ],
        )

    @classmethod
    def validate_inputs(cls, file: str) -> bool | str:
        """Return True, or why there is no such file."""
        return _find(file) is not None or f"There is no latent {file!r} in ComfyUI's input and output folders."

    @classmethod
    def fingerprint_inputs(cls, file: str) -> str:
        """Return what changes when the file does."""
        path = _find(file)
        if path is None:
            return ""
        found = path.stat()
        return f"{found.st_mtime_ns} {found.st_size}"

    @classmethod
    def execute(cls, *, file: str) -> io.NodeOutput:
        """Return the latent."""
        with node_errors():
            path = _find(file)
            if path is None:
                raise RequestError(
                    "out_of_range",
                    "There is no such latent in ComfyUI's input and output folders.",
                    field="file",
                    value=file,
                    remedy="Choose one of the list; press R to read the folders again.",
                )
            latent, facts = load_latent(path, nested=host.nested)
        lines = [f"{name}: {facts[name]}" for name in ("seconds", "fps", "frames", "seed", "engine") if name in facts]
        host.NodeDisplay().text("\n".join(lines))
        return io.NodeOutput(latent)


def _find(file: str) -> Path | None:
    """Return the file that may be loaded under this name, None when there is none."""
    return host.stored_file(file) if file.removesuffix(" [output]").endswith(_ANY_SUFFIX) else None
