"""The inputs of H3EngineConnect that say how the ranks share the work, and what is refused before an engine starts.

Values may come through links, which no schema checks. The engine itself checks them again, with what only it knows (its
devices, the checkpoint's heads and channels); its words are then in the error of the first node that uses it. Raises
`RequestError`.
"""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ...engine.contract.errors import RequestError
from ...engine.contract.limits import MAX_RANK_WEIGHT, MIN_RANK_WEIGHT
from ..launcher import ParallelSpec
from .common import known_keywords

MAX_RANKS = 64
_TEXT_ENCODER_DEGREES = (1, 2, 4, 8)


def parallel_inputs() -> list[Any]:
    """Return the inputs, named and with defaults as the fields of `ParallelSpec`."""
    default = ParallelSpec()
    return [
        _degree(
            "ulysses_degree",
            default.ulysses_degree,
            "Ranks that share a video by trading rows for attention heads; 0 takes the rest: ranks / (ring x tp).",
        ),
        _degree(
            "ring_degree",
            default.ring_degree,
            "Ranks that share a video by passing keys and values around; for more ranks than heads, or slow links. "
            "Multiplies with ulysses_degree.",
        ),
        _degree(
            "tp_degree",
            default.tp_degree,
            "Ranks that each hold a part of every layer of the transformer; must divide its attention heads (56) and "
            "feed-forward channels (14336).",
        ),
        _degree(
            "text_encoder_tp_degree",
            default.text_encoder_tp_degree,
            "Ranks among which the text encoder is split: 1, 2, 4 or 8.",
        ),
        _switch(
            "shard_weights",
            default.shard_weights,
            "Each rank keeps a part of the transformer's weights and gathers the rest when it needs them: slower, for "
            "a model that is larger than one card.",
        ),
        _switch(
            "compile",
            default.compile,
            "Compile the transformer's blocks: the first run is slower, further ones of the same length faster. "
            "pad_seq_len of H3 Engine Sampler keeps the length the same for all prompts.",
        ),
        io.String.Input(
            "rank_weights",
            default=default.rank_weights,
            optional=True,
            tooltip="For cards of different speed: a number for each rank that shares the video, in proportion to its "
            "share, for example 2,1,1. Empty: alike.",
            **known_keywords(io.String.Input, advanced=True),
        ),
    ]


def _degree(name: str, default: int, tooltip: str) -> Any:
    keywords = known_keywords(io.Int.Input, advanced=True)
    return io.Int.Input(
        name, default=default, min=_lowest(name), max=MAX_RANKS, optional=True, tooltip=tooltip, **keywords
    )


def _lowest(name: str) -> int:
    """Return the lowest value of a degree: 0 for the one that takes the rest."""
    default: int = getattr(ParallelSpec, name)
    return min(default, 1)


def _switch(name: str, default: bool, tooltip: str) -> Any:
    keywords = known_keywords(io.Boolean.Input, advanced=True)
    return io.Boolean.Input(name, default=default, optional=True, tooltip=tooltip, **keywords)


def check_parallel(spec: ParallelSpec, *, ranks: int) -> None:
    """Check what needs neither the devices nor the checkpoint.

    Args:
        ranks: 0 when it is left to the engine.

    Raises:
        RequestError: ``out_of_range``.
    """
    for name in ("ulysses_degree", "ring_degree", "tp_degree"):
        degree, low = getattr(spec, name), _lowest(name)
        if not low <= degree <= MAX_RANKS:
            remedy = "Use 1 to leave it out." if low else "Use 0 to take the rest of the ranks."
            raise _refusal(name, degree, f"{name} is {low} to {MAX_RANKS}.", remedy)
    product = max(1, spec.ulysses_degree) * spec.ring_degree * spec.tp_degree
    if ranks and (ranks % product or (spec.ulysses_degree and ranks != product)):
        raise _refusal(
            "ranks",
            ranks,
            f"{ranks} ranks cannot be laid out: ranks = ulysses_degree x ring_degree x tp_degree.",
            f"Use ranks 0 or {product}, or ulysses_degree 0 and degrees whose product divides {ranks}.",
        )
    if spec.text_encoder_tp_degree not in _TEXT_ENCODER_DEGREES:
        message = "The text encoder is split among 1, 2, 4 or 8 ranks."
        raise _refusal("text_encoder_tp_degree", spec.text_encoder_tp_degree, message, "Use 1, 2, 4 or 8.")
    if spec.rank_weights:
        _check_weights(spec.rank_weights)


def _check_weights(text: str) -> None:
    try:
        weights = [float(word) for word in text.split(",")]
    except ValueError:
        weights = [0.0]
    if not all(MIN_RANK_WEIGHT <= weight <= MAX_RANK_WEIGHT for weight in weights):
        message = f"rank_weights are numbers separated by commas, {MIN_RANK_WEIGHT:g} to {MAX_RANK_WEIGHT:g}."
        raise _refusal("rank_weights", text, message, "For example 2,1,1 for three ranks; empty for equal shares.")


def _refusal(field: str, value: object, message: str, remedy: str) -> RequestError:
    return RequestError("out_of_range", message, field=field, value=value, remedy=remedy)
