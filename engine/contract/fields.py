"""Strict reading of JSON objects into frozen dataclasses: no missing, unknown or mistyped field passes.

`parse_object` reads the fields of a dataclass from its annotations (bool, int, float, str, dict, lists and tuples of
dataclasses, and ``| None``). An int is accepted where a float is wanted; a bool is never a number; NaN, integers of
more than 64 bits and text that has no UTF-8 form (lone surrogates) are refused.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from .errors import RequestError

T = TypeVar("T")
_INT_LIMIT = 2**64
MAX_DEPTH = 64
"""Lists and objects within each other in a field that nobody knows: what follows walks through them recursively."""
_NAMES: dict[Any, str] = {bool: "true or false", str: "a string", int: "a whole number", float: "a number"}


def parse_json(text: str | bytes, *, field: str = "body") -> dict[str, Any]:
    """Return the JSON object in ``text``.

    Raises:
        RequestError: ``invalid_json`` when it is not JSON or not an object.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(
            "invalid_json", f"Not JSON: {error}.", field=field, remedy="Send one JSON object in UTF-8."
        ) from error
    if not isinstance(data, dict):
        raise RequestError(
            "invalid_json", "The JSON is not an object.", field=field, value=data, remedy="Send one JSON object."
        )
    return data


def parse_object(cls: type[T], data: Mapping[str, Any], *, path: str, skip: tuple[str, ...] = ()) -> T:
    """Build the dataclass ``cls`` from ``data``; ``path`` prefixes field names in errors.

    Args:
        skip: keys of ``data`` that another reader owns (``type``).

    Raises:
        RequestError: ``missing_field``, ``unknown_field``, ``wrong_type`` or ``out_of_range`` (NaN).
    """
    hints = typing.get_type_hints(cls)
    names = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for key in data:
        if key not in names and key not in skip:
            raise RequestError(
                "unknown_field",
                f"There is no field {key!r}.",
                field=_join(path, key),
                value=data[key],
                remedy=f"Known fields: {', '.join(names)}.",
            )
    values: dict[str, Any] = {}
    for name, spec in names.items():
        if name in data:
            values[name] = _convert(hints[name], data[name], _join(path, name))
        elif spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING:
            raise RequestError(
                "missing_field",
                f"The field {name!r} is required.",
                field=_join(path, name),
                remedy=f"Send {name!r}.",
            )
    return cls(**values)


def read_value(hint: Any, value: Any, *, path: str) -> Any:
    """Return ``value`` as the type ``hint``, one of those that `parse_object` reads.

    Raises:
        RequestError: ``wrong_type`` or ``out_of_range`` naming ``path``.
    """
    return _convert(hint, value, path)


class Fields:
    """The fields of one JSON object, taken by name; what nobody took is `rest`.

    For documents that keep what they do not know; `parse_object` refuses it. ``path`` goes before the names in errors.
    All methods raise `RequestError`: ``missing_field``, ``wrong_type`` or ``out_of_range``.
    """

    def __init__(self, data: Any, path: str) -> None:
        self.data: dict[str, Any] = dict(_convert(dict, dict(data) if isinstance(data, Mapping) else data, path))
        self.path = path
        self._taken: set[str] = set()

    def get(self, name: str) -> Any:
        """Return a field as it came, None when it is absent; it is not taken."""
        return self.data.get(name)

    def take(self, name: str, hint: Any, default: Any = None) -> Any:
        """Return a field's value; without a default it is required."""
        self._taken.add(name)
        if name in self.data:
            return _convert(hint, self.data[name], self.at(name))
        if default is None:
            raise RequestError(
                "missing_field", f"The field {name!r} is required.", field=self.at(name), remedy=f"Send {name!r}."
            )
        return default

    def number(
        self, name: str, default: float | None = None, *, low: float = 0.0, high: float = 1.0, above: bool = False
    ) -> float:
        """Return a number in [low, high], in (low, high] with ``above``."""
        return bounded(self.take(name, float, default), self.at(name), low=low, high=high, above=above)

    def whole(self, name: str, default: int | None = None, *, low: int = 0, high: int = 2**31) -> int:
        """Return a whole number in [low, high]."""
        return int(bounded(self.take(name, int, default), self.at(name), low=low, high=high))

    def object(self, name: str) -> Fields:
        """Return an object's fields; an absent one is empty."""
        return Fields(self.take(name, dict, {}), self.at(name))

    def objects(self, name: str, most: int) -> list[Fields]:
        """Return a list's objects, of at most ``most``; an absent one is empty."""
        items = self.take(name, list[dict], [])  # type: ignore[type-arg]
        if len(items) > most:
            raise out_of_range(self.at(name), len(items), f"has at most {most} entries", "Leave some out.")
        return [Fields(item, f"{self.at(name)}[{i}]") for i, item in enumerate(items)]

    def rest(self, *known: str) -> dict[str, Any]:
        """Return the fields that were not taken, nested at most `MAX_DEPTH` deep."""
        left = {name: value for name, value in self.data.items() if name not in self._taken and name not in known}
        for name, value in left.items():
            _check_depth(value, self.at(name))
        return left

    def at(self, name: str) -> str:
        """Return a field's path."""
        return f"{self.path}.{name}"


def bounded(value: float, path: str, *, low: float, high: float, above: bool = False) -> float:
    """Return ``value`` when it is in [low, high], in (low, high] with ``above``.

    Raises:
        RequestError: ``out_of_range`` naming ``path``.
    """
    if low <= value <= high and not (above and value == low):
        return value
    bounds = f"above {low:g}, at most {high:g}" if above else f"{low:g} to {high:g}"
    raise out_of_range(path, value, f"is {bounds}", f"Use a number {bounds}.")


def out_of_range(path: str, value: object, rule: str, remedy: str) -> RequestError:
    """Return the error of a value that breaks a rule; the message is the path and the rule."""
    return RequestError("out_of_range", f"{path} {rule}.", field=path, value=value, remedy=remedy)


def _check_depth(value: Any, path: str) -> None:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        nested = [item for item in level if isinstance(item, (dict, list))]
        if not nested:
            return
        level = [inner for item in nested for inner in (item.values() if isinstance(item, dict) else item)]
    raise RequestError(
        "out_of_range",
        f"{path} is nested more than {MAX_DEPTH} deep.",
        field=path,
        remedy="Leave it out.",
    )


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _convert(hint: Any, value: Any, path: str) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        return _convert(next(arg for arg in args if arg is not type(None)), value, path)
    if origin in (tuple, list) or hint is list:
        if not isinstance(value, list):
            raise _wrong(path, value, "a list")
        if hint is list:
            return value
        return origin(_convert(args[0], item, f"{path}[{i}]") for i, item in enumerate(value))
    if origin is dict or hint is dict:
        if not isinstance(value, dict):
            raise _wrong(path, value, "an object")
        return value
    if origin is typing.Literal:
        if value not in args:
            raise RequestError(
                "out_of_range",
                f"{path} is one of {', '.join(map(repr, args))}.",
                field=path,
                value=value,
                remedy=f"Use {args[0]!r}.",
            )
        return value
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, dict):
            raise _wrong(path, value, "an object")
        return parse_object(typing.cast("type[Any]", hint), value, path=path)
    return _scalar(hint, value, path)


def _scalar(hint: Any, value: Any, path: str) -> Any:
    if hint is bool and isinstance(value, bool):
        return value
    if hint is str and isinstance(value, str):
        return _text(value, path)
    if hint in (int, float) and isinstance(value, (int, float)) and not isinstance(value, bool):
        return _number(hint, value, path)
    raise _wrong(path, value, _NAMES.get(hint, str(hint)))


def _text(value: str, path: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            "out_of_range",
            f"{path} holds half of a character (a lone surrogate at {error.start}).",
            field=path,
            value=ascii(value),
            remedy="Send whole Unicode characters.",
        ) from error
    return value


def _number(hint: Any, value: int | float, path: str) -> int | float:
    if isinstance(value, float):
        if hint is int:
            raise _wrong(path, value, _NAMES[int])
        if math.isfinite(value):
            return value
    elif abs(value) <= _INT_LIMIT:
        return float(value) if hint is float else value
    raise RequestError(
        "out_of_range",
        f"{path} must be a finite number of at most 64 bits.",
        field=path,
        value=value,
        remedy="Send an ordinary number.",
    )


def _wrong(path: str, value: Any, wanted: str) -> RequestError:
    return RequestError("wrong_type", f"{path} must be {wanted}.", field=path, value=value, remedy=f"Send {wanted}.")
