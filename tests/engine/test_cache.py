"""The result cache without ranks: keys that hold all that changes a result, and files that stay within bounds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from engine.cache import Entry, Piece, ResultCache
from engine.cache_keys import Keys, keys_of
from engine.contract.edits import MaskFile, SourceEdit, Span
from engine.contract.media import Condition, EncodedReference, Guide, Keyframe, Media, Reference, Source
from engine.contract.messages import Output, Part, Warned
from engine.contract.requests import REQUESTS, Decode, Denoise, EncodeMedia, EncodePrompt, Generate, Request

A, B = Media("a"), Media("b")
KEYFRAMES = (Keyframe(A),)
REFERENCES = (Reference("image", A),)
GUIDES = (Guide(0, media=A),)
EDIT = SourceEdit(Source(A), 22)
Table = dict[str, tuple[Any, set[str]]]

ENCODE_PROMPT: Table = {
    "prompt": ("a fox", {"whole", "text"}),
    "width": (64, {"whole"}),
    "height": (64, {"whole"}),
    "frames": (39, {"whole", "conditions"}),
    "keyframes": ((Keyframe(A, "last"),), {"whole", "conditions"}),
    "references": (REFERENCES, {"whole", "text", "conditions"}),
}
ENCODE_MEDIA: Table = {
    "width": (64, set()),
    "height": (64, set()),
    "frames": (39, {"whole"}),
    "guides": ((Guide(5, media=A),), {"whole"}),
    "source": (Source(A), {"whole"}),
}
DENOISE: Table = {
    "width": (64, {"whole"}),
    "height": (64, {"whole"}),
    "frames": (39, {"whole"}),
    "steps": (2, {"whole"}),
    "seed": (1, {"whole"}),
    "pad_seq_len": (128, {"whole"}),
    "conditions": ((Condition(0),), {"whole"}),
    "references": ((EncodedReference("image"),), {"whole"}),
    "num_outputs": (2, {"whole"}),
    "video_mask": (0.5, {"whole"}),
    "audio_mask": (0.5, {"whole"}),
}
DECODE: Table = {"container": ("mp4", {"whole"}), "frame_dtype": ("float32", {"whole"})}
GENERATE: Table = {
    "prompt": ("a fox", {"text"}),
    "seconds": (2.0, set()),
    "frames": (39, {"conditions"}),
    "width": (64, {"source"}),
    "height": (64, {"source"}),
    "steps": (2, set()),
    "seed": (1, set()),
    "container": ("tensors", set()),
    "frame_dtype": ("float32", set()),
    "pad_seq_len": (128, set()),
    "keyframes": ((Keyframe(A, "last"),), {"conditions"}),
    "references": (REFERENCES, {"text", "conditions"}),
    "guides": (GUIDES, {"conditions"}),
    "num_outputs": (2, set()),
    "edit": (dataclasses.replace(EDIT, frames=39), {"source"}),
}
EDIT_FIELDS: Table = {
    "source": (Source(B), set()),
    "frames": (39, {"source"}),
    "video_mask": (0.5, set()),
    "video_mask_media": (B, set()),
    "audio_mask": (0.5, set()),
    "audio_spans": ((Span(0.0, 1.0),), set()),
    "document": ({"version": 1}, set()),
    "files": ((MaskFile("m", B),), set()),
    "before": (1.0, set()),
    "after": (1.0, set()),
}
"""The clip's bytes, as they were prepared, are in the keys; its masks are read after it was encoded."""
CASES: list[tuple[Request, dict[str, str], Table]] = [
    (EncodePrompt("encode_prompt", "a cat", frames=22, keyframes=KEYFRAMES), {"keyframes.0": "1"}, ENCODE_PROMPT),
    (EncodeMedia("encode_media", 32, 32, 22, guides=GUIDES), {"guides.0": "1"}, ENCODE_MEDIA),
    (Denoise("denoise", 32, 32, 22), {"conditioning": "1", "latents": "2", "masks": "3"}, DENOISE),
    (Decode("decode"), {"latents": "1"}, DECODE),
    (
        Generate("generate", "a cat", frames=22, keyframes=KEYFRAMES, edit=EDIT),
        {"keyframes.0": "1", "source": "2", "masks": "3"},
        GENERATE,
    ),
]
"""A request, the hashes of its parts, and for each of its fields another value and which of its keys that changes."""


def flat(keys: Keys) -> dict[str, str]:
    return {**({"whole": keys.whole} if keys.whole else {}), **keys.stages}


def hashes_for(request: Request, parts: Mapping[str, str]) -> dict[str, str]:
    """Return the hashes of what ``request`` brings, of which ``parts`` names some."""
    named = dict(parts)
    for group in ("keyframes", "references", "guides"):
        if not isinstance(request, Denoise):
            named |= {f"{group}.{i}": "1" for i in range(len(getattr(request, group, ())))}
    has_source = getattr(request, "source", None) or getattr(request, "edit", None)
    return {"source": "1", **named} if has_source else named


def test_every_request_is_in_the_table() -> None:
    assert {type(request) for request, _, _ in CASES} | {REQUESTS["echo"]} == set(REQUESTS.values())


@pytest.mark.parametrize(("request_", "parts", "table"), CASES, ids=lambda value: getattr(value, "task", ""))
def test_a_field_changes_the_keys_of_what_reads_it_and_no_other(
    request_: Request, parts: dict[str, str], table: Table
) -> None:
    assert set(table) == {field.name for field in dataclasses.fields(request_)} - {"task"}, "say what a new field does"
    before = flat(keys_of(request_, parts, scope="s"))
    for name, (value, changed) in table.items():
        other = dataclasses.replace(request_, **{name: value})
        after = flat(keys_of(other, hashes_for(other, parts), scope="s"))
        assert {kind for kind in before if before[kind] != after.get(kind)} == changed, name


READ: dict[str, dict[str, set[str]]] = {
    "encode_prompt": {"keyframes.0": {"whole", "text", "conditions"}},
    "encode_media": {"guides.0": {"whole"}},
    "denoise": {name: {"whole"} for name in ("conditioning", "latents", "masks")},
    "decode": {"latents": {"whole"}},
    "generate": {"keyframes.0": {"text", "conditions"}, "source": {"source"}, "masks": set()},
}
"""Task → its parts, and which keys read each."""


@pytest.mark.parametrize(
    ("request_", "parts"), [case[:2] for case in CASES], ids=lambda value: getattr(value, "task", "")
)
def test_other_bytes_or_other_ranks_are_another_result(request_: Request, parts: dict[str, str]) -> None:
    before = flat(keys_of(request_, parts, scope="s"))
    assert parts.keys() == READ[request_.task].keys()
    for name, readers in READ[request_.task].items():
        after = flat(keys_of(request_, {**parts, name: "other"}, scope="s"))
        assert {kind for kind in before if before[kind] != after[kind]} == readers
    after = flat(keys_of(request_, parts, scope="other"))
    assert [kind for kind in before if before[kind] == after[kind]] == []


def test_an_edit_of_the_mask_encodes_no_source_again() -> None:
    request, parts, _ = CASES[-1]
    assert isinstance(request, Generate)
    assert set(EDIT_FIELDS) == {field.name for field in dataclasses.fields(SourceEdit)}, "say what a new field does"
    before = flat(keys_of(request, parts, scope="s"))
    for name, (value, changed) in EDIT_FIELDS.items():
        other = dataclasses.replace(request, edit=dataclasses.replace(EDIT, **{name: value}))
        after = flat(keys_of(other, {**parts, "masks": "other"}, scope="s"))
        assert {kind for kind in before if before[kind] != after[kind]} == changed, name


def test_who_asks_does_not_matter_to_what_one_stage_makes() -> None:
    alone = keys_of(EncodePrompt("encode_prompt", "a cat"), {}, scope="s")
    within = keys_of(Generate("generate", "a cat", seed=7), {}, scope="s")
    assert (alone.whole, alone.stages) == (within.stages["text"], {})
    assert within.whole is None
    guides = {"guides.0": "1"}
    alone = keys_of(EncodeMedia("encode_media", 32, 32, 22, GUIDES), guides, scope="s")
    within = keys_of(Generate("generate", "a cat", frames=22, guides=GUIDES), guides, scope="s")
    assert alone.whole == within.stages["conditions"]


def test_the_order_of_what_is_shown_and_its_kind_count() -> None:
    def keys(*references: Reference, **parts: str) -> Keys:
        hashes = {f"references.{name[1:]}": value for name, value in parts.items()}
        return keys_of(EncodePrompt("encode_prompt", "a cat", frames=22, references=references), hashes, scope="s")

    two = keys(Reference("image", A), Reference("image", B), r0="1", r1="2")
    turned = keys(Reference("image", B), Reference("image", A), r0="2", r1="1")
    video = keys(Reference("video", A), Reference("image", B), r0="1", r1="2")
    for other in (turned, video):
        assert [kind for kind in flat(two) if flat(two)[kind] == flat(other)[kind]] == []


def test_nothing_of_an_echo_is_kept() -> None:
    assert flat(keys_of(REQUESTS["echo"]("echo"), {"x": "1"}, scope="s")) == {}  # type: ignore[call-arg]


# --- files -----------------------------------------------------------------------------------------------------------


class Shelf:
    """A cache of 1000 bytes in a folder with plenty of room, and jobs' files beside it."""

    def __init__(self, folder: Path, *, capacity: int = 1000, free: int = 10**6) -> None:
        self.kept, self.jobs = folder / "cache", folder / "jobs"
        self.kept.mkdir()
        self.jobs.mkdir()
        self.free = free
        self.cache = ResultCache(self.kept, capacity=capacity, free_bytes=lambda: self.free)

    def entry(self, name: str, size: int = 200) -> Entry:
        file = self.jobs / name
        file.write_bytes(name.encode().ljust(size))
        part = Part("latents", size, "0" * 64)
        return Entry((Piece(Output("latents", 0, True, "safetensors", parts=(part,)), file),), {"of": name})

    def add(self, name: str, size: int = 200) -> None:
        self.cache.add(name, self.entry(name, size))

    def known(self, *names: str) -> list[str]:
        return [name for name in names if name in self.cache]


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


def test_a_result_comes_back_with_its_bytes_facts_and_warnings(shelf: Shelf, tmp_path: Path) -> None:
    warned = dataclasses.replace(shelf.entry("a"), warnings=(Warned("nan_result", "black"),))
    shelf.cache.add("a", warned)
    warned.pieces[0].file.unlink()
    found = shelf.cache.take("a", tmp_path)
    assert found is not None
    assert found.pieces[0].file.parent == tmp_path
    assert found.pieces[0].file.read_bytes() == b"a".ljust(200)
    assert (found.facts, found.warnings, found.pieces[0].output) == (
        {"of": "a"},
        warned.warnings,
        warned.pieces[0].output,
    )
    assert shelf.cache.take("b", tmp_path) is None


def test_what_was_not_used_for_longest_goes_first(shelf: Shelf, tmp_path: Path) -> None:
    for name in "abcde":
        shelf.add(name)
    shelf.cache.take("a", tmp_path)
    shelf.add("f")
    assert shelf.known(*"abcdef") == ["a", "c", "d", "e", "f"]
    assert (shelf.cache.bytes, len(shelf.cache), len(list(shelf.kept.iterdir()))) == (1000, 5, 5)


def test_a_file_that_is_read_survives_its_eviction(shelf: Shelf, tmp_path: Path) -> None:
    shelf.add("a")
    found = shelf.cache.take("a", tmp_path)
    shelf.cache.clear()
    assert found is not None
    assert found.pieces[0].file.read_bytes() == b"a".ljust(200)
    assert (shelf.cache.bytes, len(shelf.cache), list(shelf.kept.iterdir())) == (0, 0, [])


def test_one_result_takes_a_quarter_at_most(shelf: Shelf) -> None:
    shelf.add("a", 250)
    shelf.add("b", 251)
    assert shelf.known("a", "b") == ["a"]


def test_a_small_folder_is_left_to_the_jobs(shelf: Shelf) -> None:
    shelf.add("a")
    shelf.add("b")
    shelf.free = 1600
    shelf.add("c", 100)
    assert (shelf.known("a", "b", "c"), shelf.cache.bytes) == (["a", "b", "c"], 500)
    shelf.free = 700
    shelf.add("d", 50)
    assert (shelf.known("a", "b", "c", "d"), shelf.cache.bytes) == (["c", "d"], 150)


def test_what_was_deleted_meanwhile_is_not_kept(shelf: Shelf) -> None:
    entry = shelf.entry("a")
    gone = Piece(entry.pieces[0].output, shelf.jobs / "gone")
    shelf.cache.add("a", dataclasses.replace(entry, pieces=(*entry.pieces, gone)))
    shelf.cache.add("b", Entry((), {}))
    assert (len(shelf.cache), shelf.cache.bytes, list(shelf.kept.iterdir())) == (0, 0, [])


def test_a_result_that_cannot_be_linked_counts_as_unknown(shelf: Shelf, tmp_path: Path) -> None:
    shelf.add("a")
    assert shelf.cache.take("a", tmp_path / "nowhere") is None


def test_a_result_is_kept_once(shelf: Shelf) -> None:
    shelf.add("a")
    shelf.add("a")
    assert (shelf.cache.bytes, len(list(shelf.kept.iterdir()))) == (200, 1)
