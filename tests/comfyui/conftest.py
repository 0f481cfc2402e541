"""One ComfyUI server for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import comfyui_page
from tests.support.comfyui import HOME, ComfyUI
from tests.support.mask_editor import EditorPage
from tests.support.workflows import write_media


@pytest.fixture(scope="session")
def comfyui(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComfyUI]:
    """Return a running ComfyUI with this pack."""
    assert (HOME / "stamp").exists(), "run scripts/setup_comfyui.sh first"
    server = ComfyUI(tmp_path_factory.mktemp("comfyui") / "base")
    write_media(server.base / "input")
    server.wait_until_ready()
    yield server
    server.stop()


@pytest.fixture(scope="module", params=[False, True], ids=["classic", "vue"])
def editor(comfyui: ComfyUI, request: pytest.FixtureRequest) -> Iterator[EditorPage]:
    """Return an editor in one renderer; each test loads its own graph."""
    with comfyui_page(comfyui, vue_nodes=request.param) as page:
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        yield EditorPage(page)
        assert errors == []


def make_t2va(**changes: Any) -> dict[str, Any]:
    """Return the twin of ``workflows/t2va.json`` in API format, small and quick; ``changes`` are named node__input."""
    nodes: dict[str, tuple[str, dict[str, Any]]] = {
        "connect": ("H3EngineConnect", {"model": "demo"}),
        "encode": ("H3EngineTextEncode", {"engine": ["connect", 0], "prompt": "A red fox runs through snow."}),
        "latent": ("H3EngineEmptyLatent", {"width": 64, "height": 64, "seconds": 0.9}),
        "sample": (
            "H3EngineSampler",
            {
                "engine": ["connect", 0],
                "conditioning": ["encode", 0],
                "latent": ["latent", 0],
                "steps": 3,
                "seed": 7,
            },
        ),
        "decode": ("H3EngineDecodeToVideo", {"engine": ["connect", 0], "latent": ["sample", 0]}),
        "save": (
            "SaveVideo",
            {"video": ["decode", 0], "filename_prefix": "h3", "format": "auto", "codec": "auto"},
        ),
    }
    for path, value in changes.items():
        node, name = path.split("__")
        nodes[node][1][name] = value
    return {name: {"class_type": kind, "inputs": inputs} for name, (kind, inputs) in nodes.items()}


def output_file(comfyui: ComfyUI, executed: dict[str, Any]) -> Path:
    """Return the file that a Save Video node wrote, given its ``executed`` event."""
    saved = executed["output"]["images"][0]
    return comfyui.base / "output" / saved["subfolder"] / saved["filename"]
