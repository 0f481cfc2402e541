"""The options of ``serve`` on a command line: one table (`config.OPTIONS`) for each command that takes some."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from pathlib import Path
from typing import Any

from ..config import OPTIONS
from ..config_presets import preset_names
from ..config_values import Option


def add_options(parser: argparse.ArgumentParser, names: Collection[str] | None = None) -> None:
    """Add ``--config``, ``--preset`` and the options ``names``, all by default; absent unless they are given."""
    parser.add_argument("--config", metavar="FILE", help="YAML file of the same options; the command line wins")
    presets = ", ".join(preset_names())
    parser.add_argument("--preset", metavar="NAME", help=f"options for a common machine: {presets}; given ones win")
    for option in OPTIONS:
        if names is None or option.name in names:
            _add(parser, option)


def _add(parser: argparse.ArgumentParser, option: Option) -> None:
    default = "" if option.default in (None, False) or option.kind is list else f" (default: {option.default})"
    words = (option.help + default).replace("%", "%%")
    if option.kind is bool:
        parser.add_argument(option.flag, action="store_true", default=argparse.SUPPRESS, help=words)
    elif option.kind is dict:
        parser.add_argument(option.flag, action="append", default=argparse.SUPPRESS, metavar="NAME=DIR", help=words)
    else:
        kind = str if option.kind in (list, tuple) or option.word is not None else option.kind
        metavar = "|".join(option.choices) if option.choices and option.kind is str else None
        bare: dict[str, Any] = {} if option.bare is None else {"nargs": "?", "const": option.bare}
        parser.add_argument(option.flag, type=kind, default=argparse.SUPPRESS, metavar=metavar, help=words, **bare)


def given_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options that stand on the command line."""
    return {option.name: getattr(arguments, option.name) for option in OPTIONS if hasattr(arguments, option.name)}


def config_file(arguments: argparse.Namespace) -> Path | None:
    """Return what ``--config`` names."""
    return Path(arguments.config) if arguments.config else None
