"""Slices on the wire, and safetensors headers that lie."""

from __future__ import annotations

import io
import itertools
import json
import random
from typing import Any

import numpy as np
import pytest
import safetensors
from safetensors.numpy import save

from engine.contract import framing
from engine.contract.errors import RequestError

GOOD = save(
    {"video": np.zeros((1, 2, 3), np.float32), "audio": np.ones((4,), np.float16), "none": np.zeros((0,), np.int64)},
    metadata={"made_by": "test"},
)


def read(data: bytes) -> dict[str, framing.TensorInfo]:
    """Read the header of ``data``."""
    return framing.read_header(io.BytesIO(data), len(data), field="parts.x")


def build(table: Any, payload: bytes = b"") -> bytes:
    """Return safetensors bytes with this header, however wrong."""
    header = table if isinstance(table, bytes) else json.dumps(table).encode()
    return len(header).to_bytes(8, "little") + header + payload


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    """Return one tensor's entry."""
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_a_true_header_gives_names_types_shapes_and_ranges() -> None:
    infos = read(GOOD)
    assert {name: (info.dtype, info.shape) for name, info in infos.items()} == {
        "video": ("F32", (1, 2, 3)),
        "audio": ("F16", (4,)),
        "none": ("I64", (0,)),
    }
    assert sum(info.end - info.start for info in infos.values()) == 32


LIES: dict[str, bytes] = {
    "empty file": b"",
    "shorter than its length field": b"\x00\x01",
    "length longer than the file": (10**6).to_bytes(8, "little") + b"{}",
    "length beyond the limit": (2**63).to_bytes(8, "little") + b"{}",
    "length zero": bytes(8),
    "no object": build(b"[]"),
    "leading blank": build(b' {"a":1}'),
    "not UTF-8": build(b'{"\xff":1}'),
    "UTF-16": build("{}".encode("utf-16")),
    "not JSON": build(b"{...}"),
    "deep nesting": build(b'{"a":' + b"[" * 50_000),
    "NaN": build({"a": {**entry(), "more": float("nan")}}, bytes(8)),
    "a name twice": build(b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{}}'),
    "half a character": build(b'{"\\ud800":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', bytes(1)),
    "metadata not strings": build({"__metadata__": {"a": 1}}),
    "metadata not an object": build({"__metadata__": []}),
    "entry not an object": build({"a": 1}),
    "entry incomplete": build({"a": {"dtype": "F32"}}),
    "unknown dtype": build({"a": entry("F31")}, bytes(8)),
    "dtype a list": build({"a": entry(["F32"])}, bytes(8)),
    "negative dim": build({"a": entry(shape=(-2,))}, bytes(8)),
    "bool dim": build({"a": entry(shape=(True, 2))}, bytes(8)),
    "float dim": build({"a": entry(shape=(2.0,))}, bytes(8)),
    "minus zero": build(b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[-0,0]}}'),
    "float offset": build({"a": entry(offsets=(0.0, 8))}, bytes(8)),
    "object as shape": build({"a": entry("U8", {}, (0, 1))}, bytes(1)),
    "empty text as shape": build({"a": entry("U8", "", (0, 1))}, bytes(1)),
    "object as offsets": build(b'{"a":{"dtype":"U8","shape":[0],"data_offsets":{"0":0,"1":0}}}'),
    "text shape": build({"a": entry(shape="22")}, bytes(8)),
    "three offsets": build({"a": entry(offsets=(0, 4, 8))}, bytes(8)),
    "shape larger than bytes": build({"a": entry(shape=(3,))}, bytes(8)),
    "shape overflowing": build({"a": entry(shape=(2**62, 2**62, 2**62))}, bytes(8)),
    "huge number": build({"a": entry(shape=(10**4000,))}, bytes(8)),
    "hole": build({"a": entry(offsets=(4, 12))}, bytes(12)),
    "overlap": build({"a": entry(), "b": entry(offsets=(4, 12))}, bytes(12)),
    "bytes missing": build({"a": entry()}, bytes(7)),
    "bytes left over": build({"a": entry()}, bytes(9)),
    "reversed offsets": build({"a": entry(offsets=(8, 0))}, bytes(8)),
}


@pytest.mark.parametrize("name", LIES)
def test_a_header_that_lies_is_refused(name: str) -> None:
    with pytest.raises(RequestError) as caught:
        read(LIES[name])
    assert caught.value.code == "bad_tensor"
    assert str(caught.value.field).startswith("parts.x")
    assert caught.value.remedy
    json.dumps(caught.value.to_dict())


def test_the_file_may_be_shorter_than_it_was_announced() -> None:
    with pytest.raises(RequestError) as caught:
        framing.read_header(io.BytesIO(GOOD[:20]), len(GOOD), field="parts.x")
    assert caught.value.code == "bad_tensor"


@pytest.mark.parametrize("length", [20, 200, len(GOOD) - 1])
def test_a_file_that_was_cut_is_said_to_be_cut_with_both_lengths(length: int) -> None:
    words = r"is cut: its header (has|promises) \d+ bytes.* \d+ are there"
    with pytest.raises(RequestError, match=words) as caught:
        read(GOOD[:length])
    assert "once more" in str(caught.value.remedy)


def test_megabytes_of_text_are_read_but_not_megabytes_of_objects() -> None:
    text = json.dumps({"prompt": 'a "fox" \\ ' * 200_000})
    large = save({"x": np.zeros(1, np.float32)}, metadata={"workflow": text})
    assert len(large) > 2_000_000
    assert list(read(large)) == ["x"]
    for bulk in (b'{"a":[' + b"[]," * 600_000 + b"[]]}", b'{"a":[' + b'"",' * 600_000 + b'""]}'):
        with pytest.raises(RequestError, match="too many entries"):
            read(build(bulk))
    with pytest.raises(RequestError, match="header's length"):
        read(build(b'{"__metadata__":{"a":"' + bytes(framing.MAX_HEADER_BYTES) + b'"}}'))


def test_whatever_passes_is_read_by_the_safetensors_library_too() -> None:
    rng = random.Random(0)
    passed = 0
    for _ in range(20_000):
        data = garble(rng)
        try:
            infos = read(data)
        except RequestError:
            continue
        passed += 1
        theirs = dict(safetensors.deserialize(data))
        assert {name: list(info.shape) for name, info in infos.items()} == {
            name: tensor["shape"] for name, tensor in theirs.items()
        }
    assert passed > 100


def garble(rng: random.Random) -> bytes:
    """Return ``GOOD`` with one to three bytes changed, moved, cut or added; mostly in its header."""
    data = bytearray(GOOD)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(data))
        kind = rng.randrange(5)
        if kind == 0:
            data[at] = rng.randrange(256)
        elif kind == 1:
            data[at] = rng.choice(b'0123456789[]{}",:-. ')
        elif kind == 2:
            del data[at]
        elif kind == 3:
            data.insert(at, rng.choice(b'0123456789[]{}",:-. '))
        else:
            del data[at:]
            data.extend(b" " * 8)
    return bytes(data)


def test_a_slice_comes_back_as_it_was_packed() -> None:
    frame = framing.pack_slice(7, 2, 2**40, b"payload")
    message, part, offset, payload = framing.unpack_slice(frame)
    assert (message, part, offset, bytes(payload)) == (7, 2, 2**40, b"payload")
    assert len(frame) == 16 + 7


def test_frames_hold_up_to_four_mebibytes_with_their_header() -> None:
    assert framing.MAX_SLICE == 4 * 1024 * 1024 - 16
    for size in (0, framing.MAX_SLICE):
        assert len(framing.unpack_slice(framing.pack_slice(1, 0, 0, bytes(size)))[3]) == size


@pytest.mark.parametrize("size", [0, 15, 4 * 1024 * 1024 + 1])
def test_a_frame_of_the_wrong_size_is_refused(size: int) -> None:
    with pytest.raises(RequestError) as caught:
        framing.unpack_slice(bytes(size))
    assert (caught.value.code, caught.value.field, caught.value.value) == ("bad_tensor", "frame", size)


@pytest.mark.parametrize("length", [0, 1, framing.MAX_SLICE - 1, framing.MAX_SLICE, framing.MAX_SLICE + 1, 10**7])
def test_slices_tile_a_part_without_hole(length: int) -> None:
    cuts = list(framing.slices(length))
    assert cuts[0][0] == 0
    assert cuts[-1][1] == length
    assert all(before[1] == after[0] for before, after in itertools.pairwise(cuts))
    assert all(end - start <= framing.MAX_SLICE for start, end in cuts)
