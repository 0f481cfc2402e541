"""Pictures of every sort, as the process that reads media prepares them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from engine.contract.limits import ModelFacts
from tests.support.media_files import MediaRun, encoded, gradient, keyframes_request, noise, write_clip

SQUARE = {"width": 64, "height": 64}


def prepared(folder: Path, data: bytes | Path, **fields: Any) -> npt.NDArray[np.uint8]:
    """Return a keyframe [64, 64, 3] made of a file whose picture is 64x64."""
    return keyframe(folder, data, **fields).part("keyframes.0")["frames"][0]


def keyframe(folder: Path, data: bytes | Path, **fields: Any) -> MediaRun:
    return MediaRun(folder, keyframes_request({"media": {"part": "a"}}, **{**SQUARE, **fields}), {"a": data})


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM", "WEBP", "GIF"])
def test_lossless_formats_give_their_pixels(kind: str, tmp_path: Path) -> None:
    pixels = gradient(64, 64) // 64 * 64
    options = {"lossless": True} if kind == "WEBP" else {}
    np.testing.assert_array_equal(prepared(tmp_path, encoded(pixels, kind, **options)), pixels)


@pytest.mark.parametrize("mode", ["L", "P", "1", "LA", "CMYK", "YCbCr"])
def test_grey_palette_and_cmyk_become_rgb(mode: str, tmp_path: Path) -> None:
    kind = "TIFF" if mode in ("CMYK", "YCbCr") else "PNG"
    image = Image.fromarray(gradient(64, 64)).convert("RGB" if mode == "LA" else mode).convert(mode)
    stream = io.BytesIO()
    image.save(stream, kind)
    np.testing.assert_array_equal(prepared(tmp_path, stream.getvalue()), np.asarray(image.convert("RGB")))


def test_a_jpeg_in_cmyk_is_not_inverted(tmp_path: Path) -> None:
    image = Image.new("CMYK", (64, 64), (0, 255, 255, 0))
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=95)
    red, green, blue = prepared(tmp_path, stream.getvalue()).mean(axis=(0, 1))
    assert red > 200
    assert green < 60
    assert blue < 60


def test_sixteen_bits_are_brought_to_eight(tmp_path: Path) -> None:
    levels = np.linspace(0, 65535, 64 * 64).reshape(64, 64).astype(np.uint16)
    made = prepared(tmp_path, encoded(levels))
    np.testing.assert_array_equal(made, np.repeat((levels >> 8).astype(np.uint8)[..., None], 3, axis=2))


def test_floating_point_levels_are_zero_to_one(tmp_path: Path) -> None:
    levels = np.linspace(-0.5, 1.5, 64 * 64).reshape(64, 64).astype(np.float32)
    made = prepared(tmp_path, encoded(levels, "TIFF"))[..., 0]
    np.testing.assert_array_equal(made, np.clip(np.round(levels * 255), 0, 255).astype(np.uint8))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_stands_as_its_camera_was_held(orientation: int, tmp_path: Path) -> None:
    upright = Image.fromarray(gradient(64, 96))
    undo = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}
    stored = upright if orientation == 1 else upright.transpose(Image.Transpose(undo[orientation]))
    exif = Image.Exif()
    exif[0x0112] = orientation
    run = keyframe(tmp_path, encoded(np.asarray(stored), exif=exif), width=None, height=None)
    assert (run.facts["width"], run.facts["height"]) == (96, 64)
    np.testing.assert_array_equal(run.part("keyframes.0")["frames"][0], np.asarray(upright))


@pytest.mark.parametrize("lowest", [0, 255])
def test_transparent_pixels_show_their_stored_colour_and_that_is_said(lowest: int, tmp_path: Path) -> None:
    pixels = np.concatenate([gradient(64, 64), np.full((64, 64, 1), 255, np.uint8)], axis=2)
    pixels[:32, :, 3] = lowest
    run = keyframe(tmp_path, encoded(pixels))
    np.testing.assert_array_equal(run.part("keyframes.0")["frames"][0], gradient(64, 64))
    assert run.warnings == ([] if lowest == 255 else ["media_alpha"])


@pytest.mark.parametrize("size", [(1, 1), (1, 3), (37, 53), (7, 28)])
def test_odd_sizes_come_out_on_the_canvas(size: tuple[int, int], tmp_path: Path) -> None:
    assert prepared(tmp_path, encoded(noise(*size))).shape == (64, 64, 3)


def test_of_a_clip_the_first_picture_is_taken_and_that_is_said(tmp_path: Path) -> None:
    frames = [np.full((64, 64, 3), level, np.uint8) for level in (200, 30, 30)]
    clip = write_clip(tmp_path / "clip.mp4", frames)
    images = [Image.fromarray(frame) for frame in frames]
    stream = io.BytesIO()
    images[0].save(stream, "GIF", save_all=True, append_images=images[1:])
    for several in (clip, stream.getvalue()):
        run = keyframe(tmp_path, several)
        assert abs(int(run.part("keyframes.0")["frames"].mean()) - 200) <= 3
        assert run.warnings == ["media_cut"]
    assert keyframe(tmp_path, encoded(frames[0], "GIF")).warnings == []


def test_a_lone_last_keyframe_is_stretched_and_a_follower_cover_cropped(tmp_path: Path) -> None:
    wide = gradient(64, 128)
    first, last = ({"media": {"part": "a"}, "at": end} for end in ("first", "last"))
    alone = MediaRun(tmp_path, keyframes_request(last, **SQUARE), {"a": encoded(wide)})
    assert alone.facts["conditions"] == [{"frame": 21, "frames": 1, "audio_latents": 0}]
    lone = alone.part("keyframes.0")["frames"][0]
    both = MediaRun(tmp_path, keyframes_request(last, first, **SQUARE), {"a": encoded(wide)})
    np.testing.assert_array_equal(both.part("keyframes.0")["frames"][0], lone)
    np.testing.assert_array_equal(both.part("keyframes.1")["frames"][0], wide[:, 32:96])
    assert [condition["frame"] for condition in both.facts["conditions"]] == [0, 21]
    assert [keyframe["at"] for keyframe in both.result["request"]["keyframes"]] == ["first", "last"]


def test_the_canvas_follows_the_first_picture_at_the_models_own_size(tmp_path: Path) -> None:
    request = keyframes_request({"media": {"part": "a"}})
    run = MediaRun(tmp_path, request, {"a": encoded(noise(70, 100))}, facts=ModelFacts())
    assert (run.facts["width"], run.facts["height"]) == (1088, 768)


def test_a_keyframe_of_an_impossible_shape_is_refused(tmp_path: Path) -> None:
    run = keyframe(tmp_path, encoded(noise(10, 50)), width=None, height=None)
    assert (run.error["code"], run.error["field"]) == ("bad_aspect", "request.keyframes[0].media")


@pytest.mark.parametrize(
    ("size", "own", "made"),
    [
        ("native", (200, 130), (192, 128)),
        ("match", (200, 130), (128, 64)),
        ("max", (200, 130), (160, 96)),
        ("reference", (200, 130), (160, 96)),
        ("native", (60, 40), (64, 32)),
        ("match", (60, 40), (64, 32)),
        ("max", (60, 40), (64, 32)),
        ("reference", (60, 40), (128, 96)),
    ],
)
def test_a_reference_picture_has_a_geometry_of_its_own(
    size: str, own: tuple[int, int], made: tuple[int, int], tmp_path: Path
) -> None:
    request = {"task": "encode_prompt", "prompt": "x", "frames": 22, "width": 128, "height": 64}
    request["references"] = [{"kind": "image", "media": {"part": "a"}, "size": size}]
    run = MediaRun(tmp_path, request, {"a": encoded(noise(own[1], own[0]))})
    found = run.facts["references"][0]
    assert (found["width"], found["height"]) == made
    assert run.part("references.0")["frames"].shape == (1, made[1], made[0], 3)
    assert found["rows"] == made[0] // 32 * (made[1] // 32)
    # Beside 2 x 37 rows of sound and 7 x 4 x 2 of pictures.
    assert found["share"] == pytest.approx(found["rows"] / (found["rows"] + 74 + 56))
    assert run.warnings == (["large_reference"] if size == "native" and own[0] == 200 else [])


def test_a_reference_of_an_impossible_shape_is_refused(tmp_path: Path) -> None:
    request = {"task": "generate", "prompt": "x", "references": [{"kind": "image", "media": {"part": "a"}}]}
    run = MediaRun(tmp_path, request, {"a": encoded(noise(20, 81))})
    assert (run.error["code"], run.error["field"]) == ("bad_aspect", "request.references[0].media")
