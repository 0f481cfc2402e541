"""What an engine would take, asked of its own command line before it starts: ``h3-engine plan --json``.

Raises nothing: what cannot be planned is a text that says why.
"""

from __future__ import annotations

import json
import subprocess
from typing import Any

from ..engine.contract.errors import ConfigError
from ..engine.contract.geometry import FPS
from .environment import find_python
from .launcher import DEMO, PACK, EngineSpec

OFFLOADS = {"all": "dit,text_encoder", "transformer": "dit", "text encoder": "text_encoder", "nothing": ""}
"""What a person chooses to stream, and the engine's families."""
_SECONDS = 60.0


def plan_of(spec: EngineSpec) -> dict[str, Any] | str:
    """Return the plan of the engine that ``spec`` describes, or why there is none. Takes seconds."""
    if spec.model == DEMO:
        return "the demo is tiny"
    options = ["--model", spec.model, "--device", spec.device, "--dtype", spec.dtype]
    options += [*spec.parallel.flags(), *spec.memory.flags()]
    options += ["--gpus", str(spec.ranks)] if spec.ranks else []
    options += ["--stages", ",".join(spec.stages)] if spec.stages else []
    # Without an option that names a layout, the best one would be looked for instead of this one.
    options += [] if spec.parallel.ulysses_degree else ["--ring-degree", str(spec.parallel.ring_degree)]
    try:
        command = [find_python(PACK), "-m", "engine", "plan", "--json", *options]
        answer = subprocess.run(command, cwd=PACK, capture_output=True, text=True, timeout=_SECONDS, check=False)
        if not answer.stdout:
            return answer.stderr.strip().rpartition("\n")[2].removeprefix("error: ")
        found: dict[str, Any] = json.loads(answer.stdout)
    except (ConfigError, OSError, ValueError, subprocess.TimeoutExpired) as error:
        return str(error)
    return found


def plan_text(plan: dict[str, Any] | str) -> str:
    """Return what a node shows of a plan, in the words of its inputs."""
    if isinstance(plan, str):
        return f"No plan: {plan}"
    if plan["fits"]:
        return f"Planned for 15 s: {plan['summary']}."
    lines = ["15 s would not fit: " + " ".join(plan["problems"])]
    if plan["longest_frames"]:
        lines.append(f"{plan['longest_frames'] / FPS:.1f} s fit as it is.")
    other = plan["nearest_settings"]
    if other:
        blocks = -1 if other["resident_blocks"] is None else other["resident_blocks"]
        values = f"ranks {other['ranks']}, offload {_offload_name(other['offload'])}, resident_blocks {blocks}"
        but = f", but {' and '.join(plan['losses'])}" if plan["losses"] else ""
        lines.append(f"{other['frames'] / FPS:.1f} s fit with {values}, block_storage {other['block_storage']}{but}.")
    return "\n".join(lines)


def _offload_name(families: list[str]) -> str:
    given = ",".join(family for family in families if family != "vae")
    return next(name for name, value in OFFLOADS.items() if value == given)
