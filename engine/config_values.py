"""One option of ``serve`` and the values that it takes, from the command line or from YAML.

Raises `ConfigError` ``config_bad_value`` naming the option, the value and the remedy.
"""

from __future__ import annotations

import contextlib
import difflib
import math
from dataclasses import dataclass
from typing import Any

from .contract.errors import ConfigError


@dataclass(frozen=True)
class Option:
    """An option of ``serve``.

    Attributes:
        name: the key in YAML; ``--name`` with dashes on the command line.
        kind: str, int, float, bool, list (of names), tuple (of numbers, ``low`` to ``high``) or dict (paths by name).
        default: its value when it is given nowhere.
        help: one line for ``--help``.
        choices: the allowed values, of a dict the allowed names; empty: any.
        low: the smallest allowed number.
        high: the largest allowed number; finite for every option that is one.
        word: a text that is taken in place of a number.
        bare: the value of the option written without one, on the command line; None: it needs one.
    """

    name: str
    kind: type
    default: Any
    help: str
    choices: tuple[str, ...] = ()
    low: float = 0.0
    high: float = math.inf
    word: str | None = None
    bare: str | None = None

    @property
    def flag(self) -> str:
        """The option as it is written on the command line."""
        return "--" + self.name.replace("_", "-")


def check_value(option: Option, value: Any) -> Any:
    """Return ``value`` as ``option`` takes it.

    Raises:
        ConfigError: ``config_bad_value``.
    """
    if option.kind is list:
        return _check_list(option, value)
    if option.kind is tuple:
        return _check_numbers(option, value)
    if option.kind is dict:
        return _check_paths(option, value)
    if option.word is not None and isinstance(value, str):
        return _check_word(option, value)
    kind = (int, float) if option.kind is float else option.kind
    if not isinstance(value, kind) or (isinstance(value, bool) and option.kind is not bool):
        words = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}
        raise _bad(option, value, f"{option.name} must be {words[option.kind]}.", f"Give {words[option.kind]}.")
    if option.choices and value not in option.choices:
        close = difflib.get_close_matches(str(value), option.choices, n=1)
        hint = f"Did you mean {close[0]}? " if close else ""
        raise _bad(
            option, value, f"{option.name} cannot be {value!r}.", f"{hint}Use one of {', '.join(option.choices)}."
        )
    if isinstance(value, (int, float)) and not isinstance(value, bool) and not option.low <= value <= option.high:
        span = f"{option.low:.15g} to {option.high:.15g}"
        raise _bad(option, value, f"{option.name} is out of its range.", f"Use {span}.")
    return float(value) if isinstance(value, int) and option.kind is float else value


def _check_word(option: Option, text: str) -> Any:
    """Read the word, or a whole number written as text."""
    if text == option.word:
        return text
    try:
        return check_value(option, int(text))
    except ValueError:
        message = f"{option.name} must be a whole number or {option.word}."
        raise _bad(option, text, message, f"Use {option.low:g} to {option.high:g}, or {option.word}.") from None


def _check_list(option: Option, value: Any) -> list[str]:
    names = [name.strip() for name in value.split(",")] if isinstance(value, str) else value
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise _bad(option, value, f"{option.name} must be a list of names.", f"Use {', '.join(option.choices)}.")
    for name in names:
        _check_name(option, name)
    return [name for name in option.choices if name in names]


def _check_name(option: Option, name: str) -> None:
    if name not in option.choices:
        close = difflib.get_close_matches(name, option.choices, n=1)
        hint = f"Did you mean {close[0]}? " if close else ""
        message = f"{option.name} knows no {name!r}."
        raise _bad(option, name, message, f"{hint}Use some of {', '.join(option.choices)}.")


def _check_paths(option: Option, value: Any) -> dict[str, str]:
    """Read a mapping, or texts NAME=DIR."""
    items = [value] if isinstance(value, str) else value
    if isinstance(items, dict):
        pairs = list(items.items())
    elif isinstance(items, list) and all(isinstance(item, str) for item in items):
        pairs = [tuple(item.split("=", 1)) for item in items]
    else:
        pairs = []
    paths: dict[str, str] = {}
    for pair in pairs:
        if len(pair) != 2 or not all(isinstance(word, str) and word for word in pair):
            raise _bad(option, value, f"{option.name} gives components their folders.", "Write NAME=DIR.")
        name, path = pair
        _check_name(option, name)
        if name in paths:
            raise _bad(option, name, f"{option.name} gives {name} two folders.", "Leave one of them out.")
        paths[name] = path
    if not paths:
        raise _bad(option, value, f"{option.name} gives components their folders.", "Write NAME=DIR.")
    return paths


def _check_numbers(option: Option, value: Any) -> tuple[float, ...]:
    items = value.split(",") if isinstance(value, str) else value
    numbers: tuple[float, ...] = ()
    if isinstance(items, list) and not any(isinstance(item, bool) for item in items):
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            numbers = tuple(float(item) for item in items)
    if not numbers or not all(option.low <= number <= option.high for number in numbers):
        message = f"{option.name} must be positive numbers, {option.low:g} to {option.high:g}."
        raise _bad(option, value, message, "Give them separated by commas, for example 2,1,1.")
    return numbers


def _bad(option: Option, value: Any, message: str, remedy: str) -> ConfigError:
    return ConfigError("config_bad_value", message, field=option.name, value=value, remedy=remedy)
