"""The media options of ``generate``: files on the command line → fields of the request, and its parts.

``--ref-image``, ``--ref-video`` and ``--ref-audio`` keep the order in which they stand, whatever their kind, for the
prompt numbers them in it. A guide says where it starts: ``FILE@1.5`` in seconds, ``FILE@#36`` as a frame, ``FILE@#-22``
as a frame counted from the end; without a place it starts at 0. Raises `ConfigError` for files that are not there.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..config import absolute_path
from ..contract.media import REFERENCE_SIZES
from .files import bad_option, existing_file, part_name

_PLACE = re.compile(
    r"(?P<file>.+)@(?:#(?P<frame>-?\d{1,9})|(?P<seconds>\d{1,9}(?:\.\d*)?|\.\d+))", re.ASCII | re.DOTALL
)


class _Append(argparse.Action):
    """Appends (option, value) to a list that several options share, so that their order is kept."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        given = [*(getattr(namespace, self.dest) or []), (self.option_strings[0], values)]
        setattr(namespace, self.dest, given)


def add_media_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for keyframes, references and guides."""
    group = parser.add_argument_group("pictures and sound", "Keyframes and references do not go together; guides do.")
    group.add_argument("--first-frame", metavar="FILE", help="picture that the video starts with")
    group.add_argument("--last-frame", metavar="FILE", help="picture that the video ends with")
    for kind, words in (
        ("image", "picture of somebody or something to be like"),
        ("video", "clip to be like, with its sound"),
        ("audio", "voice or sound to be like"),
    ):
        order = "; repeatable: the order of all --ref options is that of <Picture i>, <Video k>, <Audio j>"
        group.add_argument(f"--ref-{kind}", dest="references", action=_Append, metavar="FILE", help=words + order)
    sizes = "how large references are read: as they are, shrunk to the output, shrunk to 2048, brought to 2048"
    group.add_argument("--reference-size", choices=REFERENCE_SIZES, help=f"{sizes} (default: {REFERENCE_SIZES[0]})")
    for name, words in (("guide", "picture or clip"), ("guide-audio", "sound")):
        place = f"{words} held at a place: @1.5 seconds, @#36 frame, @#-22 frame from the end; repeatable"
        group.add_argument(f"--{name}", dest="guides", action=_Append, metavar="FILE@PLACE", help=place)


def media_of_arguments(arguments: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Path]]:
    """Return the fields of the request that the media options make, and part name → file.

    Raises:
        ConfigError: a file is not there, or an option cannot be read.
    """
    parts: dict[str, Path] = {}

    def media(flag: str, file: str) -> dict[str, Any]:
        name = part_name(flag, len(parts))
        parts[name] = existing_file(file, flag)
        return {"part": name}

    keyframes = [
        {"media": media(f"--{end}-frame", file), "at": end}
        for end in ("first", "last")
        if (file := getattr(arguments, f"{end}_frame")) is not None
    ]
    size = {} if arguments.reference_size is None else {"size": arguments.reference_size}
    references = [
        {"kind": flag.removeprefix("--ref-"), "media": media(flag, file), **size}
        for flag, file in arguments.references or []
    ]
    if size and not references:
        raise bad_option(
            "--reference-size", arguments.reference_size, "There is no reference.", "Give --ref-image FILE."
        )
    guides = []
    for flag, text in arguments.guides or []:
        file, place = _split_place(text, flag)
        guides.append({("audio" if flag == "--guide-audio" else "media"): media(flag, file), **place})
    fields = {"keyframes": keyframes, "references": references, "guides": guides}
    return {name: value for name, value in fields.items() if value}, parts


def _split_place(text: str, flag: str) -> tuple[str, dict[str, Any]]:
    """Return the file of ``FILE@PLACE``, and the guide's field for the place."""
    found = _PLACE.fullmatch(text)
    if found is not None:
        if found["frame"] is not None:
            return found["file"], {"frame": int(found["frame"])}
        return found["file"], {"seconds": float(found["seconds"])}
    if "@" in text and not absolute_path(text, field=flag).exists():
        raise bad_option(
            flag,
            text,
            f"{text.rpartition('@')[2]!r} is no place on the timeline.",
            "Use FILE@1.5 (seconds), FILE@#36 (a frame) or FILE@#-22 (a frame counted from the end).",
        )
    return text, {}
