"""The one reader of the process environment.

Every environment variable that the engine reads is named here, so that nothing else looks at ``os.environ`` for its
own sake. Raises `ConfigError` for a token that no header can carry.
"""

from __future__ import annotations

import os
from pathlib import Path

from .contract.errors import ConfigError

TOKEN = "H3_ENGINE_TOKEN"
"""The bearer token that the server asks for and that the command line sends."""
URL = "H3_ENGINE_URL"
"""Where ``generate``, ``status`` and ``ping`` find the engine when ``--url`` is absent."""


def read_token() -> str | None:
    """Return the token of the environment, or None when it is unset or empty.

    Raises:
        ConfigError: as `check_token`.
    """
    text = os.environ.get(TOKEN, "").strip()
    return check_token(text, field=TOKEN) if text else None


def check_token(text: str, *, field: str, value: str | None = None) -> str:
    """Return ``text`` when it can stand in a header.

    Args:
        field: where it comes from. value: what to show of it; never the token itself.

    Raises:
        ConfigError: ``config_bad_value``.
    """
    token = text.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            "config_bad_value",
            "A token is one word of ASCII characters.",
            field=field,
            value=value,
            remedy="For example: openssl rand -hex 32",
        )
    return token


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
