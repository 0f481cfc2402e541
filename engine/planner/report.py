"""A plan as text for a terminal: memory by stage, host memory, seconds, and what to do when it does not fit.

GB are 1e9 bytes, MB 1e6. Raises nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..contract import geometry
from ..contract.words import bytes_in_words
from ..placement import ComponentPlacement
from .plan import Plan, StageMemory
from .search import Choice, options_of

_GIGA, _MEGA = ("GB", 1e9), ("MB", 1e6)
"""Units of the table, by name and bytes; megabytes for models that are tiny."""
_MOST = 8
"""Configurations that a comparison lists."""


def report(plan: Plan, *, nearest: Choice | None = None, longest: int | None = None) -> str:
    """Return the whole report of one configuration.

    Args:
        nearest: what fits where this one does not (`way_out`). longest: frames that fit with this one.
    """
    lines = [f"Configuration: {options_of(plan)}", _request_line(plan), ""]
    lines += _memory_table(plan)
    lines += ["", *_placement_lines(plan), _host_line(plan), _seconds_line(plan), ""]
    lines += ["It fits."] if plan.fits else [f"It does not fit. {' '.join(plan.problems)}"]
    if not plan.fits:
        lines += _remedies(plan, nearest, longest)
    return "\n".join(lines)


def _request_line(plan: Plan) -> str:
    request = plan.request
    rows = sum(count for _, count in request.runs(plan.model.facts))
    return (
        f"Request: {request.width}x{request.height}, {request.frames} frames ({request.frames / geometry.FPS:.1f} s), "
        f"{request.steps} steps, {request.text_rows} rows of text, {rows:,} rows in all"
    )


def _memory_table(plan: Plan) -> list[str]:
    rank = plan.tightest
    alike = len({tuple(stage.total for stage in other.stages) for other in plan.ranks}) == 1
    whose = "each rank" if alike else f"rank {rank.rank}, the fullest of {len(plan.ranks)}"
    unit = _MEGA if rank.tightest.total < _GIGA[1] else _GIGA
    head = ["stage", "weights", "activations", "K/V", "tables", "VAE", "workspace", "always", "in all"]
    rows = [
        head,
        *([stage.stage, *(_count(part, unit) for part in [*_parts(stage), stage.total])] for stage in rank.stages),
    ]
    budget = plan.hardware.device_bytes
    name, size = unit
    title = f"{name} ({size:.0e} bytes) on the device of {whose}".replace("e+0", "e")
    return [title + (":" if budget is None else f", of {_count(budget, unit)}:"), *_aligned(rows)]


def _parts(stage: StageMemory) -> list[int]:
    beside = stage.beside
    weights = sum(stage.weights.values()) + beside.gathered
    return [weights, beside.activations, beside.remote, beside.tables, beside.vae, beside.workspace, stage.always]


def _placement_lines(plan: Plan) -> list[str]:
    """Say where each component lies: on the fullest rank, what that one does not hold on the first that does."""
    lines = []
    found: dict[str, ComponentPlacement] = {}
    for rank in (plan.tightest, *plan.ranks):
        found = {**rank.placement.components, **found}
    for name, placed in found.items():
        if not placed.offloaded:
            lines.append(f"{name}: {bytes_in_words(placed.device_bytes)}, all on the device at all times")
            continue
        streamed = sum(len(stream.streamed) for stream in placed.streams)
        resident = sum(len(stream.resident) for stream in placed.streams)
        when = "at all times" if placed.stays else "while it runs"
        lines.append(
            f"{name}: {bytes_in_words(placed.device_bytes)} on the device {when}; {resident} blocks stay, {streamed} "
            f"stream from {bytes_in_words(placed.host_bytes)} in host memory"
        )
    return lines


def _host_line(plan: Plan) -> str:
    host = plan.hardware.host_bytes
    room = ", not checked without --host-memory" if host is None else f" of {bytes_in_words(host)}"
    shared = plan.setup.offload.host_copies == "shared"
    copies = ", ranks share their copies" if shared else ", each rank has copies of its own"
    return f"Host memory: {bytes_in_words(plan.host_total)}{room}{copies if len(plan.ranks) > 1 else ''}"


def _seconds_line(plan: Plan) -> str:
    step, speeds = plan.step, plan.hardware.speeds
    return (
        f"Predicted: {step.total:.2f} s a step (computing {step.compute:.2f}, streaming {step.stream:.2f} beside it, "
        f"between ranks {step.links:.2f}), {sum(plan.seconds.values()):.0f} s a run;\n"
        f"assumed: {speeds.tflops:g} TFLOPS, {speeds.host_gbs:g} GB/s from the host, "
        f"{speeds.link_gbs:g} GB/s between devices"
    )


def _remedies(plan: Plan, nearest: Choice | None, longest: int | None) -> list[str]:
    found = []
    if nearest is not None:
        found.append(fits_in_words(nearest, asked=plan.request.frames))
    if longest is not None:
        found.append(f"With this configuration {longest} frames ({longest / geometry.FPS:.1f} s) fit.")
    return found or ["Nothing that was looked for fits: a smaller canvas, more ranks or larger devices are needed."]


def fits_in_words(choice: Choice, *, asked: int) -> str:
    """Say that a configuration fits, and what is lost with it; its options stand at the end.

    Args:
        asked: frames that were asked for.
    """
    frames = choice.plan.request.frames
    shorter = f" up to {frames} frames ({frames / geometry.FPS:.1f} s)" if frames < asked else ""
    but = f", but {' and '.join(choice.losses)}" if choice.losses else ""
    return f"This fits{shorter}{but}, in place of all options about ranks and memory: {choice.options}"


def compare(choices: Sequence[Choice]) -> str:
    """Return the configurations that were looked at, the best first; a line has at most 100 characters."""
    shown = choices[:_MOST]
    settings = [_settings(choice.plan) for choice in shown]
    differing = [name for name in settings[0] if len({each[name] for each in settings}) > 1]
    rows = [[*differing, "a rank", "host", "s a step", "s a run", ""]]
    for choice, values in zip(shown, settings, strict=True):
        plan = choice.plan
        sizes = bytes_in_words(plan.tightest.tightest.total), bytes_in_words(plan.host_total)
        numbers = f"{plan.step.total:.2f}", f"{choice.seconds:.0f}", _lack(plan)
        rows.append([*(values[name] for name in differing), *sizes, *numbers])
    rest = len(choices) - _MOST
    return "\n".join(
        [
            "Configurations, those that fit first, the fastest foremost (within 5% Ulysses alone before others),",
            "then those that lack least. They differ in --offload (with --resident-blocks auto) and the degrees of",
            "ulysses, ring, tp and the text encoder; what has no column is as above.",
            *_aligned(rows),
            *([f"and {rest} more"] if rest > 0 else []),
        ]
    )


def _settings(plan: Plan) -> dict[str, str]:
    """Return what a search tries, in a word each."""
    parallel = plan.setup.parallel
    return {
        "offload": ",".join(plan.setup.offload.offload) or "nothing",
        "ulysses": str(parallel.ulysses_degree),
        "ring": str(parallel.ring_degree),
        "tp": str(parallel.tp_degree),
        "text": str(parallel.text_encoder_tp_degree),
    }


def _lack(plan: Plan) -> str:
    found = {"": plan.device_lack, " of host memory": plan.host_lack}
    lacks = [f"{bytes_in_words(size)}{where}" for where, size in found.items() if size]
    return f"lacks {' and '.join(lacks)}" if lacks else "fits"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return ``rows`` in columns, numbers and what is between the first and the last column to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        last = len(row) - 1
        cells = [
            text.ljust(width) if i in (0, last) and not text[:1].isdigit() else text.rjust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def _count(count: int, unit: tuple[str, float]) -> str:
    return f"{count / unit[1]:.2f}"
