"""The options of ``generate`` that edit a clip: files and numbers → the request's field ``edit``, and its parts.

``--video-mask`` takes a number or a picture or clip, ``--audio-mask`` a number or spans in seconds (``1.5-3,4-5``); of
``--mask-document`` the files that its layers name are looked for beside it. Raises `ConfigError`; for what is in a
document `RequestError`.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from ..contract.errors import ConfigError
from ..contract.mask_document import parse_document
from .files import bad_option, existing_file, part_name

_SPAN = re.compile(r"(\d{1,9}(?:\.\d*)?|\.\d+)-(\d{1,9}(?:\.\d*)?|\.\d+)", re.ASCII)
_DOCUMENT = "--mask-document"


def add_edit_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for a clip that is edited or continued."""
    group = parser.add_argument_group("editing a clip", "What no mask names is kept. --seconds and --frames stay away.")
    group.add_argument("--source-video", metavar="FILE", help="the clip to edit, with its sound")
    group.add_argument("--source-audio", metavar="FILE", help="its sound, in place of the clip's own")
    group.add_argument("--source-frames", type=int, metavar="N", help="how many of its frames, at 24 a second (all)")
    picture = "what of the picture is made anew: 0 to 1 for all of it, or a picture or clip, white is made anew"
    group.add_argument("--video-mask", metavar="FILE|NUMBER", help=picture)
    sound = "what of the sound is made anew: 0 to 1 for all of it, or spans in seconds, as 1.5-3,4-5"
    group.add_argument("--audio-mask", metavar="NUMBER|SPANS", help=sound)
    group.add_argument(_DOCUMENT, metavar="FILE.json", help="both, as the mask editor writes it")
    group.add_argument("--extend", type=float, metavar="SECONDS", help="go on for so long after it")
    group.add_argument("--extend-before", type=float, metavar="SECONDS", help="begin so long before it")


def edit_of_arguments(arguments: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Path]]:
    """Return the request's field ``edit``, nothing without a source, and part name → file.

    Raises:
        ConfigError: a file is not there, an option cannot be read, or there is nothing to edit.
        RequestError: as `parse_document`.
    """
    parts: dict[str, Path] = {}

    def media(flag: str, path: Path) -> dict[str, Any]:
        name = part_name(flag, len(parts))
        parts[name] = path
        return {"part": name}

    source = {
        name: media(flag, existing_file(file, flag))
        for name, flag, file in (
            ("media", "--source-video", arguments.source_video),
            ("audio", "--source-audio", arguments.source_audio),
        )
        if file is not None
    }
    edit: dict[str, Any] = {"frames": arguments.source_frames, "after": arguments.extend}
    edit["before"] = arguments.extend_before
    if arguments.video_mask is not None:
        number = _number(arguments.video_mask)
        if number is not None:
            edit["video_mask"] = number
        else:
            edit["video_mask_media"] = media("--video-mask", existing_file(arguments.video_mask, "--video-mask"))
    if arguments.audio_mask is not None:
        edit |= _sound(arguments.audio_mask)
    if arguments.mask_document is not None:
        edit["document"], files = _document(arguments.mask_document)
        edit["files"] = [{"name": name, "media": media(_DOCUMENT, path)} for name, path in files.items()]
    edit = {name: value for name, value in edit.items() if value not in (None, [])}
    if source:
        return {"edit": {"source": source, **edit}}, parts
    if edit:
        raise ConfigError(
            "config_bad_value",
            "There is no clip to edit.",
            field="--source-video",
            remedy="Give --source-video FILE, or leave masks and --extend out.",
        )
    return {}, {}


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _sound(text: str) -> dict[str, Any]:
    number = _number(text)
    if number is not None:
        return {"audio_mask": number}
    spans = [_SPAN.fullmatch(piece.strip()) for piece in text.split(",")]
    if None in spans:
        raise bad_option(
            "--audio-mask",
            text,
            "This is neither a number nor spans of seconds.",
            "Use 0 to 1 for all of it, or as 1.5-3,4-5.",
        )
    return {"audio_spans": [{"start": float(span[1]), "stop": float(span[2])} for span in spans if span is not None]}


def _document(file: str) -> tuple[dict[str, Any], dict[str, Path]]:
    """Return the document in a file, and the files that its layers paint with by the names that they have there."""
    path = existing_file(file, _DOCUMENT)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise bad_option(_DOCUMENT, file, f"It is not JSON: {error}.", "Give the editor's document.") from error
    if not isinstance(data, dict):
        raise bad_option(_DOCUMENT, file, "The JSON is not an object.", "Give the editor's document.")
    layers = parse_document(data, path=_DOCUMENT).layers
    wanted = dict.fromkeys(layer.file for layer in layers if layer.kind == "raster" and layer.enabled)
    return data, {name: existing_file(str(path.parent / name), _DOCUMENT) for name in wanted}
