"""What an engine would take, asked of its own command line before it starts: ``h3-engine plan --json``.

Raises nothing: what cannot be planned here is said by the engine when it starts.
"""

from __future__ import annotations

import json
import logging
import subprocess
from typing import Any

from ..engine.contract.errors import ConfigError
from .environment import find_python
from .launcher import DEMO, PACK, EngineSpec

log = logging.getLogger(__name__)

_SECONDS = 60.0


def plan_of(spec: EngineSpec) -> dict[str, Any] | None:
    """Return the plan of the engine that ``spec`` describes; None where there is none. Takes seconds."""
    if spec.model == DEMO:
        return None
    options = ["--model", spec.model, "--device", spec.device, "--dtype", spec.dtype]
    options += [*spec.parallel.flags(), *spec.memory.flags()]
    options += ["--gpus", str(spec.ranks)] if spec.ranks else []
    options += ["--stages", ",".join(spec.stages)] if spec.stages else []
    # Without an option that names a layout, the best one would be looked for instead of this one.
    options += [] if spec.parallel.ulysses_degree else ["--ring-degree", str(spec.parallel.ring_degree)]
    try:
        command = [find_python(PACK), "-m", "engine", "plan", "--json", *options]
        answer = subprocess.run(command, cwd=PACK, capture_output=True, text=True, timeout=_SECONDS, check=False)
        found: dict[str, Any] = json.loads(answer.stdout)
    except (ConfigError, OSError, ValueError, subprocess.TimeoutExpired) as error:
        log.info("no plan of this engine: %s", error)
        return None
    return found


def plan_text(plan: dict[str, Any]) -> str:
    """Return what a node shows of a plan."""
    if plan["fits"]:
        return f"Planned for 15 s: {plan['summary']}."
    frames, other = plan.get("longest_frames"), plan.get("nearest")
    lines = ["15 s would not fit: " + " ".join(plan["problems"])]
    if frames:
        lines.append(f"{frames / 24:.1f} s fit.")
    if other:
        lines.append(f"This fits: {other}")
    return "\n".join(lines)
