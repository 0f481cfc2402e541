"""A person's way through the page: load the template, press Run, see the video play."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from tests.support.browser import comfyui_page
from tests.support.comfyui import ROOT, ComfyUI

pytestmark = [pytest.mark.comfyui, pytest.mark.browser, pytest.mark.ranks]

ARTIFACTS = ROOT / "artifacts"
_LISTEN = """() => { window.seen = []; for (const kind of ['success', 'error', 'interrupted'])
    app.api.addEventListener('execution_' + kind, (event) => window.seen.push([kind, event.detail])); }"""
_OUTSIDE = """([left, top, right, bottom]) => app.graph._nodes.filter((node) => {
    const { scale, offset } = app.canvas.ds;
    const [x, y, width, height] = node.getBounding();
    const [x0, y0] = [(x + offset[0]) * scale, (y + offset[1]) * scale];
    return x0 < left || y0 < top || x0 + width * scale > right || y0 + height * scale > bottom;
}).map((node) => node.type)"""
_FREE = [60, 125, 1590, 840]
"""Left, top, right and bottom of what ComfyUI's bars leave of a page of 1600 x 900."""
_TEXTS = """() => app.graph._nodes.map((node) =>
    [node.type, node.widgets?.find((widget) => widget.name === '$$node-text-preview')?.value])"""
_PLAYING = """() => { const video = document.querySelector('video');
    return video && video.videoWidth > 0 && video.currentTime > 0.2 && video.duration; }"""


@pytest.fixture
def workflow() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((ROOT / "workflows" / "t2va.json").read_text())
    return loaded


def _load(page: Page, workflow: dict[str, Any]) -> None:
    page.evaluate("async (workflow) => { await app.loadGraphData(workflow, true, true); }", workflow)


def _saved_values(page: Page) -> dict[int, list[Any]]:
    nodes = json.loads(page.evaluate("() => JSON.stringify(app.graph.serialize())"))["nodes"]
    return {node["id"]: node.get("widgets_values") or [] for node in nodes}


def _without_later(values: list[Any], kind: str, count: int) -> list[Any]:
    """Return what was saved of a node; of ComfyUI's own, which have more widgets in later versions, ``count``."""
    return values if kind.startswith("H3Engine") else values[:count]


def _queue(page: Page, workflow: dict[str, Any]) -> None:
    """Load ``workflow`` and run it to its successful end."""
    _load(page, workflow)
    page.evaluate(_LISTEN)
    page.evaluate("() => app.queuePrompt(0, 1)")
    page.wait_for_function("() => window.seen.length", timeout=120_000)
    assert page.evaluate("() => window.seen[0][0]") == "success", page.evaluate("() => window.seen[0][1]")


def _run(page: Page, workflow: dict[str, Any], picture: Path) -> None:
    """Run ``workflow``, play its video and take a picture of the page."""
    _queue(page, workflow)
    page.wait_for_function("() => document.querySelector('video')", timeout=20_000)
    page.evaluate("() => document.querySelector('video').play()")
    duration = page.wait_for_function(_PLAYING, timeout=20_000).json_value()
    assert duration == pytest.approx(124 / 24, abs=0.1)
    page.wait_for_timeout(500)
    picture.parent.mkdir(exist_ok=True)
    page.screenshot(path=picture)


@pytest.mark.parametrize("vue_nodes", [False, True], ids=["classic", "vue"])
def test_the_workflow_loads_runs_and_its_video_plays(
    comfyui: ComfyUI, workflow: dict[str, Any], vue_nodes: bool
) -> None:
    with comfyui_page(comfyui, vue_nodes=vue_nodes) as page:
        errors: list[str] = []
        # Another seed than the other renderer's, so that ComfyUI's cache does not answer.
        sampler = next(node for node in workflow["nodes"] if node["type"] == "H3EngineSampler")
        sampler["widgets_values"][1] = 100 + vue_nodes
        page.on("pageerror", lambda error: errors.append(str(error)))
        _run(page, workflow, ARTIFACTS / f"t2va_{'vue' if vue_nodes else 'classic'}.png")
        missing = page.evaluate("() => app.graph._nodes.filter((node) => node.has_errors).map((node) => node.type)")
        texts = dict(page.evaluate(_TEXTS))
        assert missing == []
        assert page.evaluate(_OUTSIDE, _FREE) == [], "the template opens with its whole graph in view"
        assert "Done in" in texts["H3EngineSampler"]
        assert errors == []


@pytest.mark.parametrize("vue_nodes", [False, True], ids=["classic", "vue"])
def test_every_template_opens_whole_and_is_saved_as_it_was(comfyui: ComfyUI, vue_nodes: bool) -> None:
    with comfyui_page(comfyui, vue_nodes=vue_nodes) as page:
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        for path in sorted((ROOT / "workflows").glob("*.json")):
            opened = json.loads(path.read_text())
            _load(page, opened)
            page.wait_for_timeout(500)
            assert page.evaluate(_OUTSIDE, _FREE) == [], path.name
            assert page.evaluate("() => app.graph._nodes.filter((node) => node.has_errors).length") == 0
            values = _saved_values(page)
            ours = [node for node in opened["nodes"] if node["type"].startswith("H3Engine")]
            assert {node["id"]: values[node["id"]] for node in ours} == {
                node["id"]: node.get("widgets_values") or [] for node in ours
            }, path.name
        assert errors == []


def test_a_node_shows_the_names_of_references(comfyui: ComfyUI) -> None:
    workflow = json.loads((ROOT / "workflows" / "ref2va.json").read_text())
    latent = next(node for node in workflow["nodes"] if node["type"] == "H3EngineEmptyLatent")
    latent["widgets_values"][2] = 0.9
    with comfyui_page(comfyui, vue_nodes=False) as page:
        _queue(page, workflow)
        texts = dict(page.evaluate(_TEXTS))
    # The page shows Markdown: what stands between angle brackets would be gone.
    assert "Picture 1: 128x96" in texts["H3EngineTextEncode"]
    assert not any("<" in text for text in texts.values() if text)


@pytest.mark.parametrize("file", ["t2va_before_parallel", "t2va_before_parallel_after_a_run"])
def test_a_file_saved_before_inputs_were_appended_gets_their_defaults_and_runs(comfyui: ComfyUI, file: str) -> None:
    old = json.loads((ROOT / "tests" / "comfyui" / "saved" / f"{file}.json").read_text())
    given = json.loads((ROOT / "tests" / "comfyui" / "saved" / "t2va_before_parallel.json").read_text())
    with comfyui_page(comfyui, vue_nodes=False) as page:
        _load(page, old)
        values = _saved_values(page)
        _run(page, old, ARTIFACTS / f"{file}.png")
        assert page.evaluate("() => app.graph._nodes.filter((node) => node.has_errors).length") == 0
        after = _saved_values(page)
    appended = {"H3EngineConnect": [0, 1, 1, 1, False, False, "", "all"], "H3EngineSampler": [0, 1]}
    for node in given["nodes"]:
        expected = [*(node.get("widgets_values") or []), *appended.get(node["type"], [])]
        assert _without_later(values[node["id"]], node["type"], len(expected)) == expected
        # The text that a node shows after a run is not saved with it.
        assert len(after[node["id"]]) == len(values[node["id"]]), node["type"]


def test_the_template_of_several_ranks_runs_on_a_ring(comfyui: ComfyUI) -> None:
    workflow = json.loads((ROOT / "workflows" / "t2va_parallel.json").read_text())
    with comfyui_page(comfyui, vue_nodes=False) as page:
        _run(page, workflow, ARTIFACTS / "t2va_parallel.png")
        values = _saved_values(page)
    connect = next(node for node in workflow["nodes"] if node["type"] == "H3EngineConnect")
    assert values[connect["id"]] == connect["widgets_values"]
    command = comfyui.stop_engine_with("--ring-degree")
    assert "--ulysses-degree 1 --ring-degree 2 --text-encoder-tp-degree 2" in " ".join(command)


def test_the_page_saves_the_workflow_with_the_values_it_was_given(comfyui: ComfyUI, workflow: dict[str, Any]) -> None:
    with comfyui_page(comfyui, vue_nodes=False) as page:
        _load(page, workflow)
        saved = json.loads(page.evaluate("() => JSON.stringify(app.graph.serialize())"))
        prompt = page.evaluate("async () => (await app.graphToPrompt()).output")
        token = page.evaluate("() => app.extensionManager.setting.get('H3Engine.Token')")
    values = {node["id"]: node.get("widgets_values") or [] for node in saved["nodes"]}
    for node in workflow["nodes"]:
        given = node.get("widgets_values") or []
        assert _without_later(values[node["id"]], node["type"], len(given)) == given
    assert token == "", "the token is a setting, not a widget"
    kinds = {entry["class_type"]: entry["inputs"] for entry in prompt.values()}
    assert kinds["H3EngineConnect"]["model"] == "demo"
    assert kinds["H3EngineSampler"]["steps"] == 8
    assert kinds["H3EngineEmptyLatent"] == {"width": 128, "height": 64, "seconds": 5}
