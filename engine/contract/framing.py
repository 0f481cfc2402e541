"""Parts on the wire and safetensors headers, without torch or numpy.

A text frame announces parts (`messages.Part`); binary frames of at most `MAX_SLICE` bytes of payload follow, each
behind a 16-byte header: message (u32), part index (u32), offset (u64), big endian. Slices of a part come in order.
`read_header` checks a safetensors header against the real size of its bytes, so that one which lies is refused
before anything maps it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from .errors import RequestError

MAX_SLICE = 4 * 1024 * 1024 - 16
"""Largest payload of one binary frame, bytes (with its header: 4 MiB)."""
HEADER = struct.Struct(">IIQ")
MAX_HEADER_BYTES = 16_000_000
"""Longest safetensors header that is read, bytes: most of it may be texts, as the workflow of a saved latent."""
_MAX_TABLE_BYTES = 1_000_000
"""Longest header without what stands in its strings, and each string counts; so its objects stay few."""
_REMEDY = "Write it with safetensors."
_CUT_REMEDY = "Write, copy or download it once more."
_MAX_NAME = 80
_MAX_NUMBER = 2**63
DTYPE_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip


@dataclass(frozen=True)
class TensorInfo:
    """A tensor as its safetensors header describes it: ``dtype`` (``F32``), ``shape``, byte range in the data."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def pack_slice(message: int, part: int, offset: int, payload: bytes | memoryview) -> bytes:
    """Return one binary frame."""
    return HEADER.pack(message, part, offset) + bytes(payload)


def unpack_slice(frame: bytes) -> tuple[int, int, int, memoryview]:
    """Return (message, part, offset, payload) of a binary frame.

    Raises:
        RequestError: ``bad_tensor`` when the frame is shorter than its header or longer than allowed.
    """
    if len(frame) < HEADER.size or len(frame) > MAX_SLICE + HEADER.size:
        raise RequestError(
            "bad_tensor",
            "A binary frame has a 16-byte header and at most 4 MiB in all.",
            field="frame",
            value=len(frame),
            remedy="Cut parts into slices of 4 MiB - 16 bytes.",
        )
    message, part, offset = HEADER.unpack_from(frame)
    return message, part, offset, memoryview(frame)[HEADER.size :]


def slices(length: int) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of the slices of a part of ``length`` bytes; one empty slice for an empty part."""
    for start in range(0, max(length, 1), MAX_SLICE):
        yield start, min(start + MAX_SLICE, length)


def read_header(file: BinaryIO, size: int, *, field: str) -> dict[str, TensorInfo]:
    """Read and check the safetensors header of ``file`` (positioned at its start) of ``size`` bytes.

    Raises:
        RequestError: ``bad_tensor`` when the header is cut, is not JSON, or its byte ranges do not tile the data
            exactly.
    """
    prefix = file.read(8)
    length = int.from_bytes(prefix, "little") if len(prefix) == 8 else -1
    if not 2 <= length <= MAX_HEADER_BYTES:
        raise _bad(field, length, "This is not safetensors: its header's length cannot be.")
    if length > size - 8:
        message = f"The safetensors is cut: its header has {length} bytes, {max(0, size - 8)} are there."
        raise _bad(field, size, message, _CUT_REMEDY)
    table = _read_table(file.read(length), field)
    infos = [_info(name, entry, field) for name, entry in table.items() if name != "__metadata__"]
    infos.sort(key=lambda info: (info.start, info.end))
    position = 0
    for info in infos:
        if info.start != position:
            raise _bad(f"{field}.{info.name}", info.start, "The tensors' byte ranges overlap or leave a hole.")
        position = info.end
    data = size - 8 - length
    if position > data:
        message = f"The safetensors is cut: its header promises {position} bytes of data, {data} are there."
        raise _bad(field, size, message, _CUT_REMEDY)
    if position < data:
        raise _bad(field, position, f"The header describes {position} bytes of data, {data} are there.")
    return {info.name: info for info in infos}


def _read_table(header: bytes, field: str) -> dict[str, Any]:
    """Return the header's JSON object, refusing what the safetensors library would refuse later."""
    if not header.startswith(b"{"):
        raise _bad(field, None, "The safetensors header does not start with an object.")
    if len(header) > _MAX_TABLE_BYTES and _length_without_texts(header) > _MAX_TABLE_BYTES:
        raise _bad(field, len(header), "The safetensors header has too many entries.")
    try:
        table = json.loads(
            header.decode(), parse_constant=_no_constant, parse_int=_whole, object_pairs_hook=_no_duplicates
        )
        json.dumps(table, ensure_ascii=False).encode()  # a lone surrogate has no UTF-8 form
    except (ValueError, RecursionError) as error:
        raise _bad(field, None, f"The safetensors header is not JSON: {error}.") from error
    metadata = table.get("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _bad(f"{field}.__metadata__", metadata, "The metadata of safetensors are strings.")
    return dict(table)


def _length_without_texts(header: bytes) -> int:
    """Return how long JSON is when each string counts as two bytes, its quotes."""
    plain = header.replace(rb"\\", b"").replace(rb"\"", b"")
    if plain.count(b'"') > _MAX_TABLE_BYTES:
        return len(plain)
    outside = plain.split(b'"')[::2]
    return sum(len(piece) + 2 for piece in outside)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _whole(text: str) -> int:
    if text.startswith("-"):
        raise ValueError(f"{text[:_MAX_NAME]} is negative")  # safetensors refuses -0 too
    return int(text)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a name appears twice")
    return table


def _info(name: str, entry: Any, field: str) -> TensorInfo:
    path = f"{field}.{name[:_MAX_NAME]}"
    try:
        dtype, sides, (start, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        known = dtype in DTYPE_BYTES and isinstance(sides, list) and isinstance(entry["data_offsets"], list)
    except (TypeError, KeyError, ValueError) as error:
        raise _bad(path, None, "A tensor needs dtype, shape and data_offsets.") from error
    numbers = (*sides, start, end) if known else ()
    if not known or not all(type(n) is int and 0 <= n < _MAX_NUMBER for n in numbers):
        raise _bad(path, entry, "A tensor's dtype, shape or offsets cannot be.")
    count = DTYPE_BYTES[dtype]
    for dim in sides:
        count *= dim
        if count >= _MAX_NUMBER:
            raise _bad(path, entry, "A tensor's shape is larger than any memory.")
    if end - start != count:
        raise _bad(path, end - start, f"Shape and dtype make {count} bytes, the header says {end - start}.")
    return TensorInfo(name, dtype, tuple(sides), start, end)


def _bad(field: str, value: object, message: str, remedy: str = _REMEDY) -> RequestError:
    return RequestError("bad_tensor", message, field=field, value=value, remedy=remedy)
