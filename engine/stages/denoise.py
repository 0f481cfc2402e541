"""Stage ``denoise``: conditioning and a seed to latents.

Promise: on one rank in fp32 the latents equal diffusers' t2va bit for bit. ``boundary`` before each forward,
``report(step, forwards)`` after it. Raises `JobError` for schedules that do not fit together, `RequestError` for
conditioning whose values no model can read, and what ``boundary`` raises.
"""

from __future__ import annotations

import torch

from ..contract.errors import RequestError
from ..packing import build_layout, latent_grid, pack_video, unpack_audio, unpack_video
from ..sampling import draw_noise, sample, set_schedules
from .base import Latents, PromptEmbeds, StageContext

_TAGS = (0, 1)
"""Vision and text; the third of the packed sequence's tags, sound, is never part of a prompt."""


def check_conditioning(embeds: PromptEmbeds) -> None:
    """Check the values of a caller's conditioning; its types and shapes were checked by the server.

    Raises:
        RequestError: ``bad_tensor``, alike on all ranks that were given the same.
    """
    tags = embeds.token_tags
    strange = tags[~torch.isin(tags, torch.tensor(_TAGS, device=tags.device))]
    if strange.numel():
        raise RequestError(
            "bad_tensor",
            "A tag is 1 for text or 0 for vision.",
            field="parts.conditioning.token_tags",
            value=int(strange[0]),
            remedy="Use the tags that the prompt was encoded with.",
        )
    bad = int((~embeds.prompt_embeds.isfinite()).sum())
    if bad:
        raise RequestError(
            "bad_tensor",
            f"{bad} of the {embeds.prompt_embeds.numel()} values are not finite numbers.",
            field="parts.conditioning.prompt_embeds",
            value=bad,
            remedy="Encode the prompt again, in a type with a larger range if it was fp16.",
        )


def denoise(
    ctx: StageContext,
    embeds: PromptEmbeds,
    *,
    width: int,
    height: int,
    frames: int,
    steps: int,
    seed: int,
    pad_seq_len: int | None = None,
) -> Latents:
    """Denoise from the noise of ``seed``; every rank calls it with the same arguments.

    Args:
        width, height: pixels. frames: pixel frames on the lattice 17n+5. steps: forwards, 1 or more.
        pad_seq_len: rows to pad the packed sequence to (the transformer must be wrapped); None: no padding.

    Returns:
        Normalised fp32 latents on the rank's device.
    """
    models = ctx.models
    grid = latent_grid(models.facts, width=width, height=height, frames=frames)
    video, audio_rows = draw_noise(grid, seed=seed)
    video_rows, audio_rows = sample(
        models.transformer,
        video_rows=pack_video(video, grid.patch).to(ctx.device),
        audio_rows=audio_rows.to(ctx.device),
        prompt_embeds=embeds.prompt_embeds.to(ctx.device),
        layout=build_layout(embeds.token_tags.cpu(), grid, pad_seq_len=pad_seq_len),
        schedules=set_schedules(models.scheduler, models.audio_scheduler, steps=steps, device=ctx.device),
        boundary=ctx.boundary,
        report=ctx.report,
    )
    return Latents(unpack_video(video_rows, grid), unpack_audio(audio_rows, grid))
