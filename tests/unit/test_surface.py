"""The public surface changes only together with its snapshot and a line in CHANGELOG.md."""

from __future__ import annotations

import copy
import json
import re

from tests.architecture.source import ROOT
from tests.unit.surface import FILE, fingerprint, surface

HINT = "The public surface changed: see 'What only grows' in CONTRIBUTING.md."


def test_the_surface_is_the_one_stored() -> None:
    assert surface() == json.loads(FILE.read_text()), HINT


def test_the_changelog_names_the_fingerprint_of_the_surface() -> None:
    stored = re.findall(r"^Public surface: `(\w+)`$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert stored[0] == fingerprint(surface()), HINT


def test_a_changed_field_changes_the_fingerprint() -> None:
    changed = copy.deepcopy(surface())
    changed["requests"]["denoise"]["strength"] = "float"
    assert fingerprint(changed) != fingerprint(surface())


def test_the_surface_holds_what_users_type() -> None:
    data = surface()
    assert {"POST /v1/generate", "GET /v1/ws", "GET /metrics"} <= set(data["routes"])
    assert "--model" in data["command_line"]["serve"]
    assert "prompt" in data["requests"]["generate"]
