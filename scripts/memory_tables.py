"""Write the memory tables of the presets into ``docs/memory.md``, as ``h3-engine plan --preset`` prints them.

Run it after a change of the planner or of a preset, ``.venv/bin/python scripts/memory_tables.py``; a test compares.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "memory.md"
sys.path.insert(0, str(ROOT))

from engine.cli.main import main  # noqa: E402 - the project's folder is put on the path first
from engine.config_presets import preset_names  # noqa: E402


def plan_of(preset: str) -> str:
    """Return what ``h3-engine plan --preset`` prints for the released model."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        main(["plan", "--preset", preset])
    return text.getvalue().strip()


def fill(page: str) -> str:
    """Return ``page`` with the table below the heading of each preset written anew."""
    for preset in preset_names():
        block = f"### {preset}\n\n```\n{plan_of(preset)}\n```\n"
        page = re.sub(rf"### {re.escape(preset)}\n\n```\n.*?\n```\n", lambda _, block=block: block, page, flags=re.S)
    return page


if __name__ == "__main__":
    PAGE.write_text(fill(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
