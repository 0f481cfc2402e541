"""What can be checked of a `SourceEdit` before its clip is read: one mask a stream, and a document with its files.

That a document was painted on this clip, and how long an extension gets, is checked by the process that reads the clip.
Raises `RequestError`.
"""

from __future__ import annotations

from collections.abc import Mapping

from .edits import SourceEdit
from .errors import RequestError
from .geometry import MAX_SECONDS
from .mask_document import MAX_LAYERS, MaskDocument, parse_document

_PATH = "request.edit"
_MAX_SPANS = 1_000


def check_edit_fields(edit: SourceEdit, sizes: Mapping[str, float | None]) -> None:
    """Check an edit by itself.

    Args:
        sizes: ``frames`` and ``seconds`` of the request.

    Raises:
        RequestError: ``missing_field``, ``out_of_range``, ``bad_media``, or as `parse_document`.
    """
    for name, value in sizes.items():
        if value is not None:
            message = f"The source decides how long the video is, not {name}."
            remedy = "Leave it out; edit.frames cuts the source, edit.after goes on."
            raise RequestError("out_of_range", message, field=f"request.{name}", value=value, remedy=remedy)
    _check_numbers(edit)
    given = tuple(edit.masks())
    if not given and not edit.extends:
        raise RequestError(
            "missing_field",
            "Nothing says what of the source is made anew.",
            field=f"{_PATH}.video_mask",
            remedy="Send a mask of the picture or the sound, a document, or seconds to add.",
        )
    for first, second in (("video_mask", "video_mask_media"), ("audio_mask", "audio_spans")):
        _check_one(given, first, second)
        _check_one(given, first, "document")
        _check_one(given, second, "document")
    if edit.video_mask_media is not None and edit.video_mask_media.format == "audio":
        raise RequestError(
            "bad_media",
            "A mask of the picture is a picture or a clip.",
            field=f"{_PATH}.video_mask_media.format",
            value="audio",
            remedy="Send a file, or frames.",
        )
    if edit.document is not None:
        _check_files(edit, parse_document(edit.document, path=f"{_PATH}.document"))
    elif edit.files:
        message = "Files belong to a document's layers, and there is no document."
        remedy = "Send one mask as video_mask_media."
        raise RequestError("out_of_range", message, field=f"{_PATH}.files", value=len(edit.files), remedy=remedy)


def _check_one(given: tuple[str, ...], first: str, second: str) -> None:
    if first in given and second in given:
        raise RequestError(
            "out_of_range",
            f"{first} and {second} say the same thing twice.",
            field=f"{_PATH}.{second}",
            remedy="Leave one of them out.",
        )


def _check_numbers(edit: SourceEdit) -> None:
    for name, number, high in (
        ("video_mask", edit.video_mask, 1.0),
        ("audio_mask", edit.audio_mask, 1.0),
        ("before", edit.before, MAX_SECONDS),
        ("after", edit.after, MAX_SECONDS),
    ):
        if number is not None and not 0 <= number <= high:
            message = f"{name} is 0 to 1." if high == 1 else f"{name} is a number of seconds, 0 or more."
            remedy = "Use 0 to keep, 1 to make anew." if high == 1 else "Ask for a few seconds, as 4."
            raise RequestError("out_of_range", message, field=f"{_PATH}.{name}", value=number, remedy=remedy)
    if len(edit.audio_spans) > _MAX_SPANS:
        message = f"There are at most {_MAX_SPANS} spans."
        field = f"{_PATH}.audio_spans"
        raise RequestError("out_of_range", message, field=field, value=len(edit.audio_spans), remedy="Join some.")
    for index, span in enumerate(edit.audio_spans):
        if not 0 <= span.start < span.stop:
            raise RequestError(
                "out_of_range",
                "A span goes from a second of the source to a later one.",
                field=f"{_PATH}.audio_spans[{index}]",
                value=f"{span.start:g}-{span.stop:g}",
                remedy='Send {"start": 1.5, "stop": 3}.',
            )


def _check_files(edit: SourceEdit, document: MaskDocument) -> None:
    if len(edit.files) > MAX_LAYERS:
        message = f"There are at most {MAX_LAYERS} files."
        field = f"{_PATH}.files"
        raise RequestError("out_of_range", message, field=field, value=len(edit.files), remedy="Leave some out.")
    names = [file.name for file in edit.files]
    for index, name in enumerate(names):
        if names.count(name) > 1:
            message = f"Two files are called {name!r}."
            field = f"{_PATH}.files[{index}].name"
            raise RequestError("out_of_range", message, field=field, value=name, remedy="Name each one apart.")
    for index, layer in enumerate(document.layers):
        if layer.kind == "raster" and layer.enabled and layer.file not in names:
            raise RequestError(
                "missing_field",
                f"The layer {layer.name or layer.id!r} paints with the file {layer.file!r}, which was not sent.",
                field=f"{_PATH}.document.layers[{index}].file",
                value=layer.file,
                remedy="Send it in edit.files.",
            )
