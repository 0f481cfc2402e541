"""What all nodes share: their place in the menu, the type of an engine, and keywords that old ComfyUIs do not know."""

from __future__ import annotations

import inspect
from typing import Any

from comfy_api.latest import io

CATEGORY = "MiniMax H3/Engine"
Engine = io.Custom("H3_ENGINE")


def engine_input() -> Any:
    """Return the input that takes an engine."""
    return Engine.Input("engine", tooltip="The engine that does the work, from H3 Engine Connect.")


def known_keywords(make: Any, **keywords: Any) -> dict[str, Any]:
    """Return those of ``keywords`` that ``make`` (a schema or an input) takes in this ComfyUI."""
    known = inspect.signature(make).parameters
    return {name: value for name, value in keywords.items() if name in known}


def schema(**keywords: Any) -> Any:
    """Return a node's schema in our category, found by search under the model's names where ComfyUI can."""
    aliases = known_keywords(io.Schema, search_aliases=["minimax", "h3", "hailuo"])
    return io.Schema(category=CATEGORY, **keywords, **aliases)
