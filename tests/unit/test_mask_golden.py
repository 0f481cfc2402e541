"""The engine's reading of mask documents against the golden masks; ``tests/web`` holds the page to the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.contract.mask_cells import audio_cells, video_cells
from engine.contract.mask_document import document_to_dict, parse_document
from tests.support import mask_oracle

FILES = sorted(mask_oracle.FOLDER.glob("*.json"))
TOLERANCE = 1 / 512


def _load(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def _rasters(case: dict[str, Any]) -> dict[str, np.ndarray]:
    return {
        name: np.array(raster["bytes"], np.uint8).reshape(raster["frames"], raster["height"], raster["width"])
        for name, raster in case["rasters"].items()
    }


def test_every_case_has_its_file() -> None:
    assert {path.stem for path in FILES} == set(mask_oracle.cases())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_document_means_the_golden_cells(path: Path) -> None:
    case = _load(path)
    document = parse_document(case["document"])
    video = video_cells(document, **case["size"], rasters=_rasters(case))
    assert abs(video.ravel() - case["video"]).max() < TOLERANCE
    assert abs(audio_cells(document, frames=case["size"]["frames"]).ravel() - case["audio"]).max() < TOLERANCE
    assert parse_document(document_to_dict(document)) == document


@pytest.mark.parametrize("name", ["stroke_with_pressure", "ranges_at_odd_frames"])
def test_the_golden_cells_are_what_the_page_of_formulae_says(name: str) -> None:
    case = mask_oracle.cases()[name]
    assert json.loads(json.dumps(mask_oracle.golden(case))) == _load(mask_oracle.FOLDER / f"{name}.json")
