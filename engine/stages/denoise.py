"""Stage ``denoise``: conditioning and a seed to latents.

Promise: on one rank in fp32 the latents equal diffusers' t2va, fl2va and ref2va bit for bit; what an edit keeps is the
source's, bit for bit; no buffer of noise is left when the first forward begins. ``boundary`` before each forward,
``report(step, forwards)`` after it. Raises `JobError` for schedules that do not fit together, `RequestError` for
conditioning that no model can read or that was encoded for another video, and what ``boundary`` raises.
"""

from __future__ import annotations

import torch

from ..conditioning import NOTHING, Conditions
from ..contract.errors import RequestError
from ..masking import UNMASKED, Edit
from ..noise import Noise, NoiseShapes, NoiseWorker, draw_noise
from ..packing import LatentGrid, build_layout, latent_grid, pack_video, unpack_audio, unpack_video
from ..sampling import sample, set_schedules
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
    conditions: Conditions = NOTHING,
    noise: NoiseWorker | None = None,
    edit: Edit | None = None,
) -> Latents:
    """Denoise from the noise of ``seed``; every rank calls it with the same arguments.

    Args:
        width, height: pixels. frames: pixel frames on the lattice 17n+5. steps: forwards, 1 or more.
        pad_seq_len: rows to pad the packed sequence to (the transformer must be wrapped); None: no padding.
        conditions: with references the transformer for references runs.
        noise: draws the noise of ``seed`` already; None: it is drawn here.
        edit: a source of the same size and what of it is kept; None: all is made anew.

    Returns:
        Normalised fp32 latents on the rank's device.
    """
    models = ctx.models
    conditions.check(width=width, height=height, frames=frames, facts=models.facts)
    grid = latent_grid(models.facts, width=width, height=height, frames=frames)
    blocks = conditions.blocks()
    shapes = NoiseShapes.of(grid, blocks)
    video_rows, audio_rows = _initial_rows(
        ctx, conditions, draw_noise(shapes, seed=seed) if noise is None else noise.take(shapes), grid
    )
    layout = build_layout(embeds.token_tags.cpu(), grid, blocks, pad_seq_len=pad_seq_len)
    masks = UNMASKED
    if edit is not None:
        masks = edit.masks(video_rows, audio_rows, layout=layout, scheduler=models.scheduler, patch=grid.patch)
    schedules = set_schedules(models.scheduler, models.audio_scheduler, steps=steps, device=ctx.device)
    # Before the first boundary: a rank without room for it keeps nobody waiting.
    with ctx.using("transformer_ref" if conditions.references else "transformer", stage="denoise") as transformer:
        video_rows, audio_rows = sample(
            transformer,
            video_rows=video_rows,
            audio_rows=audio_rows,
            prompt_embeds=embeds.prompt_embeds.to(ctx.device),
            layout=layout,
            schedules=schedules,
            boundary=ctx.boundary,
            report=ctx.report,
            modulation=ctx.modulation,
            masks=masks,
        )
    return Latents(unpack_video(video_rows, grid), unpack_audio(audio_rows, grid))


def _initial_rows(
    ctx: StageContext, conditions: Conditions, noise: Noise, grid: LatentGrid
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all video and audio rows before the first step, conditions first; copies, so that ``noise`` can go."""
    pictures = conditions.video_rows(
        noise.conditions, scheduler=ctx.models.scheduler, patch=grid.patch, device=ctx.device
    )
    video = torch.cat([*pictures, pack_video(noise.video, grid.patch).to(ctx.device)])
    audio = torch.cat([*conditions.audio_rows(ctx.device), noise.audio.to(ctx.device)])
    return video, audio
