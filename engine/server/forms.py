"""The body of ``POST /v1/generate``: JSON, or multipart/form-data with media, streamed to files.

Of a form the field ``request`` is the JSON; every other field is a part that it names. Nothing is held in memory but
the JSON, and nothing is left behind by a body that is refused. Raises `RequestError` for what a client can get wrong
and `EngineBusyError` when the run folder has no room.
"""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import BodyPartReader, MultipartReader, web
from aiohttp.http_exceptions import HttpProcessingError

from ..contract.errors import EngineBusyError, RequestError
from ..contract.fields import parse_json
from ..controller.controller import Controller
from ..controller.folder import folder_busy
from .uploads import MAX_PARTS, check_room, is_part_name, too_large

REQUEST_FIELD = "request"
MAX_JSON_BYTES = 1024 * 1024
"""Largest JSON of a request; tensors and media travel as parts."""
_BLOCK = 1024 * 1024
_BROKEN = (web.RequestPayloadError, HttpProcessingError, ValueError)
"""What aiohttp raises for a body that is not what its headers say."""


@dataclass
class Form:
    """A body.

    Attributes:
        data: its JSON object. files: part name → file. folder: holds the files; None without any.
    """

    data: dict[str, Any] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)
    folder: Path | None = None

    async def drop(self) -> None:
        """Delete the files."""
        if self.folder is not None:
            await asyncio.to_thread(shutil.rmtree, self.folder, True)


async def read_form(request: web.Request, controller: Controller) -> Form:
    """Read the body of ``request``; the caller owns the form's folder.

    Raises:
        RequestError: ``invalid_json``, ``body_too_large``, ``missing_field``, ``out_of_range`` or ``bad_media``.
        EngineBusyError: ``queue_full``.
    """
    if request.content_type != "multipart/form-data":
        return Form(parse_json(await _read_json(request)))
    limit = controller.config.limits.max_body_bytes
    announced = request.content_length or 0
    if announced > limit:
        raise too_large(announced, limit)
    check_room(announced, controller.folder)
    form = Form(folder=controller.folder.make("upload"))
    try:
        await _Reader(form, limit).read(await request.multipart())
    except _BROKEN as error:
        await form.drop()
        raise _broken() from error
    except BaseException:
        await form.drop()
        raise
    return form


async def _read_json(request: web.Request) -> bytes:
    try:
        return await request.read()
    except web.RequestPayloadError as error:
        raise _broken() from error


def _broken() -> RequestError:
    return RequestError(
        "invalid_json",
        "The body cannot be read: it is not what its headers say, or was cut.",
        field="body",
        remedy="Send one JSON object in UTF-8, or a whole multipart/form-data; a Content-Encoding must be true.",
    )


class _Reader:
    """Reads the fields of one form."""

    def __init__(self, form: Form, limit: int) -> None:
        self._form = form
        self._limit = limit
        self._total = 0
        self._json: bytes | None = None

    async def read(self, reader: MultipartReader) -> None:
        while (part := await reader.next()) is not None:
            name = part.name if isinstance(part, BodyPartReader) else None
            if not isinstance(part, BodyPartReader) or name is None:
                raise _bad_field(None, "A form has fields with names.")
            if name == REQUEST_FIELD and self._json is None:
                self._json = await self._take_json(part)
                self._form.data = parse_json(self._json, field=REQUEST_FIELD)
            else:
                await self._take_file(name, part)
        if self._json is None:
            raise RequestError(
                "missing_field",
                f"The form has no field {REQUEST_FIELD!r}.",
                field=REQUEST_FIELD,
                remedy=f"Send the request's JSON as the field {REQUEST_FIELD!r}.",
            )

    async def _take_json(self, part: BodyPartReader) -> bytes:
        data = b""
        while block := await part.read_chunk(_BLOCK):
            data += block
            if len(data) > MAX_JSON_BYTES:
                raise RequestError(
                    "body_too_large",
                    f"The JSON of a request has at most {MAX_JSON_BYTES} bytes.",
                    field=REQUEST_FIELD,
                    remedy="Shorten it; media are fields of their own.",
                )
        return data

    async def _take_file(self, name: str, part: BodyPartReader) -> None:
        files, folder = self._form.files, self._form.folder
        assert folder is not None
        if not is_part_name(name) or name in files or name == REQUEST_FIELD:
            raise _bad_field(name, "A field's name is of letters, digits and '_', at most 64, and unique in its form.")
        if len(files) >= MAX_PARTS:
            raise _bad_field(name, f"A form has at most {MAX_PARTS} files.")
        path = files[name] = folder / str(len(files))
        try:
            with path.open("wb") as file:
                while block := await part.read_chunk(_BLOCK):
                    self._total += len(block)
                    if self._total > self._limit:
                        raise too_large(self._total, self._limit)
                    await asyncio.to_thread(file.write, block)
        except OSError as error:
            raise _full(error) from error
        length = part.headers.get("Content-Length")
        if length is not None and length != str(path.stat().st_size):
            raise _bad_field(name, f"The field says that it has {length[:20]} bytes and has {path.stat().st_size}.")


def _full(error: OSError) -> EngineBusyError | OSError:
    """Return what a failed write is to the client; a lost connection stays what it is."""
    return error if isinstance(error, ConnectionError) else folder_busy(error)


def _bad_field(name: str | None, message: str) -> RequestError:
    return RequestError("out_of_range", message, field="body", value=name, remedy="Correct the form.")
