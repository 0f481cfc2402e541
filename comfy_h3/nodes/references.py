"""H3EngineReferenceImage, H3EngineReferenceVideo and H3EngineReferenceAudio: links of one chain of references.

Each takes the chain so far and returns it with its own at the end, so that the order of the nodes is the order in the
prompt and in the model's sequence.
"""

from __future__ import annotations

from typing import Any

import torch
from comfy_api.latest import io

from ...engine.contract.errors import RequestError
from ...engine.contract.media import REFERENCE_SIZES, ReferenceSize
from .. import host
from ..media import Clip, ReferenceItem, check_audio, check_images
from .common import clip_inputs, clip_of, node_errors, schema

ReferencesType = io.Custom("H3_REFERENCES")
Chain = tuple[ReferenceItem, ...]
_LABELS = {"image": "Picture", "video": "Video", "audio": "Audio"}


def _chain_input() -> Any:
    return ReferencesType.Input("references", optional=True, tooltip="References that come before this one.")


def _chain_output() -> Any:
    return ReferencesType.Output(
        "chain",
        display_name="REFERENCES",
        tooltip="All so far: for another reference node, or for H3 Engine Text Encode.",
    )


def _size_input(tooltip: str) -> Any:
    return io.Combo.Input(
        "reference_size", options=list(REFERENCE_SIZES), default=REFERENCE_SIZES[0], optional=True, tooltip=tooltip
    )


def _check_size(size: str) -> ReferenceSize:
    for known in REFERENCE_SIZES:
        if size == known:
            return known
    raise RequestError(
        "out_of_range",
        f"There is no reference size {size!r}.",
        field="reference_size",
        value=size,
        remedy=f"Use one of {', '.join(REFERENCE_SIZES)}.",
    )


def _linked(chain: Chain | None, *items: ReferenceItem) -> io.NodeOutput:
    """Return the chain with ``items`` at its end, and show how the prompt calls them."""
    chain = (*(chain or ()), *items)
    lines = []
    for index in range(len(chain) - len(items), len(chain)):
        kind = chain[index].kind
        number = sum(item.kind == kind for item in chain[: index + 1])
        lines.append(f"Reference {index + 1}: {_LABELS[kind]} {number}")
        if kind == "audio" and any(item.kind == "video" for item in chain[:index]):
            lines[-1] = f"Reference {index + 1}: Audio {number}, plus one for each video with sound before it"
    host.NodeDisplay().text("\n".join(lines))
    return io.NodeOutput(chain)


class H3EngineReferenceImage(io.ComfyNode):  # type: ignore[misc]
    """Adds a picture, or several, to the references."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Return the node's inputs and outputs."""
        return schema(
            node_id="H3EngineReferenceImage",
            display_name="H3 Engine Reference Image",
            description="Somebody or something that the video shows, as a picture. It keeps its own shape. "
            "In the prompt it is <Picture 1>, <Picture 2>, … by its place in the chain.",
            inputs=[
                io.Image.Input("image", tooltip="The picture; each one of a batch is a reference of its own."),
                _chain_input(),
                _size_input(
                    "native: its own size; match: shrunk to the video's area; max: shrunk to a short edge of 2048 "
                    "pixels; reference: brought to that edge, up or down, as diffusers does. More pixels are slower."
                ),
            ],
            outputs=[_chain_output()],
        )

    @classmethod
    def execute(
        cls, *, image: torch.Tensor, references: Chain | None = None, reference_size: str = REFERENCE_SIZES[0]
    ) -> io.NodeOutput:
        """Return the chain with the picture."""
        with node_errors():
            size = _check_size(reference_size)
            pictures = check_images(image, name="image")
            singles = (pictures[index : index + 1] for index in range(len(pictures)))
            return _linked(references, *(ReferenceItem("image", Clip(single), size) for single in singles))


class H3EngineReferenceVideo(io.ComfyNode):  # type: ignore[misc]
    """Adds a clip to the references."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Return the node's inputs and outputs."""
        return schema(
            node_id="H3EngineReferenceVideo",
            display_name="H3 Engine Reference Video",
            description="A clip of 2 to 15 s to be like, with its sound. It keeps its own shape. In the prompt it is "
            "<Video 1>, <Video 2>, …; its sound is an <Audio> of its own, right before it.",
            inputs=[
                _chain_input(),
                *clip_inputs("images", what="The clip"),
                _size_input("reference: to a short edge of 768 pixels, up or down, as diffusers does; else down only."),
            ],
            outputs=[_chain_output()],
        )

    @classmethod
    def execute(
        cls,
        *,
        references: Chain | None = None,
        video: Any = None,
        images: torch.Tensor | None = None,
        audio: dict[str, Any] | None = None,
        fps: float = 24.0,
        reference_size: str = REFERENCE_SIZES[0],
    ) -> io.NodeOutput:
        """Return the chain with the clip."""
        with node_errors():
            size = _check_size(reference_size)
            clip = clip_of(video=video, images=("images", images), audio=audio, fps=fps)
            if clip.file is None and clip.images is None:
                raise RequestError(
                    "missing_field", "There is no clip.", field="video", remedy="Connect a video, or images."
                )
            return _linked(references, ReferenceItem("video", clip, size))


class H3EngineReferenceAudio(io.ComfyNode):  # type: ignore[misc]
    """Adds a sound to the references."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Return the node's inputs and outputs."""
        return schema(
            node_id="H3EngineReferenceAudio",
            display_name="H3 Engine Reference Audio",
            description="A voice or sound of 2 to 15 s to be like, beside at least one picture or clip. In the prompt "
            "it is <Audio 1>, <Audio 2>, …",
            inputs=[io.Audio.Input("audio", tooltip="The sound."), _chain_input()],
            outputs=[_chain_output()],
        )

    @classmethod
    def execute(cls, *, audio: dict[str, Any], references: Chain | None = None) -> io.NodeOutput:
        """Return the chain with the sound."""
        with node_errors():
            return _linked(references, ReferenceItem("audio", Clip(audio=check_audio(audio, name="audio"))))
