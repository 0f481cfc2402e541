"""The ranks' name for `engine.layout_rows`, which the server's side uses too, without importing this package."""

from __future__ import annotations

from ..layout_rows import RowPartition, apportion

__all__ = ["RowPartition", "apportion"]
