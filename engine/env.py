"""The one reader of the process environment.

Every environment variable that the engine reads is named here, so that nothing else looks at ``os.environ`` for its
own sake. Raises nothing.
"""

from __future__ import annotations

import os
from pathlib import Path

TOKEN = "H3_ENGINE_TOKEN"
"""The bearer token that the server asks for and that the command line sends."""
URL = "H3_ENGINE_URL"
"""Where ``generate``, ``status`` and ``ping`` find the engine when ``--url`` is absent."""


def read_token() -> str | None:
    """Return the token of the environment, or None when it is unset or empty."""
    return os.environ.get(TOKEN, "").strip() or None


def read_url(default: str) -> str:
    """Return the engine's address of the environment, else ``default``."""
    return os.environ.get(URL, "").strip() or default


def child_environment(root: Path) -> dict[str, str]:
    """Return the environment of the fleet process.

    Args:
        root: the folder that holds the package, put first on ``PYTHONPATH``.

    The token is left out: the ranks have no use for it.
    """
    environment = {name: value for name, value in os.environ.items() if name != TOKEN}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))
    environment["PYTHONUNBUFFERED"] = "1"
    return environment
