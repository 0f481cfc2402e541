"""The command line, ``h3-engine`` or ``python -m engine``: one file a command."""

from .main import main

__all__ = ["main"]
