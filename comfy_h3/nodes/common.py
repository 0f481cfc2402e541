"""What all nodes share: their place in the menu, the type of an engine, keywords that old ComfyUIs do not know, and
how a run that does not finish is shown. Raises `NodeError` from `node_errors`, ComfyUI's interrupt with it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from comfy_api.latest import io

from ...engine.contract.errors import RequestError
from ...engine.contract.geometry import FPS
from .. import errors, host
from ..media import Clip, check_audio, check_images

CATEGORY = "MiniMax H3/Engine"
Engine = io.Custom("H3_ENGINE")


def engine_input() -> Any:
    """Return the input that takes an engine."""
    return Engine.Input("engine", tooltip="The engine that does the work, from H3 Engine Connect.")


def clip_inputs(images: str, *, what: str) -> list[Any]:
    """Return the inputs of a clip: ``video``, pictures under the name ``images``, ``audio`` and ``fps``."""
    return [
        io.Video.Input("video", optional=True, tooltip=f"{what}, with its own sound."),
        io.Image.Input(images, optional=True, tooltip=f"{what}, as pictures; in place of a video."),
        io.Audio.Input("audio", optional=True, tooltip="Its sound; with a video, in place of the video's own."),
        io.Float.Input(
            "fps",
            default=float(FPS),
            min=1.0,
            max=1000.0,
            step=0.01,
            optional=True,
            tooltip="Pictures a second; a video has a rate of its own.",
            **known_keywords(io.Float.Input, advanced=True),
        ),
    ]


def clip_of(*, video: Any, images: tuple[str, Any], audio: Any, fps: float) -> Clip:
    """Return what is connected to `clip_inputs`, or only a sound.

    Args:
        images: name of the input and what is connected.

    Raises:
        RequestError: for both a video and pictures, and for what is empty.
    """
    name, pictures = images
    if audio is not None:
        check_audio(audio, name="audio")
    if video is None:
        found = None if pictures is None else check_images(pictures, name=name)
        return Clip(found, fps, audio=audio)
    if pictures is not None:
        raise RequestError(
            "out_of_range",
            f"Both video and {name} are connected.",
            field=name,
            value=list(pictures.shape),
            remedy="Connect one of them.",
        )
    file = host.video_file(video)
    if file is not None:
        return Clip(file=file, audio=audio)
    parts = video.get_components()
    return Clip(check_images(parts.images, name="video"), float(parts.frame_rate), audio=audio or parts.audio)


def check_choice(name: str, value: str, choices: list[str]) -> None:
    """Check a combo's value, which may come through a link.

    Raises:
        RequestError: ``out_of_range``.
    """
    if value not in choices:
        raise RequestError(
            "out_of_range",
            f"There is no {name} {value!r}.",
            field=name,
            value=value,
            remedy=f"Use one of {', '.join(choices)}.",
        )


@contextmanager
def node_errors(**inputs: str) -> Iterator[None]:
    """Turn the contract's errors into `NodeError`, and leave the end of a run that failed as the text on its node.

    Args:
        inputs: input of the node → start of the field on the wire that it is there.

    Raises:
        NodeError: for every `EngineError` raised inside.
    """
    try:
        with errors.node_errors({start: name for name, start in inputs.items()}):
            yield
    except host.Interrupted:
        host.NodeDisplay().text("Cancelled")
        raise
    except Exception as error:
        host.NodeDisplay().text("Cancelled" if getattr(error, "code", None) == "cancelled" else "Failed")
        raise


def known_keywords(make: Any, **keywords: Any) -> dict[str, Any]:
    """Return those of ``keywords`` that ``make`` (a schema or an input) takes in this ComfyUI."""
    known = inspect.signature(make).parameters
    return {name: value for name, value in keywords.items() if name in known}


def schema(**keywords: Any) -> Any:
    """Return a node's schema in our category, found by search under the model's names where ComfyUI can."""
    aliases = known_keywords(io.Schema, search_aliases=["minimax", "h3", "hailuo"])
    return io.Schema(category=CATEGORY, **keywords, **aliases)
