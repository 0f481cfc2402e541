"""What a user should know of a result that looks broken: silence, values that are no numbers, and its latents.

The video is delivered in any case. Pure functions of tensors; raises nothing.
"""

from __future__ import annotations

import torch

from .contract.messages import Warned

_CONSTANT = 1e-6
"""A soundtrack that moves less than this is one constant."""


def result_warnings(*, frames: torch.Tensor | None = None, audio: torch.Tensor | None = None) -> list[Warned]:
    """Return what a user should know of pictures [f, H, W, 3] in 0..1 or a soundtrack [..., 2, N].

    Codes ``nan_result`` (values that are no numbers; they become black or silence) and ``silent_audio``.
    """
    found = []
    if frames is not None and not bool(frames.isfinite().all()):
        found.append(Warned("nan_result", "The pictures hold values that are not numbers; they were made black."))
    if audio is not None:
        if not bool(audio.isfinite().all()):
            found.append(Warned("nan_result", "The sound holds values that are not numbers; they were silenced."))
        if bool(((audio.amax(dim=-1) - audio.amin(dim=-1)) < _CONSTANT).all()):
            level = f"{float(audio.flatten()[0]):.3g}"
            found.append(Warned("silent_audio", f"The soundtrack is one constant ({level}): nothing will be heard."))
    return found


def describe_latents(video: torch.Tensor, audio: torch.Tensor) -> str:
    """Return the statistics of both streams of a latent, tensors of any shape, as one sentence."""
    return f"The latents: video {_statistics(video)}; sound {_statistics(audio)}."


def _statistics(values: torch.Tensor) -> str:
    """Return range and mean of the finite values, and how many are not numbers."""
    finite = values[values.isfinite()].float()
    strange = values.numel() - finite.numel()
    if not finite.numel():
        return f"{strange} of {values.numel()} values not numbers"
    low, high, mean = float(finite.min()), float(finite.max()), float(finite.mean())
    return f"{low:.3g} to {high:.3g}, mean {mean:.3g}, {strange} of {values.numel()} values not numbers"
