"""How many ranks there are and how they share the work: the options resolved, contradictions refused.

`resolve_layout` needs the options and this machine's devices; `check_layout` compares with what the checkpoint says of
its heads and channels. Both run before a rank starts. Raise `ConfigError` naming option, value and the layouts that
would work.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .config_devices import Devices
from .contract.errors import ConfigError
from .contract.limits import ModelFacts
from .layout import layout_problem, layouts_remedy
from .rank_options import ParallelOptions

TEXT_ENCODER_DEGREES = (1, 2, 4, 8)
_STAGE_OF = {"text_encoder_tp_degree": "encode_prompt", "shard_weights": "denoise", "compile": "denoise"}
"""Options that do nothing without the model of one stage."""


def resolve_layout(values: Mapping[str, Any], devices: Devices, facts: ModelFacts) -> ParallelOptions:
    """Return how the ranks share the work; ``ulysses_degree`` is the rest when it is unset.

    Args:
        values: the options ``nproc_per_node``, ``stages``, and the fields of `ParallelOptions`.
        facts: of the checkpoint, so that a remedy names no layout that `check_layout` would refuse.

    Raises:
        ConfigError: ``config_conflict`` or ``config_bad_value``.
    """
    others = values["ring_degree"] * values["tp_degree"]
    ranks, ulysses = values["nproc_per_node"], values["ulysses_degree"]
    if ranks is None:
        ranks = ulysses * others if ulysses else _default_ranks(devices, others)
    if ulysses is None and ranks % others == 0:
        ulysses = ranks // others
    if ulysses is None or ulysses * others != ranks:
        raise _does_not_fit(values, ranks, devices, facts)
    if devices.kind != "cpu" and ranks > devices.count:
        raise _conflict(
            f"{ranks} ranks need {ranks} devices; this machine has {devices.count} of kind {devices.kind}.",
            field="nproc_per_node",
            value=ranks,
            remedy=f"Use --nproc-per-node {devices.count} or less.",
        )
    _check_served(values)
    _check_text_encoder_degree(values["text_encoder_tp_degree"], ranks, facts)
    _check_weights(values["rank_weights"], ulysses * values["ring_degree"])
    if values["shard_weights"] and ulysses * values["ring_degree"] == 1:
        raise _conflict(
            "The ranks that share a sequence (ulysses_degree x ring_degree) share the weights too; here that is one.",
            field="shard_weights",
            value=True,
            remedy=f"Leave --shard-weights out, or use more ranks: --nproc-per-node {2 * ranks}.",
        )
    return ParallelOptions(
        ulysses_degree=ulysses,
        ring_degree=values["ring_degree"],
        tp_degree=values["tp_degree"],
        text_encoder_tp_degree=values["text_encoder_tp_degree"],
        rank_weights=values["rank_weights"],
        shard_weights=values["shard_weights"],
        compile=values["compile"],
    )


def check_layout(layout: ParallelOptions, facts: ModelFacts) -> None:
    """Check ``layout`` against the checkpoint's heads and channels.

    Raises:
        ConfigError: ``config_conflict``.
    """
    ranks, degrees = layout.world_size, (layout.ulysses_degree, layout.ring_degree, layout.tp_degree)
    problem = layout_problem(ranks, degrees, shared=_shared(facts))
    if problem is not None:
        remedy = layouts_remedy(ranks, shared=_shared(facts))
        raise _conflict(problem, field="tp_degree", value=layout.tp_degree, remedy=remedy)
    degree = layout.text_encoder_tp_degree
    undivided = [f"{size} {name}" for name, size in _text_shared(facts).items() if size % degree]
    if undivided:
        raise _conflict(
            f"{' and '.join(undivided)} of the text encoder cannot be divided among {degree} ranks.",
            field="text_encoder_tp_degree",
            value=degree,
            remedy=f"Use {_either(_text_encoder_degrees(ranks, facts))}.",
        )


def _shared(facts: ModelFacts) -> dict[str, int]:
    """Return what the tp axis must divide, by name."""
    return {"attention heads": facts.heads, "feed-forward channels": facts.ffn_dim}


def _text_shared(facts: ModelFacts) -> dict[str, int]:
    """The same for the text encoder's ranks."""
    return {"key and value heads": facts.text_kv_heads, "feed-forward channels": facts.text_ffn_dim}


def _text_encoder_degrees(ranks: int, facts: ModelFacts) -> list[int]:
    """Return among how many of ``ranks`` ranks the text encoder can be divided."""
    sizes = _text_shared(facts).values()
    return [n for n in TEXT_ENCODER_DEGREES if n <= ranks and all(size % n == 0 for size in sizes)]


def _default_ranks(devices: Devices, others: int) -> int:
    """Return one rank for each accelerator; on CPUs as many as the given degrees need."""
    return others if devices.kind == "cpu" else max(1, devices.count)


def _does_not_fit(values: Mapping[str, Any], ranks: int, devices: Devices, facts: ModelFacts) -> ConfigError:
    ring, tp = values["ring_degree"], values["tp_degree"]
    degrees = (values["ulysses_degree"] or max(1, ranks // (ring * tp)), ring, tp)
    field = "ulysses_degree" if values["ulysses_degree"] else "ring_degree" if ring > 1 else "tp_degree"
    product = degrees[0] * ring * tp
    there = devices.kind == "cpu" or product <= devices.count
    works = there and layout_problem(product, degrees, shared=_shared(facts)) is None
    return _conflict(
        str(layout_problem(ranks, degrees)),
        field=field,
        value=values[field],
        remedy=(f"Use --nproc-per-node {product}. " if works else "") + layouts_remedy(ranks, shared=_shared(facts)),
    )


def _check_served(values: Mapping[str, Any]) -> None:
    for name, stage in _STAGE_OF.items():
        if values[name] != getattr(ParallelOptions, name) and stage not in values["stages"]:
            raise _conflict(
                f"{name} is about {stage}, which is not among the stages served.",
                field=name,
                value=values[name],
                remedy=f"Leave --{name.replace('_', '-')} out, or add {stage} to --stages.",
            )


def _check_text_encoder_degree(degree: int, ranks: int, facts: ModelFacts) -> None:
    fitting = _text_encoder_degrees(ranks, facts)
    if degree not in TEXT_ENCODER_DEGREES:
        raise ConfigError(
            "config_bad_value",
            f"The text encoder is divided among {_either(list(TEXT_ENCODER_DEGREES))} ranks.",
            field="text_encoder_tp_degree",
            value=degree,
            remedy=f"Use {_either(fitting)}.",
        )
    if degree > ranks:
        raise _conflict(
            f"The text encoder cannot be divided among {degree} ranks: there {'are' if ranks > 1 else 'is'} {ranks}.",
            field="text_encoder_tp_degree",
            value=degree,
            remedy=f"Use {_either(fitting)}, or more ranks.",
        )


def _check_weights(weights: tuple[float, ...] | None, ranks: int) -> None:
    if weights is not None and len(weights) != ranks:
        raise _conflict(
            f"{len(weights)} weights for {ranks} ranks of the sequence (ulysses_degree x ring_degree).",
            field="rank_weights",
            value=",".join(f"{weight:g}" for weight in weights),
            remedy=f"Give {ranks} positive {'numbers' if ranks > 1 else 'number'} separated by commas, "
            f"for example {','.join(['1'] * ranks)}.",
        )


def _either(numbers: list[int]) -> str:
    *head, last = [str(number) for number in numbers]
    return f"{', '.join(head)} or {last}" if head else last


def _conflict(message: str, *, field: str, value: object, remedy: str) -> ConfigError:
    return ConfigError("config_conflict", message, field=field, value=value, remedy=remedy)
