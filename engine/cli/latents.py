"""The options about latents: what ``decode`` reads, and where ``generate`` is to keep them (`cli.delivery`).

Raises `ConfigError` for files that cannot be read.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ..config import absolute_path
from ..contract.errors import ConfigError, RequestError
from ..contract.latent_file import read_latent_header
from .delivery import LATENTS_SUFFIX
from .files import check_regular


def add_keep_latents(parser: argparse.ArgumentParser) -> None:
    """Add ``--keep-latents``."""
    words = (
        f"also write what was sampled, for h3-engine decode (when decoding fails: OUTPUT{LATENTS_SUFFIX} in any case)"
    )
    parser.add_argument("--keep-latents", metavar="FILE", help=words)


def add_latents(parser: argparse.ArgumentParser) -> None:
    """Add ``--latents``."""
    words = "the latents to decode: of --keep-latents, or saved in ComfyUI (required)"
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
