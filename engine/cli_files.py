"""Files and values of the command line's options: there, or an error that names the option. Raises `ConfigError`."""

from __future__ import annotations

from pathlib import Path

from .config import absolute_path
from .contract.errors import ConfigError


def existing_file(file: str, flag: str) -> Path:
    """Return the absolute path of a file that can be read.

    Args:
        flag: the option that names it.

    Raises:
        ConfigError: it is a folder, or not there.
    """
    path = absolute_path(file, field=flag)
    if path.is_dir():
        raise bad_option(flag, file, "This is a folder, not a file.", "Give a picture, clip or sound.")
    try:
        with path.open("rb"):
            return path
    except OSError as error:
        problem = error.strerror or str(error)
        raise bad_option(
            flag, file, f"The file cannot be read: {problem}.", "Give the path of a file that exists."
        ) from error


def bad_option(flag: str, value: str, message: str, remedy: str) -> ConfigError:
    """Return the error for an option's value."""
    return ConfigError("config_bad_value", message, field=flag, value=value, remedy=remedy)
