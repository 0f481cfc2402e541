"""Memory of a rank over the stages of a run against its device's memory, as a picture; predicted and measured.

Needs matplotlib. Raises `ConfigError` ``missing_package`` without it, ``config_bad_value`` for a file that cannot be
written.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .contract.errors import ConfigError
from .contract.words import bytes_in_words
from .planner import Plan, StageMemory

_PARTS = ("weights", "activations", "K/V", "tables", "VAE", "workspace", "always")
_SIZE = (9.0, 5.0)


def draw_plan(plan: Plan, file: Path, *, measured: Mapping[str, int] | None = None, kind: str = "") -> None:
    """Write the picture of the fullest rank to ``file`` (PNG, or what its suffix says).

    Args:
        measured: peak bytes of stages, by name, of a run. kind: what was measured, such as ``device memory``.

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
    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.add_subplot()
    rank = plan.tightest
    names = [stage.stage for stage in rank.stages]
    bottoms = [0.0] * len(names)
    for part, values in zip(_PARTS, zip(*map(_parts, rank.stages), strict=True), strict=True):
        heights = [value / 1e9 for value in values]
        if any(heights):
            axes.bar(names, heights, bottom=bottoms, label=part, width=0.6)
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    if plan.hardware.device_bytes is not None:
        budget = plan.hardware.device_bytes
        axes.axhline(budget / 1e9, color="black", linestyle="--", label=f"budget {bytes_in_words(budget)}")
    known = [(name, measured[name] / 1e9) for name in names if measured and name in measured]
    if known:
        axes.plot(*zip(*known, strict=True), "kD", label=f"measured ({kind})")
    axes.set_ylabel("GB (1e9 bytes)")
    axes.set_title(f"Memory of rank {rank.rank} over a run")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
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


def _parts(stage: StageMemory) -> tuple[int, ...]:
    beside = stage.beside
    weights = sum(stage.weights.values()) + beside.gathered
    return (weights, beside.activations, beside.remote, beside.tables, beside.vae, beside.workspace, stage.always)
