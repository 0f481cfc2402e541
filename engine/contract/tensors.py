"""The tensors of a request's parts, checked by their safetensors headers before anything maps them.

What a client sends decoded already (``frames``, ``waveform``), a conditioning's text, and latents. `conditions` checks
the encoded keyframes, guides and references that a conditioning may hold besides. Raises `RequestError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from . import geometry
from .errors import RequestError
from .framing import TensorInfo
from .limits import ModelFacts
from .media import Media

Tensors: TypeAlias = Mapping[str, TensorInfo]
"""Tensor name → info."""
Headers: TypeAlias = Mapping[str, Tensors]
"""Part name → its tensors; none for a part that is a file."""
FLOATS = ("F32", "BF16", "F16")


def tensor_of(tensors: Tensors, *, part: str, name: str, dtypes: tuple[str, ...], rank: int) -> TensorInfo:
    """Return the tensor ``name`` of a part.

    Raises:
        RequestError: ``bad_tensor`` when it is absent, or of another type or number of dimensions.
    """
    info = tensors.get(name)
    path = f"parts.{part}.{name}"
    if info is None:
        raise RequestError(
            "bad_tensor",
            f"The part {part!r} has no tensor {name!r}.",
            field=path,
            value=", ".join(tensors),
            remedy=f"Store {name!r} in it.",
        )
    if info.dtype not in dtypes or len(info.shape) != rank:
        raise RequestError(
            "bad_tensor",
            f"{name} has {rank} dimensions and one of the types {', '.join(dtypes)}.",
            field=path,
            value=f"{info.dtype} {list(info.shape)}",
            remedy="Convert the tensor.",
        )
    return info


def check_decoded_media(media: Media, tensors: Tensors) -> None:
    """Check the part of a `Media` that is decoded already; of a file there is nothing to check yet.

    Raises:
        RequestError: ``bad_tensor``.
    """
    if media.format == "frames":
        frames = tensor_of(tensors, part=media.part, name="frames", dtypes=("U8",), rank=4)
        if min(frames.shape) < 1 or frames.shape[3] != 3:
            raise _bad_shape(media, frames, "frames is [F, H, W, 3], at least one picture.")
    elif media.format == "audio":
        waveform = tensor_of(tensors, part=media.part, name="waveform", dtypes=("F32",), rank=2)
        if min(waveform.shape) < 1:
            raise _bad_shape(media, waveform, "waveform is [C, N], at least one sample.")


def _bad_shape(media: Media, info: TensorInfo, message: str) -> RequestError:
    return RequestError(
        "bad_tensor",
        message,
        field=f"parts.{media.part}.{info.name}",
        value=str(list(info.shape)),
        remedy="Send what there is to see or hear, or leave it out.",
    )


def check_text(tensors: Tensors, *, facts: ModelFacts, longest: int, remedy: str) -> int:
    """Check the text of a conditioning; return its rows.

    Args:
        longest: the most rows it may have. remedy: what to do about more.

    Raises:
        RequestError: ``bad_tensor``, ``wrong_model`` or ``prompt_too_long``.
    """
    embeds = tensor_of(tensors, part="conditioning", name="prompt_embeds", dtypes=FLOATS, rank=3)
    tags = tensor_of(tensors, part="conditioning", name="token_tags", dtypes=("I64",), rank=1)
    if embeds.shape[2] != facts.text_dim:
        raise RequestError(
            "wrong_model",
            f"The conditioning is {embeds.shape[2]} wide, this model reads {facts.text_dim}.",
            field="parts.conditioning.prompt_embeds",
            value=str(list(embeds.shape)),
            remedy="Encode the prompt with the same model's encoder.",
        )
    if embeds.shape[0] != 1 or embeds.shape[1] < 1 or tags.shape != (embeds.shape[1],):
        raise RequestError(
            "bad_tensor",
            f"prompt_embeds is [1, L, {facts.text_dim}] and token_tags [L].",
            field="parts.conditioning",
            value=f"{list(embeds.shape)}, {list(tags.shape)}",
            remedy="Send one prompt with one tag for each of its rows.",
        )
    if embeds.shape[1] > longest:
        raise RequestError(
            "prompt_too_long",
            f"The conditioning has {embeds.shape[1]} rows, the limit is {longest}.",
            field="parts.conditioning.prompt_embeds",
            value=embeds.shape[1],
            remedy=remedy,
        )
    return embeds.shape[1]


def check_latent_part(tensors: Tensors, *, facts: ModelFacts) -> tuple[int, int, int]:
    """Check a ``latents`` part; return the (width, height) in pixels and the frames that it makes.

    Raises:
        RequestError: ``bad_tensor``, ``wrong_model``, ``bad_canvas`` or ``bad_aspect``.
    """
    video = tensor_of(tensors, part="latents", name="video", dtypes=FLOATS, rank=5)
    audio = tensor_of(tensors, part="latents", name="audio", dtypes=FLOATS, rank=4)
    frames = check_latent_shapes(video.shape, audio.shape, facts)
    height, width = (side * facts.spatial_ratio for side in video.shape[3:])
    geometry.check_canvas(width, height, multiple=facts.canvas_multiple, path="parts.latents.")
    return width, height, frames


def check_latent_shapes(video: tuple[int, ...], audio: tuple[int, ...], facts: ModelFacts) -> int:
    """Check that two latent shapes are this model's and belong together; return the pixel frames they make.

    Args:
        video: [1, C, T, H/16, W/16]. audio: [1, Ca, 2, A].

    Raises:
        RequestError: ``wrong_model`` or ``bad_tensor``.
    """
    channels = (facts.latent_channels, facts.audio_latent_channels)
    wanted = f"video [1, {channels[0]}, T, H/16, W/16] and audio [1, {channels[1]}, 2, A]"
    shown = f"{list(video)} and {list(audio)}"
    if len(video) != 5 or len(audio) != 4 or (video[1], audio[1]) != channels:
        message = f"A latent of this model is {wanted}; this is {shown}."
        raise _latent_error("wrong_model", message, field="parts.latents", value=shown)
    if video[0] != 1 or audio[0] != 1 or audio[2] != geometry.AUDIO_CHANNELS or min(video) < 1 or min(audio) < 1:
        message = f"The batch is 1 and the sound stereo: {wanted}; this is {shown}."
        raise _latent_error("bad_tensor", message, field="parts.latents", value=shown)
    frames = geometry.frames_of_latents(video[2])
    needed = geometry.audio_latents(frames)
    if audio[3] != needed:
        message = f"{video[2]} latent frames make {frames} frames and need {needed} audio latents, not {audio[3]}."
        raise _latent_error("bad_tensor", message, field="parts.latents.audio", value=audio[3])
    return frames


def _latent_error(code: str, message: str, *, field: str, value: object) -> RequestError:
    remedy = "Use a latent that was made, sampled or encoded for the same model, whole."
    return RequestError(code, message, field=field, value=value, remedy=remedy)
