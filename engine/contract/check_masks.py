"""The source and the masks of an edit, checked against the video they are meant for.

`Denoise` takes the source as the part ``latents`` and masks as scalars or as the part ``masks``: ``video_noise_mask``
[1, 1, T, H/16, W/16] and ``audio_noise_mask`` [1, 1, 2, A], float32, 0 keeps and 1 regenerates. A stream without either
is regenerated whole. Only headers are read here; that the values are 0 to 1 the ranks see (`engine.masking`). Raises
`RequestError` before any rank wakes.
"""

from __future__ import annotations

from . import geometry
from .errors import RequestError
from .limits import ModelFacts
from .requests import Denoise
from .tensors import Headers, Tensors, check_latent_part, tensor_of

MASKS = "masks"
"""The part that masks travel in."""
MASK_TENSORS = {"video": "video_noise_mask", "audio": "audio_noise_mask"}
"""Stream → its tensor in that part."""
_RANKS = {"video": 5, "audio": 4}


def check_edit(request: Denoise, headers: Headers, facts: ModelFacts) -> None:
    """Check the source and the masks of a resolved request, if there are any.

    Raises:
        RequestError: ``missing_field`` for a mask without a source; ``bad_tensor``, ``wrong_model`` or ``bad_mask``
            for a source or mask that does not fit, naming both canvases or lengths; ``out_of_range`` for a scalar.
    """
    masks = headers.get(MASKS, {})
    given = [stream for stream in MASK_TENSORS if _scalar(request, stream) is not None]
    if "latents" not in headers:
        if given or MASKS in headers:
            raise RequestError(
                "missing_field",
                "A mask says what of a source is kept, and there is no source.",
                field="parts.latents",
                remedy="Send the source's latents as the part 'latents', or leave the masks out.",
            )
        return
    _check_source(request, headers["latents"], facts)
    for stream, name in MASK_TENSORS.items():
        _check_scalar(_scalar(request, stream), stream, also=name in masks)
    _check_names(masks)
    if MASK_TENSORS["video"] in masks:
        _check_video(request, masks, facts)
    if MASK_TENSORS["audio"] in masks:
        _check_audio(request, masks)


def _scalar(request: Denoise, stream: str) -> float | None:
    return request.video_mask if stream == "video" else request.audio_mask


def _check_source(request: Denoise, tensors: Tensors, facts: ModelFacts) -> None:
    width, height, frames = check_latent_part(tensors, facts=facts)
    if (width, height, frames) != (request.width, request.height, request.frames):
        raise RequestError(
            "bad_tensor",
            f"The source is {width}x{height}, {frames} frames; this video is {request.width}x{request.height}, "
            f"{request.frames} frames.",
            field="parts.latents",
            value=str(list(tensors["video"].shape)),
            remedy=f"Edit it at {width}x{height} and {frames} frames, or encode it for this video.",
        )


def _check_scalar(value: float | None, stream: str, *, also: bool) -> None:
    field = f"request.{stream}_mask"
    if value is None:
        return
    if not 0 <= value <= 1:
        message = "A mask is 0, keep, to 1, regenerate."
        raise RequestError("out_of_range", message, field=field, value=value, remedy="Use a number from 0 to 1.")
    if also:
        message = f"There are two masks of the {stream}: this one and {MASK_TENSORS[stream]}."
        raise RequestError("out_of_range", message, field=field, value=value, remedy="Leave one of them out.")


def _check_names(masks: Tensors) -> None:
    known = tuple(MASK_TENSORS.values())
    for name in masks:
        if name not in known:
            raise RequestError(
                "bad_mask",
                f"There is no mask {name!r}.",
                field=f"parts.{MASKS}.{name}",
                value=name,
                remedy=f"Masks are {' and '.join(known)}.",
            )


def _check_video(request: Denoise, masks: Tensors, facts: ModelFacts) -> None:
    info = tensor_of(masks, part=MASKS, name=MASK_TENSORS["video"], dtypes=("F32",), rank=_RANKS["video"])
    latents = geometry.latent_frames(request.frames)
    height, width = request.height // facts.spatial_ratio, request.width // facts.spatial_ratio
    if info.shape != (1, 1, latents, height, width):
        found = "x".join(str(side * facts.spatial_ratio) for side in reversed(info.shape[3:]))
        raise RequestError(
            "bad_mask",
            f"The video's mask is of {found} and {info.shape[2]} latent frames; this video is "
            f"{request.width}x{request.height} and {latents}: [1, 1, {latents}, {height}, {width}].",
            field=f"parts.{MASKS}.{info.name}",
            value=str(list(info.shape)),
            remedy="Paint or convert the mask for this canvas and length.",
        )


def _check_audio(request: Denoise, masks: Tensors) -> None:
    info = tensor_of(masks, part=MASKS, name=MASK_TENSORS["audio"], dtypes=("F32",), rank=_RANKS["audio"])
    latents = geometry.audio_latents(request.frames)
    if info.shape != (1, 1, geometry.AUDIO_CHANNELS, latents):
        raise RequestError(
            "bad_mask",
            f"The sound's mask has {info.shape[2]} channels of {info.shape[3]} latents; this video has "
            f"{geometry.AUDIO_CHANNELS} of {latents}: [1, 1, {geometry.AUDIO_CHANNELS}, {latents}].",
            field=f"parts.{MASKS}.{info.name}",
            value=str(list(info.shape)),
            remedy="Make the mask for this length.",
        )
