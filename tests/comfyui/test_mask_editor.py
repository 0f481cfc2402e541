"""The mask editor in Chromium: what is painted is what is shaded, saved, and on the latent, cell by cell."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.support.browser import comfyui_page
from tests.support.comfyui import ROOT, ComfyUI
from tests.support.mask_editor import EditorPage, circle, mask_graph

pytestmark = [pytest.mark.comfyui, pytest.mark.browser]

WIDTH, HEIGHT, FRAMES = 256, 128, 39
SIZE = {"width": WIDTH, "height": HEIGHT, "frames": FRAMES}
GRAPH = mask_graph(width=WIDTH, height=HEIGHT, seconds=1.6)
ARTIFACTS = ROOT / "artifacts"


@pytest.fixture(scope="module", params=[False, True], ids=["classic", "vue"])
def editor(comfyui: ComfyUI, request: pytest.FixtureRequest) -> Iterator[EditorPage]:
    """Return an editor in one renderer; each test loads its own graph."""
    with comfyui_page(comfyui, vue_nodes=request.param) as page:
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        yield EditorPage(page)
        assert errors == []


def test_what_is_painted_at_two_zooms_is_shaded_and_lies_on_the_latent(
    editor: EditorPage, comfyui: ComfyUI, request: pytest.FixtureRequest
) -> None:
    editor.load(GRAPH)
    editor.zoom_graph(0.8)
    editor.focus()
    editor.press(*"[[[[[[[[", *"{{{")
    editor.path([(0.2, 0.3), (0.35, 0.6), (0.5, 0.3)])
    editor.zoom_graph(0.55)
    editor.press("r")
    editor.path([(0.6, 0.5), (0.8, 0.8)])
    editor.wheel(0.7, 0.65, -500)
    assert editor.get("editor.view.zoom") > 1.5
    editor.press("l")
    editor.path(circle(0.7, 0.65, 0.05))
    editor.press("e")
    editor.path([(0.7, 0.6), (0.7, 0.7)])
    editor.drag_lane("video", 0.6, 0.8)
    editor.drag_lane("audio0", 0.2, 0.5)

    document = editor.document()
    assert [(layer["kind"], layer["mode"]) for layer in document["layers"]] == [
        ("stroke", "paint"), ("rect", "paint"), ("polygon", "paint"), ("stroke", "erase")
    ]  # fmt: skip
    painted = document["layers"][0]["keys"][0]["points"]
    assert np.allclose([painted[0][:2], painted[-1][:2]], [[0.2, 0.3], [0.5, 0.3]], atol=0.01)
    assert np.allclose(document["layers"][1]["keys"][0]["points"], [[0.6, 0.5], [0.8, 0.8]], atol=0.01)

    video, audio = editor.cells(**SIZE)
    assert np.abs(editor.page_cells() - video).max() <= 1 / 512
    editor.wheel(0.7, 0.65, 3000)
    editor.press("g")
    for frame, token in ((0, 0), (FRAMES - 1, len(video) - 1), (28, 8)):
        editor.get(f"editor.goTo({frame})")
        assert np.array_equal(editor.shaded(), video[token] > 0), f"frame {frame}"
    editor.page.screenshot(path=_artifact(f"mask_editor_{request.node.callspec.id}.png"))

    editor.run()
    stored = load_file(comfyui.base / "output" / "painted.safetensors")
    assert np.array_equal(stored["noise_mask.0"][0, 0], video)
    assert np.array_equal(stored["noise_mask.1"][0, 0], audio)
    assert 0 < video.mean() < 1
    assert 0 < audio.mean() < 1


def _artifact(name: str) -> str:
    ARTIFACTS.mkdir(exist_ok=True)
    return str(ARTIFACTS / name)


def test_an_edit_survives_saving_reloading_undo_and_another_tab(editor: EditorPage) -> None:
    editor.load(GRAPH)
    editor.zoom_graph(0.7)
    editor.path([(0.3, 0.3), (0.6, 0.3)])
    one = editor.text()
    editor.press("c")
    editor.path([(0.3, 0.5), (0.5, 0.9)])
    two = editor.text()
    shown = editor.page_cells()
    editor.press("Control+z")
    assert editor.text() == one
    editor.press("Control+Shift+z")
    assert editor.text() == two

    saved = json.loads(editor.page.evaluate("() => JSON.stringify(app.graph.serialize())"))
    values = next(node for node in saved["nodes"] if node["type"] == "H3EngineLatentMask")["widgets_values"]
    assert values == [two, 24]
    editor.load(saved)
    assert editor.text() == two
    assert np.array_equal(editor.page_cells(), shown)

    tracker = "app.extensionManager.workflow.activeWorkflow.changeTracker"
    editor.zoom_graph(0.7)
    editor.focus()
    editor.press("r")
    editor.path([(0.7, 0.1), (0.9, 0.3)])
    three = editor.text()
    editor.page.evaluate(f"async () => {{ await {tracker}.undo(); }}")
    editor.wait()
    assert editor.text() == two
    assert np.array_equal(editor.page_cells(), shown)
    editor.page.evaluate(f"async () => {{ await {tracker}.redo(); }}")
    editor.wait()
    assert editor.text() == three

    editor.page.evaluate("() => { window.tab = app.extensionManager.workflow.activeWorkflow; }")
    editor.page.evaluate("async () => { await app.extensionManager.command.execute('Comfy.NewBlankWorkflow'); }")
    editor.page.wait_for_function("() => app.graph._nodes.length === 0")
    editor.page.evaluate("async () => { await app.loadGraphData(window.tab.activeState, true, true, window.tab); }")
    editor.wait()
    assert editor.text() == three


def test_an_unknown_version_is_shown_and_never_overwritten(editor: EditorPage) -> None:
    newer = json.dumps({"version": 7, "canvas": None, "magic": [1, 2]})
    editor.load(mask_graph(width=WIDTH, height=HEIGHT, seconds=1.6, document=newer))
    editor.zoom_graph(0.7)
    editor.path([(0.3, 0.3), (0.6, 0.3)])
    editor.focus()
    editor.press("i", "Delete", "Control+z")
    editor.drag_lane("video", 0.2, 0.6)
    assert editor.text() == newer
    assert "version 7" in str(editor.get("editor.root.querySelector('[data-part=notice]').textContent"))
    assert editor.get("[...editor.root.querySelectorAll('[data-tool]')].every((button) => button.disabled)")


def test_keys_lanes_presets_and_layers_do_what_they_say(editor: EditorPage) -> None:
    editor.load(GRAPH)
    editor.zoom_graph(0.7)
    editor.focus()
    editor.press(*"[[[[[[[[", *"{{{{")
    editor.path([(0.2, 0.5), (0.25, 0.5)])
    editor.press("k", "End", "k", "v")
    editor.path([(0.2, 0.5), (0.6, 0.5)])
    layer = editor.document()["layers"][0]
    assert [key["frame"] for key in layer["keys"]] == [0, FRAMES - 1]
    assert layer["keys"][1]["offset"][0] == pytest.approx(0.4, abs=0.01)
    video, _ = editor.cells(**SIZE)
    middles = [float(np.flatnonzero(token.any(axis=0)).mean()) for token in (video[0], video[-1])]
    assert middles[1] - middles[0] == pytest.approx(0.4 * 16, abs=1)

    editor.press("Home", "Shift+ArrowRight", "ArrowRight")
    assert editor.get("editor.frame") == 2
    editor.press("Delete")
    assert editor.document()["layers"] == []

    editor.drag_lane("bands", 0.3, 0.5)
    marked = editor.get("editor.state.marked")
    assert marked == [9, 22]
    editor.page.get_by_role("button", name="Regenerate the whole picture of the marked frames").click()
    assert editor.document()["video"]["ranges"] == [{"from": 9, "to": 22, "value": 1}]
    editor.page.locator("[data-action=preset]").select_option("redo-end")
    document = editor.document()
    assert document["video"]["ranges"] == [{"from": 0, "to": 13, "value": 0}, {"from": 13, "to": 39, "value": 1}]
    assert [(run["from"], run["to"], run["value"]) for run in document["audio"]["ranges"]] == [(0, 13, 0), (13, 39, 1)]
    editor.page.locator("[data-action=preset]").select_option("only-sound")
    editor.settle()
    status = str(editor.get("editor.root.querySelector('[data-part=status]').textContent"))
    assert status.startswith("0% of picture rows · 100% of sound rows")
    editor.page.keyboard.press("f")
    assert editor.get("editor.root.parentElement.className") == "h3-mask-full"
    editor.page.keyboard.press("Escape")
    assert editor.get("editor.root.parentElement.className") == "h3-mask-place"


def test_another_size_is_reported_and_taken_on_request(editor: EditorPage) -> None:
    editor.load(GRAPH)
    editor.zoom_graph(0.7)
    editor.press("r")
    editor.path([(0.25, 0.25), (0.5, 0.5)])
    before = editor.text()
    editor.page.evaluate("() => { app.graph.getNodeById(1).widgets[2].value = 3; }")
    editor.get("editor.refresh()")
    editor.settle()
    notice = editor.page.locator("[data-part=notice]")
    assert "256x128, 39 frames; the latent is 256x128, 73 frames" in str(notice.text_content())
    assert editor.text() == before
    notice.get_by_role("button").click()
    assert editor.document()["canvas"] == {"width": 256, "height": 128, "frames": 73}
    assert editor.document()["layers"][0]["range"] == [0, 73]
    notice.wait_for(state="hidden", timeout=10_000)
