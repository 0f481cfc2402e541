"""``decode``, and what becomes of the latents that ``generate`` samples on the way: nothing sampled is lost.

Raises `ConfigError` for files that cannot be read or written, and the engine's typed errors.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from .cli_files import check_regular
from .cli_output import numbered, tell
from .config import absolute_path
from .contract.errors import ConfigError, RequestError
from .contract.latent_file import read_latent_header

SUFFIX = ".latents.safetensors"
"""Of the file that a failed ``generate`` leaves beside its output."""


def add_keep_latents(parser: argparse.ArgumentParser) -> None:
    """Add ``--keep-latents``."""
    words = f"also write what was sampled, for h3-engine decode (when decoding fails: OUTPUT{SUFFIX} in any case)"
    parser.add_argument("--keep-latents", metavar="FILE", help=words)


def add_latents(parser: argparse.ArgumentParser) -> None:
    """Add ``--latents``."""
    words = "the latents to decode: of --keep-latents, or of H3EngineSaveLatent (required)"
    parser.add_argument("--latents", metavar="FILE", help=words)


def latents_of(arguments: argparse.Namespace) -> Path:
    """Return ``--latents`` as an absolute path of a file that holds a latent.

    Raises:
        ConfigError: it is missing or no latent.
    """
    if arguments.latents is None:
        raise ConfigError(
            "config_bad_value", "Latents are needed.", field="latents", remedy="Give a file: --latents FILE."
        )
    path = absolute_path(arguments.latents, field="latents")
    check_regular(path, "latents", str(path))
    try:
        with path.open("rb") as file:
            read_latent_header(file, path.stat().st_size, field="latents")
    except OSError as error:
        text = f"The latents cannot be read: {error.strerror or error}."
        raise ConfigError("config_bad_value", text, field="latents", value=str(path)) from error
    except RequestError as error:
        raise ConfigError(
            "config_bad_value", error.message, field="latents", value=str(path), remedy=error.remedy
        ) from error
    return path


class LatentsKeeper:
    """Takes a job's latents as they arrive; leaving its block puts them where they belong, however the job ended."""

    def __init__(self, output: Path, keep: str | None = None) -> None:
        """Keep them for the video ``output``.

        Args:
            keep: the file that the user wants, None for none unless the job fails.

        Raises:
            ConfigError: no file can be put there.
        """
        self._wanted = None if keep is None else absolute_path(keep, field="keep_latents")
        self._spare = output.with_name(output.stem + SUFFIX)
        self._arrived: list[Path] = []
        if self._wanted is not None and (self._wanted.is_dir() or not self._wanted.parent.is_dir()):
            raise ConfigError(
                "config_bad_value",
                "The latents cannot be written there.",
                field="keep_latents",
                value=str(self._wanted),
                remedy="Give a file's name in a folder that exists.",
            )

    def take(self, event: Mapping[str, Any]) -> None:
        """Take note of an event of the job."""
        if event["type"] == "output" and event["name"] == "latents":
            self._arrived.append(event["path"])

    def __enter__(self) -> LatentsKeeper:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Move what arrived to its place, when it is wanted or the job failed."""
        target = self._wanted or (None if error is None else self._spare)
        if target is None:
            return
        for path, place in zip(self._arrived, numbered(target, len(self._arrived)), strict=True):
            shutil.move(path, place)
            again = "" if error is None else f"; decode them alone: h3-engine decode --latents {place}"
            tell(f"the sampled latents are in {place}{again}")
