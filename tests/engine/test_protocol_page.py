"""``docs/protocol.md`` and the code describe the same protocol, in both directions."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from engine.contract import edits, errors, framing, media, messages, requests, version
from engine.controller.jobs import STATES
from engine.server.metrics import STATUSES
from engine.server.routes import ROUTES
from engine.server.uploads import MAX_PARTS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
KINDS = {
    "int": "int",
    "str": "string",
    "float": "float",
    "bool": "bool",
    "dict": "object",
    "list": "list",
    "tuple": "list",
    "Media": "object",
    "Source": "object",
    "SourceEdit": "object",
}
MEDIA = {
    "media": media.Media,
    "keyframe": media.Keyframe,
    "reference": media.Reference,
    "guide": media.Guide,
    "source": media.Source,
    "condition": media.Condition,
    "encoded_reference": media.EncodedReference,
}


def section(title: str) -> str:
    """Return the text from a heading to the next one of its level or above."""
    level, text = re.search(rf"^(#+) {re.escape(title)}$(.*)", PAGE, re.M | re.S).groups()  # type: ignore[union-attr]
    return re.split(rf"^#{{1,{len(level)}}} ", text, maxsplit=1, flags=re.M)[0]


def rows(text: str) -> list[list[str]]:
    """Return the cells of the table rows whose first cell is code."""
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]


def tables(title: str) -> dict[str, dict[str, str]]:
    """Return message name → field → type, from paragraphs that begin with the message's name."""
    found: dict[str, dict[str, str]] = {}
    for paragraph in re.split(r"\n\n(?=`[a-z_]+`)", section(title)):
        name = re.match(r"`([a-z_]+)`", paragraph.strip())
        if name and rows(paragraph):
            found[name[1]] = {cells[0]: cells[1] for cells in rows(paragraph)}
    return found


def fields(cls: type[Any]) -> dict[str, str]:
    """Return field → type as the page writes it."""
    described = {}
    for field in dataclasses.fields(cls):
        name = re.match(r"[A-Za-z]+", str(field.type))
        assert name is not None
        described[field.name] = KINDS.get(name[0], "string")
    return described


@pytest.mark.parametrize(
    ("title", "known"),
    [
        ("To the engine", messages.TO_ENGINE),
        ("Requests", requests.REQUESTS),
        ("Media", MEDIA),
        ("Edits", {"edit": edits.SourceEdit, "span": edits.Span, "mask_file": edits.MaskFile}),
        ("Events", messages.TO_CLIENT),
    ],
)
def test_the_page_has_exactly_the_messages_and_fields_of_the_contract(title: str, known: dict[str, type[Any]]) -> None:
    assert tables(title) == {name: fields(cls) for name, cls in known.items()}


def test_a_part_is_described_with_its_fields() -> None:
    # The first column of the table of a frame's bytes is not code, so only the part's own rows are found.
    assert {cells[0]: cells[1] for cells in rows(section("Parts"))} == fields(messages.Part)


def test_the_page_has_exactly_the_error_codes_and_their_meanings() -> None:
    table = {cells[0]: cells[1] for cells in rows(section("Errors")) if cells[0] in errors.CODES}
    listed = section("Errors").partition("| code | meaning |")[2].partition("### Warnings")[0]
    assert table == errors.CODES
    assert [cells[0] for cells in rows(listed)] == list(errors.CODES)


def test_the_page_has_exactly_the_warnings() -> None:
    assert {cells[0]: cells[1] for cells in rows(section("Warnings"))} == messages.WARNINGS


def test_the_page_has_exactly_the_fields_and_kinds_of_an_error() -> None:
    known = set(errors.EngineError("job_failed", "x").to_dict())
    head, _, kinds = section("Errors").partition("| kind | meaning | what survives |")
    assert {cells[0] for cells in rows(head)} == known
    classes = {
        name
        for name, cls in inspect.getmembers(errors, inspect.isclass)
        if issubclass(cls, errors.EngineError) and cls is not errors.EngineError
    }
    assert {cells[0] for cells in rows(kinds.partition("| code | meaning |")[0])} == classes


def test_the_page_has_exactly_the_routes() -> None:
    assert sorted(cells[0] for cells in rows(section("Routes").partition("### Health")[0])) == sorted(
        f"{route.method} {route.path}" for route in ROUTES
    )


def test_statuses_states_and_numbers_are_those_of_the_code() -> None:
    assert tuple(re.findall(r"^- `(\w+)`:", section("Health"), re.M)) == STATUSES
    assert tuple(re.findall(r"`(\w+)`", re.search(r"`state` \(([^)]*)\)", PAGE)[1])) == STATES  # type: ignore[index]
    assert f"Version {version.PROTOCOL_VERSION}." in PAGE
    assert f"{framing.MAX_SLICE + framing.HEADER.size:,} bytes" in PAGE
    assert f"at most {MAX_PARTS};" in PAGE


def test_the_python_example_is_valid_code() -> None:
    example = re.search(r"```python\n(.*?)```", PAGE, re.S)
    assert example is not None
    compile(example[1], "docs/protocol.md", "exec")
