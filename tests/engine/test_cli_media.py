"""The media options of ``generate``: what they make of a request, and what they refuse before the engine is asked."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import av
import pytest

from engine.cli.client import numbered
from engine.cli.edit import add_edit_arguments, edit_of_arguments
from engine.cli.files import in_options
from engine.cli.media import add_media_arguments, media_of_arguments
from engine.contract.errors import ConfigError
from engine.contract.requests import parse_request
from tests.engine.test_cli import QUICK, command
from tests.support.engine_process import EngineProcess
from tests.support.media_files import encoded, gradient


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a few files."""
    for name in ("a.png", "b.png", "v.mp4", "s.wav", "odd@name.png", "odd@1.png"):
        (tmp_path / name).write_bytes(b"x")
    os.mkfifo(tmp_path / "pipe.mp4")
    return tmp_path


def read(folder: Path, *words: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the request's fields and part name → file name; a word with a dot is a file in ``folder``."""
    parser = argparse.ArgumentParser()
    add_media_arguments(parser)
    given = [str(folder / word) if "." in word and not word.startswith("-") else word for word in words]
    fields, parts = media_of_arguments(parser.parse_args(given))
    parse_request({"task": "generate", "prompt": "x", **fields})
    return fields, {name: path.name for name, path in parts.items()}


def test_without_media_the_request_has_none(folder: Path) -> None:
    assert read(folder) == ({}, {})


def test_the_first_frame_comes_first_however_it_stands(folder: Path) -> None:
    fields, parts = read(folder, "--last-frame", "b.png", "--first-frame", "a.png")
    assert [(keyframe["at"], parts[keyframe["media"]["part"]]) for keyframe in fields["keyframes"]] == [
        ("first", "a.png"),
        ("last", "b.png"),
    ]


def test_references_of_all_kinds_keep_the_order_in_which_they_stand(folder: Path) -> None:
    words = ("--ref-audio", "s.wav", "--ref-image", "b.png", "--ref-video", "v.mp4", "--ref-image", "a.png")
    fields, parts = read(folder, *words, "--reference-size", "match")
    found = [(entry["kind"], parts[entry["media"]["part"]]) for entry in fields["references"]]
    assert found == [("audio", "s.wav"), ("image", "b.png"), ("video", "v.mp4"), ("image", "a.png")]
    assert {entry["size"] for entry in fields["references"]} == {"match"}
    assert "size" not in read(folder, *words)[0]["references"][0]


@pytest.mark.parametrize(
    ("word", "file", "place"),
    [
        ("a.png", "a.png", {}),
        ("a.png@1.5", "a.png", {"seconds": 1.5}),
        ("a.png@3", "a.png", {"seconds": 3.0}),
        ("a.png@.5", "a.png", {"seconds": 0.5}),
        ("a.png@0", "a.png", {"seconds": 0.0}),
        ("a.png@#36", "a.png", {"frame": 36}),
        ("a.png@#-22", "a.png", {"frame": -22}),
        ("odd@name.png", "odd@name.png", {}),
        ("odd@name.png@2", "odd@name.png", {"seconds": 2.0}),
    ],
)
def test_a_guides_place_is_seconds_or_a_frame(folder: Path, word: str, file: str, place: dict[str, Any]) -> None:
    for flag, field in (("--guide", "media"), ("--guide-audio", "audio")):
        fields, parts = read(folder, flag, word)
        [guide] = fields["guides"]
        assert parts[guide.pop(field)["part"]] == file
        assert guide == place


def test_guides_of_both_kinds_keep_their_order(folder: Path) -> None:
    fields, parts = read(folder, "--guide-audio", "s.wav@1", "--guide", "a.png@2", "--guide", "a.png@3")
    assert [next(name for name in ("media", "audio") if name in guide) for guide in fields["guides"]] == [
        "audio",
        "media",
        "media",
    ]
    assert sorted(parts.values()) == ["a.png", "a.png", "s.wav"]


@pytest.mark.parametrize(
    ("words", "field", "told"),
    [
        (("--first-frame", "no.png"), "--first-frame", "cannot be read"),
        (("--ref-video", "no.mp4"), "--ref-video", "cannot be read"),
        (("--guide", "no.png@2"), "--guide", "cannot be read"),
        (("--guide", "a.png@soon"), "--guide", "@#36"),
        (("--guide", "a.png@-22"), "--guide", "@#-22"),
        (("--guide-audio", "s.wav@1:30"), "--guide-audio", "no place"),
        (("--guide", "a.png@"), "--guide", "no place"),
        (("--ref-image", "."), "--ref-image", "folder"),
        (("--ref-video", "pipe.mp4"), "--ref-video", "not a regular file"),
        (("--guide", "/dev/zero@1"), "--guide", "not a regular file"),
        (("--reference-size", "max"), "--reference-size", "--ref-image"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_the_engine_is_asked(
    folder: Path, words: tuple[str, ...], field: str, told: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read(folder, *words)
    assert (caught.value.code, caught.value.field) == ("config_bad_value", field)
    assert told in str(caught.value)


def test_the_engines_words_name_options_and_files_instead_of_places_in_the_request(folder: Path) -> None:
    parser = argparse.ArgumentParser()
    add_media_arguments(parser)
    add_edit_arguments(parser)
    files = {name: str(folder / name) for name in ("a.png", "b.png", "v.mp4", "s.wav")}
    words = ("--last-frame", files["b.png"], "--ref-audio", files["s.wav"], "--ref-image", files["a.png"])
    edit = ("--source-video", files["v.mp4"], "--source-audio", files["s.wav"], "--guide", f"{files['a.png']}@2")
    arguments = parser.parse_args([*words, *edit])
    media, parts = media_of_arguments(arguments)
    edited, clips = edit_of_arguments(arguments)

    def told(text: str) -> str:
        return in_options(text, {**media, **edited}, {**parts, **clips}).replace(f"{folder}/", "")

    assert told("request.keyframes[0].media") == "--last-frame b.png"
    assert (
        told("references[1] keeps 9x9; references[0].media too.")
        == "--ref-image a.png keeps 9x9; --ref-audio s.wav too."
    )
    assert told("request.guides[0].seconds") == "--guide a.png"
    assert told("request.edit.source.media") == "--source-video v.mp4"
    assert told("request.edit.source.audio") == "--source-audio s.wav"
    for text in ("request.references[2].media", "request.edit.frames", "Use guides. The edit. It", "request.seconds"):
        assert told(text) == text


def test_several_files_are_numbered_before_their_suffix(tmp_path: Path) -> None:
    assert [path.name for path in numbered(tmp_path / "a.b.mp4", 2)] == ["a.b-1.mp4", "a.b-2.mp4"]
    assert [path.name for path in numbered(tmp_path / "a", 2)] == ["a-1", "a-2"]
    assert [path.name for path in numbered(tmp_path / "a.mp4", 1)] == ["a.mp4"]


@pytest.mark.ranks
class TestWithAnEngine:
    """Commands against the shared engine."""

    def test_frames_and_guides_of_files_make_several_videos(self, engine: EngineProcess, tmp_path: Path) -> None:
        (tmp_path / "a.png").write_bytes(encoded(gradient(32, 64)))
        target = tmp_path / "boat.mp4"
        words = ("--first-frame", str(tmp_path / "a.png"), "--guide", f"{tmp_path / 'a.png'}@#-1", "--num-outputs", "2")
        short = ("--prompt", "a boat", "--frames", "5", "--steps", "1", "-o", str(target))
        done = command("generate", "--url", engine.url, *short, *words)
        made = [tmp_path / "boat-1.mp4", tmp_path / "boat-2.mp4"]
        assert (done.returncode, done.stdout.split()) == (0, list(map(str, made))), done.stderr
        for path in made:
            with av.open(str(path)) as container:
                video = container.streams.video[0]
                assert video.width == 2 * video.height
        assert made[0].read_bytes() != made[1].read_bytes()
        assert not target.exists()

    def test_a_file_that_is_no_picture_is_the_callers_fault(self, engine: EngineProcess, tmp_path: Path) -> None:
        (tmp_path / "a.png").write_bytes(b"no picture")
        done = command("generate", "--url", engine.url, *QUICK, "--first-frame", str(tmp_path / "a.png"))
        assert done.returncode == 2
        assert f"[--first-frame {tmp_path / 'a.png'}]" in done.stderr
