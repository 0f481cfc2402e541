"""Files and values of the command line's options: there, or an error that names the option. Raises `ConfigError`.

The engine names a file by its place in the request; `in_options` names it as it was given.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..config import absolute_path
from ..contract.errors import ConfigError

_PLACE = re.compile(r"(?:request\.)?((?:keyframes|references|guides)\[\d+\]|edit\.)((?:\.?\w+|\[\d+\])*)")
_PART = re.compile(r"parts\.([\w-]+)(?:\.\w+)*")
_NUMBER = re.compile(r"-\d+$")
_STEP = re.compile(r"(\w+)")


def existing_file(file: str, flag: str) -> Path:
    """Return the absolute path of a file that can be read.

    Args:
        flag: the option that names it.

    Raises:
        ConfigError: it is a folder, a pipe or device, or not there.
    """
    path = absolute_path(file, field=flag)
    if path.is_dir():
        raise bad_option(flag, file, "This is a folder, not a file.", "Give a picture, clip or sound.")
    check_regular(path, flag, file)
    try:
        with path.open("rb"):
            return path
    except OSError as error:
        problem = error.strerror or str(error)
        raise bad_option(
            flag, file, f"The file cannot be read: {problem}.", "Give the path of a file that exists."
        ) from error


def check_regular(path: Path, flag: str, value: str) -> None:
    """Refuse a pipe or device: it has no length to announce, and may never end.

    Raises:
        ConfigError: there is something at ``path`` that is neither a file nor a folder.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise bad_option(flag, value, "This is not a regular file.", "Write what it gives to a file first.")


def bad_option(flag: str, value: str, message: str, remedy: str) -> ConfigError:
    """Return the error for an option's value."""
    return ConfigError("config_bad_value", message, field=flag, value=value, remedy=remedy)


def part_name(flag: str, number: int) -> str:
    """Return the name of the ``number``-th part, which an option's file is sent as."""
    return f"{flag.strip('-')}-{number}"


def in_options(text: str, request: Mapping[str, Any], parts: Mapping[str, Path]) -> str:
    """Return the engine's words with media and parts named by option and file, not by their place in ``request``.

    Args:
        parts: part name (`part_name`) → file.
    """

    def named(place: re.Match[str]) -> str:
        return given(_part_at(request, _STEP.findall(place[1] + place[2]))) or place[0]

    def given(part: str | None) -> str | None:
        if part is None or part not in parts:
            return None
        return f"--{_NUMBER.sub('', part)} {parts[part]}"

    return _PART.sub(lambda part: given(part[1]) or part[0], _PLACE.sub(named, text))


def _part_at(request: Mapping[str, Any], steps: list[str]) -> str | None:
    """Return the part of the medium that the path of ``steps`` leads to or through, the last one."""
    node: Any = request
    found: str | None = None
    for step in steps:
        try:
            node = node[int(step) if isinstance(node, list) else step]
        except (KeyError, IndexError, TypeError, ValueError):
            break
        if isinstance(node, dict):
            medium = next((node[name] for name in ("media", "audio") if isinstance(node.get(name), dict)), node)
            found = medium.get("part", found)
    return found
