"""Sets of options for common machines, YAML files of the package: ``serve --preset NAME``, ``plan --preset NAME``.

A preset stands between the defaults and what the user gives. Raises `ConfigError` for a name that is none.
"""

from __future__ import annotations

import difflib
from pathlib import Path

from .contract.errors import ConfigError

_FOLDER = Path(__file__).parent / "presets"


def preset_names() -> list[str]:
    """Return the names of all presets, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


def preset_file(name: str) -> Path:
    """Return the file of options of the preset ``name``.

    Raises:
        ConfigError: ``config_bad_value``.
    """
    names = preset_names()
    if name not in names:
        close = difflib.get_close_matches(name, names, n=1)
        hint = f"Did you mean {close[0]}? " if close else ""
        raise ConfigError(
            "config_bad_value",
            f"There is no preset {name!r}.",
            field="preset",
            value=name,
            remedy=f"{hint}Use one of {', '.join(names)}.",
        )
    return _FOLDER / f"{name}.yaml"
