"""The ranks' name for `engine.layout`: the server's side, which imports nothing of this package, uses the same code."""

from __future__ import annotations

from ..layout import AXES, Layout, layout_problem, layouts_remedy, possible_layouts

__all__ = ["AXES", "Layout", "layout_problem", "layouts_remedy", "possible_layouts"]
