"""Memory of a rank over the stages of a run against its device's memory, as a picture; predicted and measured.

Drawn from a plan's JSON (`plan.describe`), so that a running engine's plan can be drawn too. Needs matplotlib.
Raises `ConfigError` ``missing_package`` without it, ``config_bad_value`` for a file that cannot be written.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..contract.errors import ConfigError
from ..contract.words import bytes_in_words

_PARTS = {
    "weights": ("weights", "gathered"),
    "activations": ("activations",),
    "keys and values of others": ("remote",),
    "modulation": ("tables",),
    "VAE": ("vae",),
    "gather buffers": ("workspace",),
    "at all times": ("always",),
}
"""Parts of a bar, and what of a stage they are made of."""
_SIZE = (9.0, 5.0)


def draw_plan(described: Mapping[str, Any], file: Path, *, memory: Mapping[str, Any] | None = None) -> None:
    """Write the picture of the fullest rank to ``file`` (PNG, or what its suffix says).

    Args:
        described: see `plan.describe`. memory: of a job that ran on this engine, see `controller.jobs.Job`.

    Raises:
        ConfigError: see the module.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            "missing_package",
            f"A plot needs matplotlib, which this environment lacks: {error}",
            field="plot",
            value=str(file),
            remedy="Install it beside the engine: pip install matplotlib; or leave --plot out.",
        ) from error
    if file.is_dir() or not file.suffix:
        raise ConfigError(
            "config_bad_value",
            "The plot needs the name of a file.",
            field="plot",
            value=str(file),
            remedy="Give a file that ends in .png, .svg or .pdf.",
        )
    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.add_subplot()
    rank = fullest(described)
    names = [stage["stage"] for stage in rank["stages"]]
    bottoms = [0.0] * len(names)
    for part, keys in _PARTS.items():
        heights = [sum(_bytes(stage, key) for key in keys) / 1e9 for stage in rank["stages"]]
        if any(heights):
            axes.bar(names, heights, bottom=bottoms, label=part, width=0.6)
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    budget = described["device_bytes"]
    if budget is not None:
        axes.axhline(budget / 1e9, color="black", linestyle="--", label=f"budget {bytes_in_words(budget)}")
    if memory:
        known = [(name, memory["stages"][name][rank["rank"]] / 1e9) for name in names if name in memory["stages"]]
        axes.plot(*zip(*known, strict=True), "kD", label=f"measured ({memory['kind']} memory)")
    axes.set_ylabel("GB (1e9 bytes)")
    axes.set_title(f"Memory of rank {rank['rank']} over a run")
    figure.legend(loc="outside right upper")
    try:
        figure.savefig(file)
    except (OSError, ValueError) as error:
        raise ConfigError(
            "config_bad_value",
            f"The plot cannot be written: {error}",
            field="plot",
            value=str(file),
            remedy="Give a file that ends in .png, in a folder that can be written.",
        ) from error


def fullest(described: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the rank of a plan that takes most at any stage."""
    found: Mapping[str, Any] = max(
        described["ranks"], key=lambda rank: max(stage["total_bytes"] for stage in rank["stages"])
    )
    return found


def _bytes(stage: Mapping[str, Any], key: str) -> int:
    value = stage[key]
    return sum(value.values()) if isinstance(value, Mapping) else int(value)
