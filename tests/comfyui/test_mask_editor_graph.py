"""The mask editor beside ComfyUI: whose keys and wheel are whose, and what the lanes say in colour."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.support.comfyui import ComfyUI
from tests.support.mask_editor import EditorPage, mask_graph
from tests.support.media_files import write_clip
from tests.support.workflows import template

pytestmark = [pytest.mark.comfyui, pytest.mark.browser]

GRAPH = mask_graph(width=256, height=128, seconds=1.6)
_HEARD = """() => { window.heard = []; window.queued = 0; app.queuePrompt = async () => { window.queued++; };
    window.addEventListener('keydown', (event) => window.heard.push(
        [event.ctrlKey && 'Ctrl', event.shiftKey && 'Shift', event.key].filter(Boolean).join('+'))); }"""
_GRAPH_VIEW = "() => [app.canvas.ds.scale, ...app.canvas.ds.offset]"


def test_the_wheel_is_the_graphs_until_the_editor_has_the_focus(editor: EditorPage) -> None:
    editor.load(GRAPH)
    editor.zoom_graph(0.7)
    editor.get("document.activeElement?.blur()")
    before = editor.page.evaluate(_GRAPH_VIEW)
    on = editor.page.locator(".h3-mask-view canvas").bounding_box()
    assert on
    editor.page.mouse.move(on["x"] + on["width"] / 2, on["y"] + on["height"] / 2)
    editor.page.mouse.wheel(0, -120)
    editor.page.wait_for_function(f"(before) => ({_GRAPH_VIEW})()[0] > before[0]", arg=before, timeout=10_000)
    assert editor.get("editor.view.zoom") == 1

    editor.zoom_graph(0.7)
    before = editor.page.evaluate(_GRAPH_VIEW)
    editor.focus()
    editor.wheel(0.5, 0.5, -120)
    assert editor.get("editor.view.zoom") > 1
    assert editor.page.evaluate(_GRAPH_VIEW) == before


def test_a_kept_range_looks_kept_on_a_lane_that_is_regenerated(editor: EditorPage) -> None:
    editor.load(GRAPH)
    editor.zoom_graph(0.8)
    editor.path([(0.2, 0.4), (0.6, 0.4)])
    colours = []
    for base in (1, 0):
        editor.get(
            "editor.commit({ ...editor.document, audio: { ...editor.document.audio,"
            f" base: {base}, ranges: [{{ from: 4, to: 16, value: 0 }}] }} }})"
        )
        editor.settle()
        colours.append(editor.page.evaluate(_LANE_PIXELS))
    assert colours[0] == colours[1], "one range, whatever the lane does elsewhere"
    assert max(colours[0]) - min(colours[0]) < 3, "no stripes"


_LANE_PIXELS = """() => { const canvas = document.querySelector('.h3-mask-time'), context = canvas.getContext('2d');
    const scale = canvas.width / canvas.clientWidth, inner = canvas.clientWidth - 60, found = [];
    for (let at = 0.12; at < 0.18; at += 0.005) {
        const [x, y] = [52 + at * inner, canvas.clientHeight * 0.55].map((value) => value * scale);
        found.push(context.getImageData(x, y, 1, 1).data[0]); }
    return found; }"""


def test_an_erase_stroke_leaves_a_painted_layer_painted_and_erased(editor: EditorPage) -> None:
    editor.load(GRAPH)
    editor.zoom_graph(0.8)
    editor.path([(0.2, 0.4), (0.6, 0.4)])
    mode = editor.page.get_by_role("group", name="Chosen layer").get_by_label("mode")
    assert mode.input_value() == "paint"
    editor.press("e")
    editor.path([(0.3, 0.4), (0.4, 0.4)])
    assert [layer["mode"] for layer in editor.document()["layers"]] == ["paint", "erase"]
    assert editor.get("editor.layer.mode") == "erase", "the stroke that was drawn last"
    assert mode.input_value() == "mixed"
    assert editor.get("editor.root.querySelector('[data-layer]').textContent") == "●stroke-1 (2 strokes, some erase)"
    mode.select_option("erase")
    editor.settle()
    assert [layer["mode"] for layer in editor.document()["layers"]] == ["erase", "erase"]


def test_only_the_editors_own_keys_stay_with_it(editor: EditorPage) -> None:
    editor.load(GRAPH)
    editor.zoom_graph(0.7)
    editor.path([(0.2, 0.3), (0.4, 0.3)])
    editor.page.evaluate(_HEARD)
    editor.press("r", "[", "Space", "Space", "ArrowRight", "Shift+ArrowRight", "Delete", "Control+z", "Control+Shift+z")
    editor.press("Control+a", "Control+c")
    heard = "() => window.heard.filter((key) => !/(Control|Shift)$/.test(key))"
    assert editor.page.evaluate(heard) == []
    editor.press("Shift+R", "Control+ArrowRight", "Control+Enter")
    assert editor.page.evaluate(heard) == ["Shift+R", "Ctrl+ArrowRight", "Ctrl+Enter"]
    assert editor.page.evaluate("() => window.queued") == 1
    editor.press("Control+s")
    name = editor.page.get_by_role("dialog").get_by_role("textbox")
    name.wait_for(state="visible", timeout=10_000)
    editor.page.keyboard.press("Escape")
    name.wait_for(state="hidden", timeout=10_000)


def inpaint(clip: str) -> dict[str, Any]:
    """Return the template with another clip."""
    graph: dict[str, Any] = json.loads(json.dumps(template("inpaint")))
    next(node for node in graph["nodes"] if node["type"] == "LoadVideo")["widgets_values"][0] = clip
    return graph


def test_without_a_clip_the_editor_says_where_to_choose_one(editor: EditorPage) -> None:
    editor.load(inpaint("gone.mp4"))
    note = editor.page.locator("[data-part=locked]")
    editor.page.wait_for_function(
        "() => document.querySelector('[data-part=locked]')?.textContent.includes('gone.mp4')"
    )
    assert "Choose a clip in Load Video" in str(note.text_content())
    assert not note.get_by_role("button").is_visible(), "a run would fail"


def test_the_wipe_begins_over_the_mask_and_takes_no_press_meant_for_a_shape(
    editor: EditorPage, comfyui: ComfyUI
) -> None:
    frames = np.full((30, 128, 256, 3), 90, np.uint8)
    write_clip(comfyui.base / "input" / "grey.mp4", frames)
    editor.load(inpaint("grey.mp4"))
    editor.zoom_graph(0.7)
    editor.page.wait_for_function("() => document.querySelector('[data-part=long]').textContent.includes('held')")
    editor.focus()
    editor.press("r")
    editor.path([(0.1, 0.25), (0.3, 0.5)])
    editor.get("(editor.host.result = () => ({ file: 'grey.mp4' }), editor.refresh())")
    editor.page.wait_for_function("() => !document.querySelector('[data-action=compare]').disabled")
    editor.page.locator("[data-action=compare]").click()
    editor.settle()
    wipe = editor.get("editor.wipe")
    assert wipe == pytest.approx(0.2, abs=0.04)
    editor.press("v")
    editor.path([(wipe, 0.4), (wipe + 0.3, 0.4)])
    assert editor.get("editor.wipe") == wipe
    assert editor.document()["layers"][0]["keys"][0]["offset"] == pytest.approx([0.3, 0], abs=0.02)
    low = (
        "(Math.min(editor.box().top + editor.box().height, editor.panel.picture.clientHeight) - 17 - editor.box().top)"
    )
    knob = (wipe, editor.get(f"{low} / editor.box().height"))
    editor.path([knob, (0.7, 0.8)])
    assert editor.get("editor.wipe") == pytest.approx(0.7, abs=0.02)

    editor.press("End")
    assert editor.get("editor.frame") == 29, "the clip's own"
    editor.press("End")
    assert editor.get("editor.frame") == 38
    editor.page.locator("[data-action=preset]").select_option("redo-end")
    assert [run["from"] for run in editor.document()["video"]["ranges"]] == [0, 5], (
        "a second of the clip, not of 39 frames"
    )
