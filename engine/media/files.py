"""Opening files that somebody sent: as what they are, whatever their name, and nothing but them.

Promise: a file is read by its content. Of picture formats only those in `_PICTURES` are tried (none of them runs
another program), of containers only those in `_CONTAINERS`: no playlist, no concatenation, no image sequence, which
would open other files; and a container may use no protocol but ``file``. `reading` turns what the readers raise into
a `RequestError`: ``bad_media``, or ``media_limit`` for what does not fit into memory.
"""

from __future__ import annotations

import logging
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import av
from PIL import Image, UnidentifiedImageError
from safetensors import SafetensorError

from ..contract.errors import EngineError, RequestError
from ..contract.media_limits import check_pixels

logger = logging.getLogger(__name__)

Image.init()
Image.MAX_IMAGE_PIXELS = None  # `open_picture` looks at the size, with an error that names the field

_PICTURES = tuple({"PNG", "JPEG", "MPO", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "PPM"} & set(Image.OPEN))
_CONTAINERS = (
    "mov,matroska,avi,flv,asf,mpeg,mpegts,mpegvideo,mxf,nut,ogg,h264,hevc,ivf,gxf,dv,"
    "wav,w64,mp3,flac,aac,ac3,eac3,dts,aiff,au,caf,amr,ape,tta,wv"
)
_HEIF = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
_OPTIONS = {"protocol_whitelist": "file", "format_whitelist": _CONTAINERS}
_BROKEN = (
    av.FFmpegError, OSError, EOFError, ValueError, SyntaxError, struct.error, zlib.error, SafetensorError,
    OverflowError, LookupError, TypeError,
)  # fmt: skip
"""What the readers raise for malformed data."""


@contextmanager
def reading(field: str) -> Iterator[None]:
    """Read media inside: every failure names ``field``.

    Raises:
        RequestError: ``bad_media`` or ``media_limit``; what is an `EngineError` already passes through.
    """
    try:
        yield
    except EngineError:
        raise
    except MemoryError as error:
        raise RequestError(
            "media_limit",
            "This file unpacks to more than fits into memory.",
            field=field,
            remedy="Send a smaller picture or a shorter clip.",
        ) from error
    except _BROKEN as error:
        logger.warning("%s cannot be read", field, exc_info=error)
        raise bad_media(f"This file cannot be read: {_reason(error)}.", field=field) from error


def bad_media(message: str, *, field: str) -> RequestError:
    """Return the error for a file that is damaged or of another kind than its field needs."""
    remedy = "Send a whole picture, video or sound file of a usual format (PNG, JPEG, MP4, WebM, WAV, FLAC)."
    return RequestError("bad_media", message, field=field, remedy=remedy)


def _reason(error: BaseException) -> str:
    """Return why, without the file's path, which is the engine's own business."""
    if isinstance(error, UnidentifiedImageError):
        return "not a picture"
    if isinstance(error, OSError | av.FFmpegError) and error.strerror:
        return str(error.strerror)
    return str(error).strip().rstrip(".") or type(error).__name__


def open_picture(path: Path, *, field: str) -> Image.Image | None:
    """Return the picture or animation in a file, its pixels not decoded yet; None when it is neither.

    Raises:
        RequestError: ``media_limit`` when it has too many pixels.
    """
    try:
        image = Image.open(path, formats=_PICTURES)
    except UnidentifiedImageError:
        return None
    check_pixels(*image.size, field=field)
    return image


def open_container(path: Path) -> Any:
    """Return the open PyAV container of a video or sound file; close it.

    Raises:
        ValueError: for a HEIF picture, whose container FFmpeg opens, but of whose tiles it would give one.
    """
    with path.open("rb") as file:
        start = file.read(12)
    if start[4:8] == b"ftyp" and start[8:] in _HEIF:
        raise ValueError("HEIC pictures are not supported; save it as JPEG or PNG")
    return av.open(str(path), options=_OPTIONS, metadata_errors="ignore")


def known(stream: Any) -> Any:
    """Return ``stream`` of a container, whose codec FFmpeg has.

    Raises:
        ValueError: when it does not know it.
    """
    if stream.codec_context is None:
        raise ValueError("its codec is not known")
    return stream
