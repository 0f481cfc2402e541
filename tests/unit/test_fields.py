"""Strict reading of JSON: nothing missing, unknown or mistyped gets through."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from engine.contract.errors import RequestError
from engine.contract.fields import parse_json, parse_object


@dataclass(frozen=True)
class Inner:
    """A nested object."""

    count: int


@dataclass(frozen=True)
class Outer:
    """One field of each kind."""

    name: str
    flag: bool = False
    count: int = 0
    ratio: float = 0.0
    maybe: float | None = None
    kind: Literal["a", "b"] = "a"
    table: dict[str, Any] | None = None
    words: tuple[str, ...] = ()
    inners: tuple[Inner, ...] = ()


def refusal(data: dict[str, Any]) -> tuple[str, str | None]:
    """Return (code, field) of the error that ``data`` gets."""
    with pytest.raises(RequestError) as caught:
        parse_object(Outer, data, path="request")
    assert caught.value.remedy
    return caught.value.code, caught.value.field


def test_a_full_object_is_read_with_its_types() -> None:
    data = {
        "name": "x", "flag": True, "count": 3, "ratio": 2, "maybe": None, "kind": "b",
        "table": {"k": [1]}, "words": ["u", "v"], "inners": [{"count": 1}],
    }  # fmt: skip
    made = parse_object(Outer, data, path="")
    assert made == Outer("x", True, 3, 2.0, None, "b", {"k": [1]}, ("u", "v"), (Inner(1),))
    assert isinstance(made.ratio, float)


def test_defaults_fill_what_is_left_out() -> None:
    assert parse_object(Outer, {"name": "x"}, path="") == Outer("x")


def test_a_missing_field_is_named() -> None:
    assert refusal({}) == ("missing_field", "request.name")


def test_an_unknown_field_is_named_with_the_known_ones() -> None:
    with pytest.raises(RequestError) as caught:
        parse_object(Outer, {"name": "x", "nmae": 1}, path="request")
    assert (caught.value.code, caught.value.field) == ("unknown_field", "request.nmae")
    assert "name" in str(caught.value.remedy)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", 1),
        ("name", None),
        ("flag", 1),
        ("flag", "true"),
        ("count", True),
        ("count", 1.0),
        ("count", "1"),
        ("count", None),
        ("ratio", True),
        ("ratio", "1"),
        ("maybe", "1"),
        ("table", []),
        ("words", "uv"),
        ("words", {}),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(field: str, value: Any) -> None:
    assert refusal({"name": "x", field: value}) == ("wrong_type", f"request.{field}")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ratio", math.nan),
        ("ratio", math.inf),
        ("maybe", -math.inf),
        ("ratio", 10**400),
        ("count", 10**400),
        ("count", -(10**30)),
        ("kind", "c"),
        ("kind", 1),
        ("kind", ["a"]),
        ("name", "half of \ud83d"),
    ],
)
def test_a_value_outside_its_range_is_refused(field: str, value: Any) -> None:
    assert refusal({"name": "x", field: value}) == ("out_of_range", f"request.{field}")


def test_an_error_deep_inside_names_its_whole_path() -> None:
    assert refusal({"name": "x", "words": ["u", 2]}) == ("wrong_type", "request.words[1]")
    assert refusal({"name": "x", "inners": [{"count": 1}, {"count": "2"}]}) == ("wrong_type", "request.inners[1].count")
    assert refusal({"name": "x", "inners": [{"count": 1, "more": 0}]}) == ("unknown_field", "request.inners[0].more")
    assert refusal({"name": "x", "inners": [3]}) == ("wrong_type", "request.inners[0]")


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", "3", "null", b"\xff\xfe{", "{'a': 1}", "[" * 100_000, '{"a": ' + "9" * 5000 + "}"]
)
def test_what_is_not_a_json_object_is_refused(text: str | bytes) -> None:
    with pytest.raises(RequestError) as caught:
        parse_json(text, field="body")
    assert (caught.value.code, caught.value.field) == ("invalid_json", "body")
    assert caught.value.remedy


def test_nan_in_json_text_does_not_become_a_number() -> None:
    with pytest.raises(RequestError) as caught:
        parse_object(Outer, parse_json('{"name": "x", "ratio": NaN}'), path="request")
    assert (caught.value.code, caught.value.value) == ("out_of_range", "nan")
