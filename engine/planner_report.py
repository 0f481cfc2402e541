"""A plan as text for a terminal: memory by stage, host memory, seconds, and what to do when it does not fit.

GB are 1e9 bytes. Raises nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from .contract import geometry
from .planner import Plan, RankPlan, StageMemory
from .planner_search import Choice, options_of

_MOST = 8
"""Configurations that a comparison lists."""


def report(plan: Plan, *, nearest: Choice | None = None, longest: int | None = None) -> str:
    """Return the whole report of one configuration.

    Args:
        nearest: a configuration that fits where this one does not. longest: frames that fit with this one.
    """
    lines = [f"Configuration: {options_of(plan.setup)}", _request_line(plan), ""]
    lines += _memory_table(plan)
    lines += ["", *_placement_lines(plan.tightest), _host_line(plan), _seconds_line(plan), ""]
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
    head = ["stage", "weights", "activations", "K/V", "tables", "VAE", "workspace", "always", "in all"]
    rows = [head, *([stage.stage, *map(_gb, _parts(stage)), _gb(stage.total)] for stage in rank.stages)]
    budget = plan.hardware.device_bytes
    title = f"GB (1e9 bytes) on the device of {whose}" + ("" if budget is None else f", of {_gb(budget)}:")
    return [title, *_aligned(rows)]


def _parts(stage: StageMemory) -> list[int]:
    beside = stage.beside
    weights = sum(stage.weights.values()) + beside.gathered
    return [weights, beside.activations, beside.remote, beside.tables, beside.vae, beside.workspace, stage.always]


def _placement_lines(rank: RankPlan) -> list[str]:
    lines = []
    for name, placed in rank.placement.components.items():
        if not placed.offloaded:
            lines.append(f"{name}: {_gb(placed.device_bytes)} GB, all on the device at all times")
            continue
        streamed = sum(len(stream.streamed) for stream in placed.streams)
        resident = sum(len(stream.resident) for stream in placed.streams)
        when = "at all times" if placed.stays else "while it runs"
        lines.append(
            f"{name}: {_gb(placed.device_bytes)} GB on the device {when}; {resident} blocks stay, {streamed} stream "
            f"from {_gb(placed.host_bytes)} GB in host memory"
        )
    return lines


def _host_line(plan: Plan) -> str:
    room = "" if plan.hardware.host_bytes is None else f" of {_gb(plan.hardware.host_bytes)} GB"
    shared = plan.setup.offload.host_copies == "shared"
    copies = ", ranks share their copies" if shared else ", each rank has copies of its own"
    return f"Host memory: {_gb(plan.host_total)} GB{room}{copies if len(plan.ranks) > 1 else ''}"


def _seconds_line(plan: Plan) -> str:
    step, speeds = plan.step, plan.hardware.speeds
    return (
        f"Predicted: {step.total:.2f} s a step (computing {step.compute:.2f}, streaming {step.stream:.2f} beside it, "
        f"between ranks {step.links:.2f}), {sum(plan.seconds.values()):.0f} s a run; assumed {speeds.tflops:g} TFLOPS, "
        f"{speeds.host_gbs:g} GB/s from the host, {speeds.link_gbs:g} GB/s between devices"
    )


def _remedies(plan: Plan, nearest: Choice | None, longest: int | None) -> list[str]:
    found = []
    if nearest is not None:
        found.append(f"This fits: {nearest.options}")
    if longest is not None:
        found.append(f"With this configuration {longest} frames ({longest / geometry.FPS:.1f} s) fit.")
    return found or ["Nothing that was looked for fits: a smaller canvas, more ranks or larger devices are needed."]


def compare(choices: Sequence[Choice]) -> str:
    """Return the configurations that were looked at, the best first."""
    rows = [["configuration", "GB a rank", "GB host", "s a step", "s a run", ""]]
    for choice in choices[:_MOST]:
        plan = choice.plan
        peak = _gb(plan.tightest.tightest.total)
        why = "fits" if plan.fits else plan.problems[0]
        rows.append(
            [choice.options, peak, _gb(plan.host_total), f"{plan.step.total:.2f}", f"{choice.seconds:.0f}", why]
        )
    rest = len(choices) - _MOST
    more = [f"and {rest} more"] if rest > 0 else []
    return "\n".join(["Configurations, those that fit first, the fastest foremost:", *_aligned(rows), *more])


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return ``rows`` in columns, the first and the last to the left, numbers to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        last = len(row) - 1
        cells = [
            text.ljust(width) if i == 0 or (i == last and not text[:1].isdigit()) else text.rjust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def _gb(count: int) -> str:
    return f"{count / 1e9:.2f}"
