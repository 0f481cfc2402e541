"""An artist's round in the page: see the frames, paint, run on two ranks, compare before and after."""

from __future__ import annotations

import json

import pytest
from safetensors.numpy import load_file

from tests.support.browser import comfyui_page
from tests.support.comfyui import ROOT, ComfyUI
from tests.support.mask_editor import EditorPage

pytestmark = [pytest.mark.comfyui, pytest.mark.browser, pytest.mark.ranks]

_STORE = """() => { for (const [type, name] of [['H3EngineEncodeMedia', 'before'], ['H3EngineSampler', 'after']]) {
    const node = LiteGraph.createNode('H3TestStore');
    app.graph.add(node);
    node.widgets[0].value = name;
    app.graph._nodes.find((other) => other.type === type).connect(0, node, 0); }
    const engine = app.graph._nodes.find((node) => node.type === 'H3EngineConnect');
    for (const name of ['ranks', 'ring_degree']) engine.widgets.find((widget) => widget.name === name).value = 2; }"""


def test_what_is_painted_is_made_anew_on_two_ranks_and_the_rest_stays_bit_for_bit(comfyui: ComfyUI) -> None:
    template = json.loads((ROOT / "workflows" / "inpaint.json").read_text())
    with comfyui_page(comfyui, vue_nodes=False) as page:
        editor = EditorPage(page)
        editor.load(template)
        editor.zoom_graph(0.8)
        page.wait_for_function("() => window.h3Engine.maskEditor(app.graph.getNodeById(5)).editable")
        guessed = editor.get("editor.known")
        long = page.locator("[data-part=long]")
        assert long.text_content() == "56 (clip 52 + 4 held)", "why the shot is longer than its clip"
        assert "17n+5" in str(editor.get("editor.root.querySelector('[data-part=where]').title"))
        editor.get("editor.goTo(54)")
        editor.settle()
        assert "frame 54 (held) of 56" in str(editor.get("editor.root.querySelector('[data-part=where]').textContent"))
        editor.get("editor.goTo(0)")
        page.evaluate(_STORE)
        editor.run_up_to_here(seconds=300)
        canvas = editor.get("editor.known")
        assert canvas == guessed, "the clip's file tells the size before anything ran"
        assert editor.get("app.graph.getNodeById(7).widgets.find((widget) => widget.name === 'seed').value") == 42
        page.wait_for_function("() => window.h3Engine.maskEditor(app.graph.getNodeById(5)).source?.pictures.size > 0")
        assert "key" in editor.get("editor.source.source"), "the frames are those that the node was given"

        editor.focus()
        editor.press("r")
        editor.path([(0.1, 0.1), (0.45, 0.9)])
        editor.drag_lane("audio0", 0.5, 0.8)
        video, audio = editor.cells(**canvas)
        editor.run()
        editor.page.wait_for_function("() => window.h3Engine.maskEditor(app.graph.getNodeById(5)).result?.facts")
        editor.page.locator("[data-action=compare]").click()
        editor.settle()
        page.wait_for_function("() => window.h3Engine.maskEditor(app.graph.getNodeById(5)).result.pictures.size > 0")
        editor.settle()
        (ROOT / "artifacts").mkdir(exist_ok=True)
        page.screenshot(path=ROOT / "artifacts" / "mask_editor_compare.png")
        assert editor.get("editor.comparing")
        assert "sampling about" in str(editor.get("editor.root.querySelector('[data-part=status]').textContent"))

    before, after = (load_file(comfyui.base / "output" / f"{name}.safetensors") for name in ("before", "after"))
    for stream, mask in (("samples.0", video), ("samples.1", audio)):
        same = (before[stream] == after[stream]).all(axis=(0, 1))
        assert same.shape == mask.shape
        assert same[mask == 0].all(), "what is not shaded stays"
        assert not same[mask == 1].any(), "what is shaded is made anew"
        assert 0 < (mask > 0).mean() < 1
    comfyui.stop_engine_with("--ring-degree")
