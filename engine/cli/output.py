"""What the command line shows: results on stdout, progress on stderr, log lines on stderr."""

from __future__ import annotations

import logging
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..contract.words import bytes_in_words

_BAR = 24


def say(text: str) -> None:
    """Write one line of result to stdout."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def tell(text: str) -> None:
    """Write one line for the person at the terminal to stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def log_to_stderr() -> None:
    """Send log lines to stderr; the lines of the fleet and its ranks carry their own prefix."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s: %(message)s")
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)


class ProgressBar:
    """A job's progress on stderr: one line that is redrawn on a terminal, one line a stage elsewhere."""

    def __init__(self, outputs: int = 1) -> None:
        """Show a job of so many ``outputs``, which are denoised and decoded one after the other."""
        self._outputs = outputs
        self._output = 0
        self._live = sys.stderr.isatty()
        self._shown = ""
        self._open = False
        self._began = time.monotonic()

    def take(self, event: Mapping[str, Any]) -> None:
        """Show one event of the job."""
        kind = event["type"]
        if event.get("stage") == "denoise" and (kind == "stage_started" or event.get("cached")):
            self._output = min(self._output + 1, self._outputs)
        if kind == "queued":
            words = f"waiting, place {event['position']} ({event['reason']})"
            known = {"ready": "starting", "media": "reading pictures and sound"}
            self._show(0.0, known.get(event["reason"], words), lasting=True)
        elif kind == "stage_started":
            self._show(event["progress"], self._stage(event), lasting=True)
        elif kind == "stage_finished" and event.get("cached"):
            self._show(event["progress"], f"{self._stage(event)}: known already", lasting=True)
        elif kind == "step":
            done = f"{event['step']}/{event['total']}, {event['remaining_seconds']:.0f} s left"
            self._show(event["progress"], f"{self._stage(event)} {done}", lasting=False)
        elif kind == "warning":
            self.close()
            tell(f"note: {event['message']}")
        elif kind == "done":
            self._show(1.0, f"done in {time.monotonic() - self._began:.1f} s", lasting=True)
            self.close()

    def _stage(self, event: Mapping[str, Any]) -> str:
        """Return the stage's name, and of several outputs whose it is."""
        about = f"video {self._output} of {self._outputs}: " if self._outputs > 1 and self._output else ""
        return f"{about}{event['stage']}"

    def show_loading(self, health: Mapping[str, Any]) -> None:
        """Show how far the engine has loaded."""
        progress = health["progress"]
        if progress:
            done, total = progress["bytes_done"], progress["bytes_total"]
            words = f"loading {progress['component']}: {bytes_in_words(done)} of {bytes_in_words(total)}"
            self._show(done / max(1, total), words, lasting=False)

    def _show(self, progress: float, words: str, *, lasting: bool) -> None:
        filled = round(progress * _BAR)
        text = f"[{'#' * filled}{'.' * (_BAR - filled)}] {progress:4.0%} {words}"
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write("\r" + text[:width].ljust(width))
            sys.stderr.flush()
            self._open = True
        elif lasting and text != self._shown:
            tell(text)
        self._shown = text

    def close(self) -> None:
        """End the bar's line, so that what is told next has a line of its own."""
        if self._open:
            tell("")
            self._open = False


def numbered(output: Path, count: int) -> list[Path]:
    """Return the paths of ``count`` files: ``output`` itself, or ``output`` with -1, -2, … before its suffix."""
    if count == 1:
        return [output]
    return [output.with_name(f"{output.stem}-{number}{output.suffix}") for number in range(1, count + 1)]
