"""The rows of a request, and which pinned lengths pass at the request's boundary."""

from __future__ import annotations

from typing import Any

import pytest

from engine.contract.checks import Plan, check_request, check_tokens
from engine.contract.errors import RequestError
from engine.contract.framing import TensorInfo
from engine.contract.lengths import used_rows
from engine.contract.limits import Limits, ModelFacts
from engine.contract.requests import STAGES, parse_request

FACTS = ModelFacts()
LIMITS = Limits()
DENOISE = {"task": "denoise", "width": 1344, "height": 768, "frames": 124}
GENERATE = {"task": "generate", "prompt": "a fox", "width": 1344, "height": 768, "frames": 124}
TEXT = 11
ROWS = TEXT + 2 * 207 + 37 * 24 * 42
SMALLEST = 37_760


def plan(data: dict[str, Any], limits: Limits = LIMITS) -> Plan:
    """Check a request with `TEXT` rows of text, as the server does."""
    headers = {}
    if data["task"] == "denoise":
        headers["conditioning"] = {
            "prompt_embeds": TensorInfo("prompt_embeds", "F32", (1, TEXT, FACTS.text_dim), 0, 0),
            "token_tags": TensorInfo("token_tags", "I64", (TEXT,), 0, 0),
        }
    checked = check_request(parse_request(data), facts=FACTS, limits=limits, headers=headers, stages=STAGES)
    return checked if data["task"] == "denoise" else check_tokens(checked, TEXT, facts=FACTS, limits=limits)


def test_a_five_second_request_has_the_rows_of_text_sound_and_video() -> None:
    assert used_rows(text_rows=TEXT, width=1344, height=768, frames=124, facts=FACTS) == ROWS == 37_721


@pytest.mark.parametrize("request_", [DENOISE, GENERATE], ids=["denoise", "generate"])
@pytest.mark.parametrize("length", [None, SMALLEST, SMALLEST + 64, LIMITS.max_pad_seq_len])
def test_a_length_that_holds_the_request_passes_and_is_told(request_: dict[str, Any], length: int | None) -> None:
    checked = plan(request_ if length is None else {**request_, "pad_seq_len": length})
    assert checked.facts["rows"] == ROWS
    assert checked.facts.get("pad_seq_len") == length
    assert checked.request.pad_seq_len == length  # type: ignore[union-attr]


@pytest.mark.parametrize("request_", [DENOISE, GENERATE], ids=["denoise", "generate"])
@pytest.mark.parametrize(
    ("length", "code", "words"),
    [
        (SMALLEST + 1, "out_of_range", "multiple of 64"),
        (ROWS, "out_of_range", "multiple of 64"),
        (SMALLEST - 64, "out_of_range", f"{ROWS} rows"),
        (64, "out_of_range", f"{ROWS} rows"),
        (0, "out_of_range", f"{ROWS} rows"),
        (-64, "out_of_range", f"{ROWS} rows"),
        (LIMITS.max_pad_seq_len + 64, "out_of_range", "limit of 131072"),
        (2**70, "out_of_range", "64 bits"),
        (37_760.0, "wrong_type", "whole number"),
        ("37760", "wrong_type", "whole number"),
        (True, "wrong_type", "whole number"),
        ([SMALLEST], "wrong_type", "whole number"),
    ],
)
def test_a_bad_length_is_refused_with_the_smallest_that_does(
    request_: dict[str, Any], length: Any, code: str, words: str
) -> None:
    with pytest.raises(RequestError) as caught:
        plan({**request_, "pad_seq_len": length})
    error = caught.value
    assert (error.code, error.field, error.status) == (code, "request.pad_seq_len", 400)
    assert words in error.message
    if code == "out_of_range" and words != "64 bits":
        assert error.value == length
        assert f"Use {SMALLEST}" in str(error.remedy)


@pytest.mark.parametrize("length", [64, 1024, SMALLEST])
def test_a_request_beyond_the_operators_limit_is_told_what_else_to_do(length: int) -> None:
    with pytest.raises(RequestError) as caught:
        plan({**DENOISE, "pad_seq_len": length}, Limits(max_pad_seq_len=1024))
    assert f"--max-pad-seq-len to {SMALLEST}" in str(caught.value.remedy)


def test_the_other_tasks_take_no_length() -> None:
    for data in ({"task": "encode_prompt", "prompt": "a fox"}, {"task": "decode"}):
        with pytest.raises(RequestError) as caught:
            parse_request({**data, "pad_seq_len": 64})
        assert caught.value.code == "unknown_field"


def test_a_long_prompt_is_refused_before_its_length_matters() -> None:
    checked = check_request(
        parse_request({**GENERATE, "pad_seq_len": 64}), facts=FACTS, limits=LIMITS, headers={}, stages=STAGES
    )
    with pytest.raises(RequestError) as caught:
        check_tokens(checked, LIMITS.max_prompt_tokens + 1, facts=FACTS, limits=LIMITS)
    assert (caught.value.code, caught.value.field) == ("prompt_too_long", "request.prompt")
