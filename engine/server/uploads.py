"""The parts of one ``submit`` on their way from the websocket to files: safetensors, and files of pictures and sound.

What was announced is checked before a byte is read; slices are written and hashed as they come. Raises `RequestError`
for everything that a client can get wrong; the caller then drops the upload and goes on with the connection.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from pathlib import Path

from ..contract.errors import EngineBusyError, RequestError
from ..contract.framing import TensorInfo, read_header
from ..contract.messages import Submit
from ..contract.requests import Echo, Request, file_parts, input_parts, media_of, optional_parts
from ..contract.tensors import Headers
from ..controller.folder import RunFolder, folder_busy
from ..wire import PartWriter

MAX_PARTS = 160
"""As many guides with sound as a request may have, and references besides."""
MAX_UPLOADS = 8
"""Messages of one connection whose parts may be on their way at once."""
_MAX_MESSAGE = 2**32 - 1
_SMALLEST_TENSORS = 10
"""Bytes of the smallest safetensors file: its length and ``{}``."""
_PART_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


def check_job_id(job_id: str) -> None:
    """Check that ``job_id`` is a UUID in its usual form.

    Raises:
        RequestError: ``out_of_range``.
    """
    try:
        usual = str(uuid.UUID(job_id)) == job_id.lower()
    except ValueError:
        usual = False
    if not usual:
        raise RequestError(
            "out_of_range",
            "A job's id is a UUID.",
            field="job_id",
            value=job_id,
            remedy="Use for example 7d0b3f0a-6f0e-4a53-9a0e-0d6a3f2b1c9d.",
        )


def is_part_name(name: str) -> bool:
    """Whether a part may have this ``name``; names become file names further on."""
    return _PART_NAME.fullmatch(name) is not None


def check_announcement(submit: Submit, request: Request, *, max_body_bytes: int) -> None:
    """Check what ``submit`` says about its parts, before any of their bytes is read.

    Raises:
        RequestError: ``out_of_range``, ``bad_media`` for an empty file, or ``body_too_large``.
    """
    if submit.parts and not 1 <= submit.message <= _MAX_MESSAGE:
        raise _bad("message", submit.message, "A message with parts has a number from 1 to 2^32 - 1.")
    if len(submit.parts) > MAX_PARTS:
        raise _bad("parts", len(submit.parts), f"A message has at most {MAX_PARTS} parts.")
    names, files = [part.name for part in submit.parts], file_parts(request)
    for index, part in enumerate(submit.parts):
        if not is_part_name(part.name) or names.index(part.name) != index:
            message = "A part's name is of letters, digits and '_', at most 64, and unique in its message."
            raise _bad(f"parts[{index}].name", part.name, message)
        if part.bytes == 0 and part.name in files:
            raise empty_file(part.name, request)
        smallest = 1 if part.name in files else _SMALLEST_TENSORS
        if part.bytes < smallest:
            raise _bad(f"parts[{index}].bytes", part.bytes, f"A part of safetensors has at least {smallest} bytes.")
        if not re.fullmatch("[0-9a-fA-F]{64}", part.sha256):
            raise _bad(f"parts[{index}].sha256", part.sha256, "A sha256 is 64 hexadecimal digits.")
    total = sum(part.bytes for part in submit.parts)
    if total > max_body_bytes:
        raise too_large(total, max_body_bytes)


def too_large(total: int, limit: int) -> RequestError:
    """Return the refusal of parts of ``total`` bytes or more."""
    return RequestError(
        "body_too_large",
        f"The parts have {total} bytes, the limit is {limit}.",
        field="parts",
        value=total,
        remedy="Send less, or raise --max-body-bytes.",
    )


def empty_file(name: str, request: Request) -> RequestError:
    """Return the refusal of a file of no bytes."""
    path = next(path for path, media in media_of(request) if media.part == name)
    return RequestError(
        "bad_media",
        f"The file of {path} is empty.",
        field=f"request.{path}",
        value=name,
        remedy="Send a picture, clip or sound.",
    )


def _bad(field: str, value: object, message: str) -> RequestError:
    return RequestError("out_of_range", message, field=field, value=value, remedy="Correct the announcement.")


def check_room(total: int, run_folder: RunFolder) -> None:
    """Check that ``total`` bytes fit the run folder.

    Raises:
        EngineBusyError: ``queue_full``.
    """
    free = run_folder.free_bytes()
    if total > free:
        raise EngineBusyError(
            "queue_full",
            f"The run folder has {free} bytes left, the parts need {total}.",
            field="parts",
            value=total,
            remedy="Try again when other jobs are done, or give --run-dir a larger folder.",
        )


def read_headers(files: Mapping[str, Path], request: Request) -> Headers:
    """Return the safetensors headers of complete parts; none for files, and for what the request does not take.

    Args:
        files: part name → its file.

    Raises:
        RequestError: ``bad_tensor``, or ``bad_media`` for an empty file.
        EngineBusyError: ``queue_full`` when a file cannot be opened just now.
    """
    headers: dict[str, Mapping[str, TensorInfo]] = {}
    plain = file_parts(request)
    taken = {*input_parts(request), *optional_parts(request), *(media.part for _, media in media_of(request))}
    try:
        for name, path in files.items():
            if name in plain or (name not in taken and not isinstance(request, Echo)):
                if name in plain and path.stat().st_size == 0:
                    raise empty_file(name, request)
                headers[name] = {}
                continue
            with path.open("rb") as file:
                headers[name] = read_header(file, path.stat().st_size, field=f"parts.{name}")
    except OSError as error:
        raise folder_busy(error) from error
    return headers


class Upload:
    """The announced parts of one ``submit``; blocking methods, one thread at a time."""

    def __init__(self, submit: Submit, request: Request, run_folder: RunFolder) -> None:
        """Make a folder for the parts.

        Raises:
            EngineBusyError: ``queue_full`` when the run folder has no room for them.
        """
        check_room(sum(part.bytes for part in submit.parts), run_folder)
        self.submit = submit
        self.request = request
        self.folder = run_folder.make("upload")
        self._writers = [
            PartWriter(part, self.folder / str(index), field=f"parts.{part.name}")
            for index, part in enumerate(submit.parts)
        ]

    @property
    def complete(self) -> bool:
        """Whether all announced bytes are there."""
        return all(writer.complete for writer in self._writers)

    @property
    def inputs(self) -> dict[str, Path]:
        """Part name → file."""
        return {writer.part.name: writer.path for writer in self._writers}

    def write(self, part: int, offset: int, payload: memoryview) -> None:
        """Write one slice.

        Raises:
            RequestError: ``bad_tensor``.
            EngineBusyError: ``queue_full`` when the disk is.
        """
        if part >= len(self._writers):
            raise RequestError(
                "bad_tensor",
                f"There is no part {part} in this message.",
                field="frame.part",
                value=part,
                remedy=f"Parts are numbered 0 to {len(self._writers) - 1}, in the order of 'parts'.",
            )
        try:
            self._writers[part].write(offset, payload)
        except OSError as error:
            raise folder_busy(error) from error

    def finish(self) -> Headers:
        """Check the hashes and read the headers of the complete files.

        Raises:
            RequestError: ``bad_checksum`` or ``bad_tensor``.
            EngineBusyError: ``queue_full`` when a file cannot be opened just now.
        """
        for writer in self._writers:
            writer.finish()
        return read_headers(self.inputs, self.request)
