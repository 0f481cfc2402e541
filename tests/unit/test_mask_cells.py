"""Masks that arrive as arrays, the rows that the model is given, what a person is told: golden numbers and cases."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from engine.contract.errors import RequestError
from engine.contract.mask_cells import (
    audio_cells,
    cells_of_audio_mask,
    cells_of_video_mask,
    describe_masks,
    rows_of_cells,
    token_starts,
    video_cells,
)
from engine.contract.mask_document import parse_document
from tests.support.mask_oracle import FOLDER

GOLDEN = load_file(FOLDER.parent / "golden" / "masks.safetensors")
CASES = sorted({name.split(".cell_")[0] for name in GOLDEN if ".cell_" in name})
SIZE = {"width": 96, "height": 64, "frames": 22}
"""7 tokens of 4 x 6 cells, 37 latents: the golden masks' grid."""


def document(layers: list[dict[str, Any]], *, size: dict[str, int] = SIZE, **fields: Any) -> Any:
    """Return a document of layers on ``size``."""
    return parse_document({"version": 1, "canvas": size, "layers": layers, **fields})


@pytest.mark.parametrize("case", CASES)
def test_golden_cells_become_the_golden_rows(case: str) -> None:
    cells, warnings = cells_of_video_mask(GOLDEN[f"{case}.cell_video"], **SIZE)
    assert warnings == ()
    np.testing.assert_array_equal(cells, GOLDEN[f"{case}.cell_video"])
    rows = rows_of_cells(cells)
    np.testing.assert_array_equal(rows.repeat(2, 1).repeat(2, 2), GOLDEN[f"{case}.token_video"])
    pooled = GOLDEN[f"{case}.pooled_video"][:, ::2, ::2]
    np.testing.assert_array_equal(np.ceil(pooled * 256) / 256, rows)
    sound = cells_of_audio_mask(GOLDEN[f"{case}.cell_audio"], frames=22)
    np.testing.assert_array_equal(sound, GOLDEN[f"{case}.pooled_audio"])
    np.testing.assert_array_equal(rows_of_cells(sound), GOLDEN[f"{case}.token_audio"])


def test_the_golden_cases_are_there() -> None:
    assert {"thin", "gradient", "random", "near_one_0.9985"} <= set(CASES)


SHAPES: list[tuple[Any, tuple[int, ...]]] = [
    (0.25, ()),
    (np.float16(0.25), ()),
    (None, (2, 3)),  # one frame of rows
    (None, (7, 2, 3)),  # rows
    (None, (7, 4, 6)),  # cells
    (None, (1, 1, 7, 4, 6)),  # ComfyUI's noise mask
    (None, (1, 7, 4, 6)),
    (None, (64, 96)),  # pixels
    (None, (22, 64, 96)),
    (None, (22, 1, 64, 96)),
    (None, (1, 1, 64, 96)),
]


@pytest.mark.parametrize(("scalar", "shape"), SHAPES)
def test_every_shape_is_accepted(scalar: Any, shape: tuple[int, ...]) -> None:
    mask = scalar if scalar is not None else np.full(shape, 0.25)
    cells, warnings = cells_of_video_mask(mask, **SIZE)
    assert cells.shape == (7, 4, 6)
    assert cells.dtype == np.float32
    assert (cells == 0.25).all()
    assert warnings == ()


def test_a_row_of_the_latent_grid_is_four_cells_of_its_token() -> None:
    mask = np.zeros((7, 2, 3))
    mask[3, 1, 2] = 0.5
    cells, _ = cells_of_video_mask(mask, **SIZE)
    assert {tuple(at) for at in np.argwhere(cells)} == {(3, y, x) for y in (2, 3) for x in (4, 5)}


@pytest.mark.parametrize("frame", range(22))
def test_one_frame_eight_pixels_wide_survives(frame: int) -> None:
    """Case 13: the maximum in space and, over 1, 4, 4, 4, 4 frames, in time."""
    mask = np.zeros((22, 64, 96), np.float32)
    mask[frame, 20:60, 28:36] = 1
    cells, _ = cells_of_video_mask(mask, **SIZE)
    token = next(t for t, stop in enumerate((1, 5, 9, 13, 17, 18, 22)) if frame < stop)
    assert {int(t) for t, _, _ in np.argwhere(cells)} == {token}
    np.testing.assert_array_equal(cells[token], np.array([[0, 0, 0, 0, 0, 0], *[[0, 1, 1, 0, 0, 0]] * 3], np.float32))
    averaged, _ = cells_of_video_mask(mask, **SIZE, average=True)
    assert averaged[token, 2, 1] == 0.25  # 4 of 16 columns


def test_a_rect_and_the_same_pixels_give_the_same_rows() -> None:
    """Case 14: in the document, as pixels, and painted with a square of strokes."""
    pixels = np.zeros((64, 96))
    pixels[8:40, 16:56] = 1
    from_pixels, _ = cells_of_video_mask(pixels, **SIZE)
    rect = {"id": "r", "kind": "rect", "keys": [{"frame": 0, "points": [[16 / 96, 8 / 64], [56 / 96, 40 / 64]]}]}
    polygon = [[16 / 96, 8 / 64], [56 / 96, 8 / 64], [56 / 96, 40 / 64], [16 / 96, 40 / 64]]
    lasso = {"id": "p", "kind": "polygon", "keys": [{"frame": 0, "points": polygon}]}
    for layer in (rect, lasso, {"id": "f", "kind": "raster", "file": "x.png"}):
        found = video_cells(document([layer]), **SIZE, rasters={"x.png": pixels.astype(bool)})
        np.testing.assert_array_equal(found, from_pixels)


def test_shorter_masks_hold_their_last_frame_and_longer_ones_are_cut_with_a_warning() -> None:
    mask = np.zeros((30, 64, 96))
    mask[21:] = 1
    cells, warnings = cells_of_video_mask(mask, **SIZE)
    assert cells.max((1, 2)).tolist() == [0, 0, 0, 0, 0, 0, 1]
    assert warnings == ("The mask has 30 frames, the video 22: those after the last are left out.",)
    cells, warnings = cells_of_video_mask(mask[17:22], **SIZE)
    assert (cells.max((1, 2)).tolist(), warnings) == ([0, 1, 1, 1, 1, 1, 1], ())
    cells, warnings = cells_of_video_mask(np.array([0, 1])[:, None, None] * np.ones((2, 4, 6)), **SIZE)
    assert (cells.max((1, 2)).tolist(), warnings) == ([0, 1, 1, 1, 1, 1, 1], ())


def test_values_beyond_0_and_1_are_cut_with_a_warning() -> None:
    cells, warnings = cells_of_video_mask(np.array([[-0.5, 2.0, 0.5]] * 2), **SIZE)
    assert cells[0, 0].tolist() == [0, 0, 1, 1, 0.5, 0.5]
    assert warnings == ("The mask holds values from -0.5 to 2; they were cut to 0 to 1.",)
    assert cells_of_video_mask(1.0000001, **SIZE)[1] == ()


@pytest.mark.parametrize(
    "mask",
    [
        np.zeros((22, 96, 64)),
        np.zeros((8, 4, 6)),
        np.zeros((22, 4, 6)),
        np.zeros((2, 22, 64, 96)),
        np.zeros(7),
        np.zeros((0, 64, 96)),
        float("nan"),
        np.full((64, 96), np.inf),
        np.zeros((64, 96), complex),
        "mask",
    ],
    ids=str,
)
def test_what_is_no_mask_of_this_canvas_is_refused(mask: Any) -> None:
    with pytest.raises(RequestError) as error:
        cells_of_video_mask(mask, **SIZE, path="request.video_mask")
    assert (error.value.code, error.value.field) == ("bad_mask", "request.video_mask")


def test_a_mask_of_another_canvas_names_both() -> None:
    with pytest.raises(RequestError, match=r"22 x 96 x 64; the latent's canvas is 96x64 with 22 frames"):
        cells_of_video_mask(np.zeros((22, 96, 64)), **SIZE)
    with pytest.raises(RequestError, match=r"2 x 40; the sound of 22 frames has 37 latents") as error:
        cells_of_audio_mask(np.zeros((2, 40)), frames=22)
    assert (error.value.code, error.value.field) == ("bad_mask", "audio_mask")


@pytest.mark.parametrize("shape", [(), (37,), (1, 37), (2, 37), (1, 1, 2, 37)])
def test_every_shape_of_a_sound_is_accepted(shape: tuple[int, ...]) -> None:
    cells = cells_of_audio_mask(np.full(shape, 0.5), frames=22)
    assert cells.shape == (2, 37)
    assert (cells == 0.5).all()


@pytest.mark.parametrize(("frames", "latents"), [(5, 8), (22, 37), (39, 65), (124, 207), (362, 603)])
def test_sound_rounds_outward_to_whole_latents(frames: int, latents: int) -> None:
    """Case 15: 25 ms each; the last one ends with the video."""
    for start, stop in ((0, 1), (1, 3), (2, 5), (0.6, 1.2), (frames - 1, frames), (0, frames)):
        runs = [{"from": start, "to": stop, "value": 1}]
        size = {"width": 64, "height": 64, "frames": frames}
        cells = audio_cells(document([], size=size, audio={"ranges": runs}), frames=frames)
        first, end = math.floor(start * 5 / 3 + 1e-9), min(math.ceil(stop * 5 / 3 - 1e-9), latents)
        assert np.flatnonzero(cells[0]).tolist() == list(
            range(min(first, latents - 1), latents if stop == frames else end)
        )
        report = describe_masks(None, cells, frames=frames)
        assert report.audio_latents is not None
        assert report.audio_seconds == (report.audio_latents[0] / 40, report.audio_latents[1] / 40)
        assert report.audio_seconds[0] <= start / 24 + 1e-9


def test_what_a_mask_does_is_told() -> None:
    video, audio = np.zeros((7, 4, 6), np.float32), np.zeros((2, 37), np.float32)
    report = describe_masks(video, audio, frames=22)
    assert (report.video_percent, report.audio_percent, report.video_frames, report.audio_latents) == (0, 0, None, None)
    assert len(report.warnings) == 1
    assert report.warnings[0].startswith("0% of rows will change")
    video[2:4, 1, 1] = 0.001
    audio[1, 10:20] = 1
    report = describe_masks(video, audio, frames=22)
    assert report.video_percent == pytest.approx(100 * 2 / 42)
    assert report.video_frames == (5, 13)
    assert report.video_seconds == (5 / 24, 13 / 24)
    assert report.audio_percent == pytest.approx(100 * 10 / 74)
    assert report.audio_seconds == (0.25, 0.5)
    assert report.warnings == ()
    everything = describe_masks(np.ones_like(video), None, frames=22)
    assert (everything.video_frames, everything.audio_latents) == ((0, 22), (0, 37))
    assert everything.warnings[0].startswith("100% of rows will change")
    assert describe_masks(np.ones_like(video), np.zeros_like(audio), frames=22).warnings == ()


def test_tokens_cover_1_4_4_4_4_frames() -> None:
    assert token_starts(39) == [0, 1, 5, 9, 13, 17, 18, 22, 26, 30, 34, 35, 39]


def test_a_raster_that_is_missing_or_no_mask_is_refused_by_its_layer() -> None:
    edit = document([{"id": "t", "kind": "raster", "file": "t.png"}])
    for rasters in ({}, {"t.png": np.zeros((2, 2, 2, 2))}, {"t.png": np.zeros((0, 4))}):
        with pytest.raises(RequestError, match="missing or no mask") as error:
            video_cells(edit, **SIZE, rasters=rasters)
        assert (error.value.field, error.value.value) == ("mask_document.layers[0].file", "t.png")
    hidden = document([{"id": "t", "kind": "raster", "file": "t.png", "enabled": False}])
    assert not video_cells(hidden, **SIZE).any()


def test_a_moving_lasso_of_40_points_on_362_frames_is_quick() -> None:
    """Under a second of one core; the limit leaves room for a busy machine."""
    size = {"width": 1344, "height": 768, "frames": 362}
    around = [i * math.tau / 40 for i in range(40)]
    points = [[0.45 + 0.15 * math.cos(a), 0.5 + 0.25 * math.sin(a)] for a in around]
    keys = [{"frame": 0, "points": points}, {"frame": 361, "offset": [0.1, 0.05], "scale": 1.5}]
    layer = {"id": "a", "kind": "polygon", "softness": 12, "interpolate": "linear", "keys": keys}
    started = time.process_time()
    cells = video_cells(document([layer], size=size), **size)
    assert time.process_time() - started < 3
    assert cells.shape == (107, 48, 84)
    assert 0.1 < cells[0].mean() < cells[-1].mean() < 0.5
