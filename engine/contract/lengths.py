"""The length of a request's packed sequence: its text, and the length that a client may pin.

Checked when the text's rows are known: from a conditioning's header, or from the prompt's token count. Raises
`RequestError`.
"""

from __future__ import annotations

from typing import Any

from . import geometry
from .errors import RequestError
from .limits import PAD_MULTIPLE, Limits, ModelFacts
from .requests import Denoise, Generate


def used_rows(
    *, text_rows: int, width: int, height: int, frames: int, facts: ModelFacts, condition_rows: int = 0
) -> int:
    """Return the rows of a packed sequence: text + conditions + 2*A audio + T*(H/m)*(W/m) video, m the canvas multiple.

    Args:
        text_rows: tokens of the prompt, with those of its pictures. width, height: pixels.
        frames: pixel frames on the lattice 17n+5. condition_rows: of keyframes, guides and references.
    """
    multiple = facts.canvas_multiple
    audio = geometry.AUDIO_CHANNELS * geometry.audio_latents(frames)
    return (
        text_rows + condition_rows + audio + geometry.latent_frames(frames) * (height // multiple) * (width // multiple)
    )


def check_rows(
    request: Denoise | Generate, *, text_rows: int, facts: ModelFacts, limits: Limits, condition_rows: int = 0
) -> dict[str, Any]:
    """Check the pinned length of a resolved request; return the facts ``rows`` and, when pinned, ``pad_seq_len``.

    Raises:
        RequestError: ``out_of_range`` naming the smallest length that would do.
    """
    assert request.width is not None
    assert request.height is not None
    assert request.frames is not None
    rows = used_rows(
        text_rows=text_rows,
        width=request.width,
        height=request.height,
        frames=request.frames,
        facts=facts,
        condition_rows=condition_rows,
    )
    if request.pad_seq_len is None:
        return {"rows": rows}
    check_pinned(request.pad_seq_len, rows=rows, largest=limits.max_pad_seq_len)
    return {"rows": rows, "pad_seq_len": request.pad_seq_len}


def check_pinned(length: int, *, rows: int, largest: int | None = None) -> None:
    """Check a pinned ``length`` of a packed sequence of ``rows`` used rows.

    Args:
        largest: the operator's limit; None: it was checked before.

    Raises:
        RequestError: ``out_of_range`` naming the smallest length that would do.
    """
    if length % PAD_MULTIPLE:
        message = f"pad_seq_len must be a multiple of {PAD_MULTIPLE} rows."
    elif length < rows:
        message = f"This request has {rows} rows (text, sound, video and conditions); pad_seq_len cannot be below that."
    elif largest is not None and length > largest:
        message = f"pad_seq_len is over this engine's limit of {largest} rows."
    else:
        return
    smallest = -(-rows // PAD_MULTIPLE) * PAD_MULTIPLE
    remedy = f"Use {smallest}, the smallest that holds this request, or leave it out."
    if largest is not None and smallest > largest:
        remedy = f"Leave it out, ask for a shorter video or a smaller canvas, or raise --max-pad-seq-len to {smallest}."
    raise RequestError("out_of_range", message, field="request.pad_seq_len", value=length, remedy=remedy)


def check_prompt_tokens(tokens: int, limits: Limits) -> None:
    """Check the length of a prompt.

    Raises:
        RequestError: ``prompt_too_long``.
    """
    if tokens > limits.max_prompt_tokens:
        raise RequestError(
            "prompt_too_long",
            f"The prompt has at least {tokens} tokens, the limit is {limits.max_prompt_tokens}.",
            field="request.prompt",
            value=tokens,
            remedy="Shorten the prompt, or raise --max-prompt-tokens.",
        )
