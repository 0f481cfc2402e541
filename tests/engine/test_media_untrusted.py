"""What nobody should send: damaged, disguised and hostile media each end in a typed error or the right result."""

from __future__ import annotations

import io
import json
import os
import random
import struct
import subprocess
import sys
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from tests.support.media_files import (
    MediaRun,
    encoded,
    gradient,
    guides_request,
    keyframes_request,
    noise,
    references_request,
    source_request,
    tone,
    write_clip,
    write_sound,
)
from tests.support.side_folder import with_media_libraries

CALLERS_FAULT = ("bad_media", "media_limit", "bad_aspect", "bad_tensor")


def source(folder: Path, data: Any) -> MediaRun:
    return MediaRun(folder, source_request(), {"a": data})


def clip_bytes(folder: Path, *, name: str = "good.mp4", front: bool = False) -> bytes:
    """Return a good clip with sound; ``front``: its index stands before its data."""
    path = write_clip(
        folder / name,
        noise(48, 64, frames=48),
        sound=tone(2, 32_000),
        sound_rate=32_000,
        container={"movflags": "+faststart"} if front else {},
    )
    return path.read_bytes()


@pytest.mark.parametrize("data", [b"", b"\0" * 4096, b"hello", random.Random(0).randbytes(5000), b"\xff" * 100])
def test_what_is_no_medium_is_refused_in_every_place(data: bytes, tmp_path: Path) -> None:
    media = {"media": {"part": "a"}}
    requests = [
        (source_request(), "request.source.media"),
        (keyframes_request(media), "request.keyframes[0].media"),
        (guides_request({"audio": {"part": "a"}}), "request.guides[0].audio"),
        *((references_request({"kind": kind, **media}), "request.references[0].media") for kind in ("image", "video")),
    ]
    for request, field in requests:
        error = MediaRun(tmp_path, request, {"a": data}).error
        assert (error["code"], error["field"]) == ("bad_media", field)
        assert str(tmp_path) not in error["message"]


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
@pytest.mark.parametrize("front", [False, True])
def test_a_clip_that_was_cut_off_is_refused(share: float, front: bool, tmp_path: Path) -> None:
    data = clip_bytes(tmp_path, front=front)
    error = source(tmp_path, data[: int(share * len(data))]).error
    assert (error["code"], error["field"]) == ("bad_media", "request.source.media")


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "TIFF"])
def test_a_picture_that_was_cut_off_is_refused(kind: str, tmp_path: Path) -> None:
    data = encoded(noise(64, 64), kind)
    assert source(tmp_path, data[: len(data) // 2]).error["code"] == "bad_media"


def test_a_container_without_frames_is_refused(tmp_path: Path) -> None:
    data = clip_bytes(tmp_path, name="good.mkv")
    cluster = data.index(b"\x1f\x43\xb6\x75")  # where the first frames start
    assert source(tmp_path, data[:cluster]).error["code"] == "bad_media"


@pytest.mark.parametrize("name", ["clip.jpg", "clip.wav", "concat:a|b", "http:x"])
def test_a_files_name_says_nothing(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(clip_bytes(tmp_path))
    assert source(tmp_path, path).facts["frames"] == 56
    path.write_bytes(encoded(gradient(64, 64)))
    np.testing.assert_array_equal(source(tmp_path, path).part("source")["frames"][0], gradient(64, 64))


def test_a_file_of_another_kind_says_so(tmp_path: Path) -> None:
    sound = write_sound(tmp_path / "a.wav", tone(3, 32_000), 32_000)
    assert "no pictures" in source(tmp_path, sound).error["message"]
    request = references_request({"kind": "image", "media": {"part": "b"}}, {"kind": "audio", "media": {"part": "b"}})
    error = MediaRun(tmp_path, request, {"b": encoded(noise(64, 64))}).error
    assert error["field"] == "request.references[1].media"
    assert "no sound" in error["message"]


def test_a_heic_picture_is_refused_rather_than_one_of_its_tiles_taken(tmp_path: Path) -> None:
    data = b"\x00\x00\x00\x18ftypheic" + clip_bytes(tmp_path)[12:]
    assert "HEIC" in source(tmp_path, data).error["message"]


def test_a_codec_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    sound = write_sound(tmp_path / "a.wav", tone(3, 32_000), 32_000).read_bytes()
    place = sound.index(b"fmt ") + 8
    unknown = sound[:place] + b"\x34\x12" + sound[place + 2 :]
    assert MediaRun(tmp_path, guides_request({"audio": {"part": "a"}}), {"a": unknown}).error["code"] == "bad_media"
    clip = clip_bytes(tmp_path).replace(b"avc1", b"qqqq")
    assert source(tmp_path, clip).error["code"] == "bad_media"


PLAYLISTS = {
    "hls": "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n{path}\n#EXT-X-ENDLIST\n",
    "concat": "ffconcat version 1.0\nfile '{path}'\n",
    "smil": '<smil><body><video src="{path}"/></body></smil>',
    "dash": '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011"><Period><AdaptationSet>'
    '<Representation id="1"><BaseURL>{path}</BaseURL></Representation></AdaptationSet></Period></MPD>',
    "sdp": "v=0\no=- 0 0 IN IP4 127.0.0.1\nc=IN IP4 127.0.0.1\nm=video 5004 RTP/AVP 96\na=rtpmap:96 H264/90000\n",
    "svg": '<svg xmlns="http://www.w3.org/2000/svg" width="64" height="64"><image href="{path}"/></svg>',
    "url": "[InternetShortcut]\nURL=file://{path}\n",
}


@pytest.mark.parametrize("kind", PLAYLISTS)
def test_a_file_that_names_others_opens_none_of_them(kind: str, tmp_path: Path) -> None:
    (tmp_path / "secret.mp4").write_bytes(clip_bytes(tmp_path))
    for path in (str(tmp_path / "secret.mp4"), "secret.mp4"):
        text = PLAYLISTS[kind].replace("{path}", path)
        for request in (source_request(), guides_request({"audio": {"part": "a"}})):
            assert MediaRun(tmp_path, request, {"a": text.encode()}).error["code"] == "bad_media"


def test_a_picture_that_would_fill_the_memory_is_refused_by_its_header(tmp_path: Path) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    for side in (12_000, 60_000):
        header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
        bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 10**6))
        error = source(tmp_path, bomb + chunk(b"IEND", b"")).error
        assert (error["code"], error["field"]) == ("media_limit", "request.source.media")


def test_a_sound_files_cover_is_no_video(tmp_path: Path) -> None:
    path = tmp_path / "a.mp3"
    with av.open(str(path), "w") as output:
        audio = output.add_stream("libmp3lame", rate=32_000, layout="mono")
        cover = output.add_stream("mjpeg", rate=1)
        cover.width = cover.height = 64
        cover.pix_fmt = "yuvj420p"
        cover.disposition = av.stream.Disposition.attached_pic
        output.mux(cover.encode(av.VideoFrame.from_ndarray(noise(64, 64), format="rgb24")))
        frame = av.AudioFrame.from_ndarray(tone(3, 32_000), format="fltp", layout="mono")
        frame.sample_rate = 32_000
        resampler = av.AudioResampler(format="fltp", layout="mono", rate=32_000, frame_size=audio.frame_size)
        for piece in [*resampler.resample(frame), *resampler.resample(None)]:
            output.mux(audio.encode(piece))
        output.mux([*audio.encode(None), *cover.encode(None)])
    assert "no pictures" in source(tmp_path, path).error["message"]
    assert MediaRun(tmp_path, guides_request({"audio": {"part": "a"}}), {"a": path}).facts["conditions"]


def test_decoded_media_of_a_wrong_shape_are_refused(tmp_path: Path) -> None:
    frames = {"media": {"part": "a", "format": "frames"}}
    empty = MediaRun(tmp_path, guides_request(frames), {"a": {"frames": noise(64, 64, frames=0)}})
    assert empty.error["code"] == "bad_media"
    sound = guides_request({"audio": {"part": "a", "format": "audio"}})
    for waveform in (np.zeros((9, 100), np.float32), np.zeros((1, 0), np.float32)):
        assert MediaRun(tmp_path, sound, {"a": {"waveform": waveform}}).error["code"] == "bad_media"


def samples(folder: Path) -> list[bytes]:
    """Return good files of several formats."""
    animation = io.BytesIO()
    images = [Image.fromarray(noise(40, 40, seed=seed)) for seed in range(5)]
    images[0].save(animation, "GIF", save_all=True, append_images=images[1:])
    return [
        clip_bytes(folder),
        clip_bytes(folder, name="good.mkv"),
        clip_bytes(folder, name="good.avi"),
        write_sound(folder / "good.wav", tone(2, 32_000), 32_000).read_bytes(),
        write_sound(folder / "good.flac", tone(2, 32_000), 32_000, "flac").read_bytes(),
        animation.getvalue(),
        *(encoded(noise(40, 40), kind) for kind in ("PNG", "JPEG", "TIFF", "WEBP", "BMP")),
    ]


def test_damaged_files_never_end_in_anything_but_a_result_or_a_callers_fault(tmp_path: Path) -> None:
    chance = random.Random(1)
    files = samples(tmp_path)
    seen: set[str] = set()
    for index in range(150):
        data = bytearray(files[index % len(files)])
        for _ in range(chance.choice((1, 3, 30))):
            data[chance.randrange(min(len(data), chance.choice((64, 600, len(data)))))] = chance.randrange(256)
        if chance.random() < 0.3:
            del data[chance.randrange(len(data)) :]
        request = chance.choice(
            [source_request(), keyframes_request({"media": {"part": "a"}}), guides_request({"audio": {"part": "a"}})]
        )
        result = MediaRun(tmp_path, request, {"a": bytes(data)}).result
        seen.add(result["error"]["code"] if "error" in result else "made")
        assert "error" not in result or result["error"]["code"] in CALLERS_FAULT, (index, result)
    assert {"made", "bad_media"} <= seen


def test_a_long_clip_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "a.mp4", [gradient(256, 256)] * 90, options={"preset": "ultrafast"})
    source(tmp_path, path)
    tracemalloc.start()
    run = source(tmp_path, path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert run.part("source")["frames"].nbytes == 90 * 256 * 256 * 3
    assert peak < 20 * 256 * 256 * 3


def run_program(folder: Path, run: MediaRun, environment: dict[str, str] | None) -> tuple[dict[str, Any], str]:
    """Run the job of ``run`` as the program; return its result and what it printed."""
    job = folder / "job.json"
    job.write_text(json.dumps({**run.job, "parent": os.getpid()}))
    done = subprocess.run(
        [sys.executable, "-m", "engine.media", str(job)],
        capture_output=True, text=True, timeout=60, check=True, env=environment,
    )  # fmt: skip
    result: dict[str, Any] = json.loads(Path(run.job["result"]).read_text())
    return result, done.stdout


def test_the_program_names_each_medium_and_writes_what_the_function_returns(tmp_path: Path) -> None:
    sound = write_sound(tmp_path / "a.wav", tone(3, 44_100), 44_100)
    request = references_request(
        {"kind": "image", "media": {"part": "b"}}, {"kind": "audio", "media": {"part": "a"}}, frames=56
    )
    run = MediaRun(tmp_path, request, {"a": sound, "b": encoded(noise(64, 64))})
    made, printed = run_program(tmp_path, run, with_media_libraries())
    assert printed == "references[0].media\nreferences[1].media\n"
    assert [reference["kind"] for reference in made["facts"]["references"]] == ["image", "audio"]
    assert set(made["parts"]) == {"references.0", "references.1"}
    run.job["request"]["references"] = run.job["request"]["references"][1:]
    (tmp_path / "a.wav").write_bytes(b"")
    refused, printed = run_program(tmp_path, run, None)
    assert refused["error"]["code"] == "bad_media"
    assert printed == "references[0].media\n"


def test_torch_is_loaded_only_to_resample(tmp_path: Path) -> None:
    clip = tmp_path / "good.mp4"
    clip.write_bytes(clip_bytes(tmp_path))
    run = source(tmp_path, clip)
    code = (
        f"import json, sys\nfrom engine.media import prepare\n"
        f"result = prepare.run(json.loads({json.dumps(run.job)!r}))\n"
        "assert 'error' not in result, result\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, stdout=subprocess.DEVNULL)
