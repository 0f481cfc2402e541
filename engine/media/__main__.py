"""``python -m engine.media JOB.json``."""

from __future__ import annotations

from .prepare import main

main()
