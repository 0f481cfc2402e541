"""Source and result of an edit through the mask: what the mask leaves out stays the source's own, bit for bit.

The mask is what the engine really made anew: cells of 16 x 16 pixels and a latent frame, latents of 25 ms. Edges are
softened inward only, so that nothing outside of them changes. Times are the result's; a source that begins earlier or
ends later than the result (``offset``, of a shot that was extended in parts) goes on there by itself. What the result
has only because a clip was lengthened to the model's next length is left out: with nothing made anew, the source is
what comes out. Knows nothing of ComfyUI's modules. Raises `RequestError` naming the node's input.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import av
import numpy as np
import torch
from PIL import Image

from ..engine.contract import geometry, mask_cells
from ..engine.contract.errors import RequestError
from .kept import clock_order
from .masks import Shot, StreamMasks, in_pixels, token_of_frames, touched_cells

_COLOURS = 3


def composite_images(
    source: torch.Tensor,
    result: torch.Tensor,
    masks: StreamMasks,
    shot: Shot,
    *,
    feather: int,
    offset: int,
    fps: float,
    length: int | None = None,
) -> torch.Tensor:
    """Return IMAGE [N, H, W, 3]; of a source that has the canvas' size, pixels outside of the mask are its own.

    Where the mask leaves all pictures as they are, these are the source's own tensor, not a copy.

    Args:
        source: IMAGE [n, h, w, C]; of another size it is scaled to cover the canvas and cropped, as the engine does.
        result: IMAGE [F, H, W, C] of ``shot``. feather: pixels over which an edge fades in.
        offset: frame of the result at which the source begins, at 24 a second; may be negative. fps: of the source.
        length: frames of the result that are no lengthening of the clip's; None: all of them.

    Raises:
        RequestError: ``bad_mask`` when ``result`` is not of ``shot``, naming both; ``out_of_range`` for an offset that
            leaves a gap between both.
    """
    _check_result(result, shot)
    order = clock_order(len(source), fps=fps)
    _check_offset(offset, len(order), shot)
    start, end = min(0, offset), max(result_end(masks, shot.frames, length=length), offset + len(order))
    if not masks.video.any() and source.shape == (end - start, shot.height, shot.width, _COLOURS) and start == offset:
        return source
    made = torch.empty((end - start, shot.height, shot.width, _COLOURS))
    tokens = token_of_frames(shot.frames)
    weights: dict[int, torch.Tensor] = {}
    for frame in range(start, end):
        number = frame - offset
        own = _fitted(source[order[number]], shot) if 0 <= number < len(order) else None
        new = result[frame, ..., :_COLOURS] if 0 <= frame < shot.frames else None
        if own is None or new is None:
            only = new if own is None else own
            assert only is not None
            made[frame - start] = only
            continue
        token = int(tokens[frame])
        if token not in weights:
            weights = {token: pixel_weights(masks.video[token], feather=feather)}
        made[frame - start] = own
        down, across = map(in_pixels, touched_cells(masks.video[token]))
        weight = weights[token][down, across, None]
        made[frame - start, down, across] = _blend(own[down, across], new[down, across].to(own), weight)
    return made


def composite_audio(
    source: Mapping[str, Any],
    result: Mapping[str, Any],
    masks: StreamMasks,
    *,
    feather_ms: float,
    offset: int,
    length: int | None = None,
) -> dict[str, Any]:
    """Return AUDIO at the source's rate; samples outside of the mask are the source's own.

    Args:
        source: AUDIO, one channel or more. result: AUDIO of the shot, stereo. feather_ms: over which an edge fades in.
        offset, length: see `composite_images`.
    """
    rate = int(source["sample_rate"])
    old = source["waveform"][0].float().cpu()  # [C, n]
    new = resampled(result["waveform"][0].float().cpu(), int(result["sample_rate"]), rate)  # [2, m]
    if len(old) == 1:
        old = old.expand(2, -1)
    begins = round(offset * rate / geometry.FPS)
    new = new[:, : max(begins + old.shape[1], sound_end(masks, new.shape[1], rate=rate, length=length))]
    start, end = min(0, begins), max(new.shape[1], begins + old.shape[1])
    weights = sample_weights(masks.audio, new.shape[1], rate=rate, feather_ms=feather_ms)
    made = torch.zeros((len(old), end - start))
    has_old = torch.zeros(end - start, dtype=torch.bool)
    has_old[begins - start : begins - start + old.shape[1]] = True
    made[:, has_old] = old
    part = made[:, -start : new.shape[1] - start]
    covered = has_old[-start : new.shape[1] - start]
    for channel in range(len(old)):
        # Where the source has no sound, the result's is all there is.
        weight = torch.where(covered, weights[channel % 2], torch.ones(()))
        part[channel] = _blend(part[channel], new[channel % 2], weight)
    return {"waveform": made[None], "sample_rate": rate}


def result_end(masks: StreamMasks, frames: int, *, length: int | None) -> int:
    """Return the frame at which a result of ``frames`` ends: where the clip does, or what was made anew before that."""
    if length is None:
        return frames
    touched = np.flatnonzero(masks.video.any(axis=(1, 2)))
    return min(length, geometry.frames_of_latents(int(touched[-1]) + 1)) if touched.size else 0


def sound_end(masks: StreamMasks, samples: int, *, rate: int, length: int | None) -> int:
    """Return the sample at which a result's sound of ``samples`` ends, likewise."""
    if length is None:
        return samples
    touched = np.flatnonzero(masks.audio.any(axis=0))
    made = (int(touched[-1]) + 1) * rate // geometry.AUDIO_LATENTS_PER_SECOND if touched.size else 0
    return min(samples, round(length * rate / geometry.FPS), made)


def pixel_weights(cells: np.ndarray[Any, Any], *, feather: int) -> torch.Tensor:
    """Return how much of the result each pixel takes, [16h, 16w]: 0 outside of the mask, rising to 1 inside of it.

    Args:
        cells: [h, w]; any value but 0 is inside, for blends are in the result already.
        feather: pixels of the rise; an edge of the canvas is no edge of the mask.
    """
    inside = torch.from_numpy(cells > 0).float()
    wide = inside.repeat_interleave(mask_cells.CELL, 0).repeat_interleave(mask_cells.CELL, 1)
    radius = feather // 2
    if not radius or inside.min() == inside.max():
        return wide
    side = 2 * radius + 1
    padded = torch.nn.functional.pad(wide[None, None], [2 * radius] * 4, mode="replicate")
    # Shrunk by the radius, then blurred by it: nothing gets out of where it was.
    shrunk = 1 - torch.nn.functional.max_pool2d(torch.nn.functional.max_pool2d(1 - padded, (side, 1), 1), (1, side), 1)
    across = torch.nn.functional.avg_pool2d(shrunk, (side, 1), 1)
    return torch.nn.functional.avg_pool2d(across, (1, side), 1)[0, 0]


def sample_weights(cells: np.ndarray[Any, Any], count: int, *, rate: int, feather_ms: float) -> torch.Tensor:
    """Return the same of sound: [2, count] of cells [2, A]."""
    latents = torch.arange(count) * geometry.AUDIO_LATENTS_PER_SECOND // rate
    inside = torch.from_numpy(cells > 0).float()[:, latents.clamp(max=cells.shape[1] - 1)]
    radius = round(feather_ms * rate / 2000)
    if not radius or not count:
        return inside
    side = 2 * radius + 1
    padded = torch.nn.functional.pad(inside[None], [2 * radius] * 2, mode="replicate")
    shrunk = 1 - torch.nn.functional.max_pool1d(1 - padded, side, 1)
    return torch.nn.functional.avg_pool1d(shrunk, side, 1)[0]


def resampled(waveform: torch.Tensor, rate: int, target: int) -> torch.Tensor:
    """Return [C, N] at another rate, one or two channels; untouched at the same one."""
    if rate == target or not waveform.shape[1]:
        return waveform
    layout = "mono" if len(waveform) == 1 else "stereo"
    frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(waveform.numpy()), format="fltp", layout=layout)
    frame.sample_rate = rate
    resampler = av.AudioResampler(format="fltp", layout=layout, rate=target)
    pieces = [piece.to_ndarray() for part in (frame, None) for piece in resampler.resample(part)]
    found = torch.from_numpy(np.concatenate(pieces, 1))
    wanted = round(waveform.shape[1] * target / rate)
    return torch.nn.functional.pad(found, (0, max(0, wanted - found.shape[1])))[:, :wanted]


def _blend(own: torch.Tensor, new: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return ``own`` where ``weight`` is 0, bit for bit, ``new`` where it is 1."""
    return torch.where(weight > 0, torch.lerp(own, new, weight.expand_as(own)), own)


def _fitted(picture: torch.Tensor, shot: Shot) -> torch.Tensor:
    """Return a picture [h, w, C] at the shot's size, untouched if it has it; in 256 levels otherwise."""
    picture = picture[..., :_COLOURS].float().cpu()
    height, width = picture.shape[:2]
    if (width, height) == (shot.width, shot.height):
        return picture
    scale = max(shot.width / width, shot.height / height)
    wide, high = max(shot.width, round(width * scale)), max(shot.height, round(height * scale))
    left, top = (wide - shot.width) // 2, (high - shot.height) // 2
    pixels = picture.clamp(0, 1).mul(255).round().to(torch.uint8).numpy()
    scaled = np.array(Image.fromarray(pixels).resize((wide, high), Image.Resampling.LANCZOS))
    return torch.from_numpy(scaled[top : top + shot.height, left : left + shot.width]).float().div(255)


def _check_offset(offset: int, frames: int, shot: Shot) -> None:
    if not -frames <= offset <= shot.frames:
        raise RequestError(
            "out_of_range",
            f"Between a source of {frames} frames from frame {offset} on and a result of {shot.frames} there is a gap.",
            field="offset",
            value=offset,
            remedy=f"Use {-frames} to {shot.frames}, as H3 Engine Extend gives it.",
        )


def _check_result(result: torch.Tensor, shot: Shot) -> None:
    frames, height, width = result.shape[:3]
    if (width, height, frames) != (shot.width, shot.height, shot.frames):
        raise RequestError(
            "bad_mask",
            f"The result is {width}x{height} with {frames} frames; the latent with the mask is "
            f"{shot.width}x{shot.height} with {shot.frames}.",
            field="result_images",
            value=f"{width}x{height}, {frames} frames",
            remedy="Connect the latent that was sampled, and all frames that it was decoded to.",
        )
