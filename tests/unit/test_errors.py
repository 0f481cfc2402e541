"""Errors cross the wire and come back the same."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.contract.errors import (
    CODES,
    ConfigError,
    EngineBusyError,
    EngineDeadError,
    EngineError,
    JobCancelled,
    JobError,
    RequestError,
    error_from_dict,
)

KINDS = (ConfigError, RequestError, JobError, JobCancelled, EngineBusyError, EngineDeadError)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_and_code_survives_the_wire(kind: type[EngineError]) -> None:
    for code in CODES:
        error = kind(code, "What.", field="a.b", value=3, remedy="Do.", details={"rank": 1})
        back = error_from_dict(json.loads(json.dumps(error.to_dict())))
        assert type(back) is kind
        assert (back.code, back.field, back.value, back.details) == (code, "a.b", 3, {"rank": 1})
        assert (back.to_dict(), str(back), back.status) == (error.to_dict(), str(error), error.status)


def test_an_unknown_code_or_kind_becomes_a_failed_job() -> None:
    assert error_from_dict({"code": "from_the_future", "kind": "RequestError", "message": "m"}).code == "job_failed"
    strange = error_from_dict({"code": "bad_canvas", "kind": "SomethingElse", "message": "m"})
    assert isinstance(strange, JobError)
    assert error_from_dict({}).message == ""


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, None),
        (True, True),
        (7, 7),
        (1.5, 1.5),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        ("text", "text"),
        ([1, 2], "[1, 2]"),
        pytest.param(10**5000, "a whole number of 16610 bits", id="5001 digits"),
    ],
)
def test_a_value_is_shown_as_json_can_carry_it(value: Any, shown: Any) -> None:
    error = RequestError("out_of_range", "m", value=value)
    assert error.value == shown
    assert json.loads(json.dumps(error.to_dict(), allow_nan=False))["value"] == shown


def test_a_long_value_is_cut() -> None:
    value = RequestError("out_of_range", "m", value="x" * 10_000).value
    assert isinstance(value, str)
    assert len(value) == 200
    assert value.endswith("…")


def test_the_text_of_an_error_says_field_value_and_remedy() -> None:
    error = RequestError("bad_canvas", "Not on the grid.", field="request.width", value=848, remedy="Use 832 or 864.")
    assert str(error) == "Not on the grid. [request.width = 848] Use 832 or 864."


def test_the_text_of_an_error_without_a_value_says_the_field_alone() -> None:
    assert str(RequestError("unauthorized", "No token.", field="Authorization", remedy="Set it.")) == (
        "No token. [Authorization] Set it."
    )


def test_a_code_that_does_not_exist_cannot_be_raised() -> None:
    with pytest.raises(AssertionError):
        RequestError("no_such_code", "m")


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("bad_canvas", 400),
        ("unauthorized", 401),
        ("forbidden_origin", 403),
        ("unknown_job", 404),
        ("body_too_large", 413),
    ],
)
def test_a_callers_fault_has_the_right_http_status(code: str, status: int) -> None:
    assert RequestError(code, "m").status == status
    assert RequestError(code, "m").retryable is False


def test_only_what_can_go_better_next_time_is_retryable() -> None:
    assert {kind.__name__ for kind in KINDS if kind("cancelled", "m").retryable} == {"JobError", "EngineBusyError"}
