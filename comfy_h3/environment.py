"""Which Python runs the local engine: ``H3_ENGINE_PYTHON``, the pack's own ``.venv``, or ComfyUI's if it can.

Raises `ConfigError` that says which were tried and how to make one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ..engine.contract.errors import ConfigError

_NEEDED = "import aiohttp, av, yaml, diffusers.modular_pipelines.minimax_h3, transformers, torch"
_CHECK_SECONDS = 120


def inherited_token() -> str | None:
    """Return the token that a local engine finds in its environment, and asks for."""
    return os.environ.get("H3_ENGINE_TOKEN") or None


def find_python(pack: Path) -> str:
    """Return the path of a Python that can run ``python -m engine``. May take seconds: it tries the imports.

    Args:
        pack: the node pack's folder.

    Raises:
        ConfigError: ``config_bad_value`` for a wrong ``H3_ENGINE_PYTHON``, ``start_failed`` when there is none.
    """
    chosen = os.environ.get("H3_ENGINE_PYTHON")
    if chosen:
        if not os.access(chosen, os.X_OK):
            raise ConfigError(
                "config_bad_value",
                "H3_ENGINE_PYTHON is not a Python.",
                field="H3_ENGINE_PYTHON",
                value=chosen,
                remedy="Set it to the path of the engine's Python, or unset it.",
            )
        return chosen
    own = pack / ".venv" / "bin" / "python"
    if own.exists():
        return str(own)
    problem = _why_not(sys.executable, pack)
    if problem is None:
        return sys.executable
    raise ConfigError(
        "start_failed",
        f"The engine has no Python environment, and ComfyUI's own cannot run it: {problem}.",
        remedy=f"Make one: python3 {pack / 'install.py'}",
    )


def _why_not(python: str, pack: Path) -> str | None:
    try:
        answer = subprocess.run(
            [python, "-c", _NEEDED], cwd=pack, capture_output=True, text=True, timeout=_CHECK_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if answer.returncode == 0:
        return None
    lines = answer.stderr.strip().splitlines()
    return lines[-1] if lines else f"exit status {answer.returncode}"
