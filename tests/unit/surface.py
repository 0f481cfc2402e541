"""The public surface: what other programs and saved files rely on.

``python -m tests.unit.surface --write`` stores it in ``surface.json`` and prints its fingerprint for CHANGELOG.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from engine.cli.main import build_parser
from engine.contract import edits, errors, media, messages, requests, version
from engine.server.routes import ROUTES

MEDIA: tuple[type[Any], ...] = (
    media.Media,
    media.Keyframe,
    media.Reference,
    media.Guide,
    media.Source,
    media.Condition,
    media.EncodedReference,
    edits.SourceEdit,
    edits.Span,
    edits.MaskFile,
)
FILE = Path(__file__).with_name("surface.json")


def surface() -> dict[str, Any]:
    """Return the surface as JSON data."""
    return {
        "protocol_version": version.PROTOCOL_VERSION,
        "part": fields(messages.Part),
        "requests": {name: fields(cls) for name, cls in requests.REQUESTS.items()},
        "media": {cls.__name__: fields(cls) for cls in MEDIA},
        "to_engine": {name: fields(cls) for name, cls in messages.TO_ENGINE.items()},
        "to_client": {name: fields(cls) for name, cls in messages.TO_CLIENT.items()},
        "error_codes": sorted(errors.CODES),
        "warning_codes": sorted(messages.WARNINGS),
        "stages": sorted(requests.STAGES),
        "routes": sorted(f"{route.method} {route.path}" for route in ROUTES),
        "command_line": options(build_parser()),
    }


def fields(cls: type[Any]) -> dict[str, str]:
    """Return name → type of a message's fields."""
    return {field.name: str(field.type) for field in dataclasses.fields(cls)}


def options(parser: argparse.ArgumentParser) -> dict[str, list[str]]:
    """Return subcommand → its options and positional arguments."""
    commands = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return {
        name: sorted(word for action in command._actions for word in (action.option_strings or [action.dest.upper()]))
        for name, command in sorted(commands.choices.items())
    }


def fingerprint(data: dict[str, Any]) -> str:
    """Return eight hexadecimal digits that change with the surface."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:8]


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        FILE.write_text(json.dumps(surface(), indent=2) + "\n")
    print(fingerprint(surface()))
