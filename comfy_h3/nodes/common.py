"""What all nodes share: their place in the menu, the type of an engine, keywords that old ComfyUIs do not know, and
how a run that does not finish is shown. Raises `NodeError` from `node_errors`, ComfyUI's interrupt with it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from comfy_api.latest import io

from .. import errors, host

CATEGORY = "MiniMax H3/Engine"
Engine = io.Custom("H3_ENGINE")


def engine_input() -> Any:
    """Return the input that takes an engine."""
    return Engine.Input("engine", tooltip="The engine that does the work, from H3 Engine Connect.")


@contextmanager
def node_errors() -> Iterator[None]:
    """Turn the contract's errors into `NodeError`, and leave the end of a run that failed as the text on its node.

    Raises:
        NodeError: for every `EngineError` raised inside.
    """
    try:
        with errors.node_errors():
            yield
    except host.Interrupted:
        host.NodeDisplay().text("Cancelled")
        raise
    except Exception as error:
        host.NodeDisplay().text("Cancelled" if getattr(error, "code", None) == "cancelled" else "Failed")
        raise


def known_keywords(make: Any, **keywords: Any) -> dict[str, Any]:
    """Return those of ``keywords`` that ``make`` (a schema or an input) takes in this ComfyUI."""
    known = inspect.signature(make).parameters
    return {name: value for name, value in keywords.items() if name in known}


def schema(**keywords: Any) -> Any:
    """Return a node's schema in our category, found by search under the model's names where ComfyUI can."""
    aliases = known_keywords(io.Schema, search_aliases=["minimax", "h3", "hailuo"])
    return io.Schema(category=CATEGORY, **keywords, **aliases)
