"""The mask editor in Chromium: what is painted is what is shaded, saved, and on the latent, cell by cell."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

from tests.support.comfyui import ROOT, ComfyUI
from tests.support.mask_editor import EditorPage, circle, mask_graph

pytestmark = [pytest.mark.comfyui, pytest.mark.browser]

WIDTH, HEIGHT, FRAMES = 256, 128, 39
SIZE = {"width": WIDTH, "height": HEIGHT, "frames": FRAMES}
GRAPH = mask_graph(width=WIDTH, height=HEIGHT, seconds=1.6)
ARTIFACTS = ROOT / "artifacts"


in_one_renderer = pytest.mark.parametrize("editor", [True], ids=["vue"], indirect=True)
"""For what no renderer changes; Vue nodes are the ones that step in between."""


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


@in_one_renderer
def test_a_broken_text_can_be_put_away_and_what_another_writes_is_taken(editor: EditorPage) -> None:
    editor.load(mask_graph(width=WIDTH, height=HEIGHT, seconds=1.6, document='{"version":1,"canvas":{"frames":1e9}}'))
    editor.zoom_graph(0.7)
    assert not editor.get("editor.editable")
    editor.page.get_by_role("button", name="Put an empty edit in place of this text").click()
    editor.path([(0.3, 0.3), (0.6, 0.3)])
    document = editor.document()
    layer = document["layers"][0]
    odd = {**document, "canvas": {**document["canvas"], "width": 250}, "layers": [{**layer, "name": "theirs"}]}
    editor.page.evaluate(
        "(text) => { app.graph.getNodeById(2).widgets.find((widget) => widget.name === 'document').value = text; }",
        json.dumps(odd),
    )
    editor.page.mouse.move(5, 5)
    editor.press("b")
    editor.path([(0.3, 0.7), (0.6, 0.7)])
    assert editor.document()["layers"][0]["name"] == "theirs"
    assert len(editor.document()["layers"]) == 2


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
    assert status.startswith("0% of the picture · 100% of the sound")
    # A drag on an empty part of a lane does the opposite of what the lane does there.
    editor.page.get_by_role("button", name="Take all layers and ranges away").click()
    editor.page.locator("[data-action=base]").click()
    assert editor.document()["audio"]["base"] == 1
    editor.drag_lane("audio0", 0.3, 0.5)
    assert [run["value"] for run in editor.document()["audio"]["ranges"]] == [0]
    editor.drag_lane("video", 0.3, 0.5)
    assert [run["value"] for run in editor.document()["video"]["ranges"]] == [1]
    editor.page.keyboard.press("f")
    assert editor.get("editor.root.parentElement.classList.contains('h3-mask-full')")
    assert editor.get("editor.state.run !== null")
    editor.page.keyboard.press("Escape")
    assert editor.get("editor.state.run === null && editor.state.full"), "what is chosen goes first"
    editor.page.keyboard.press("Escape")
    assert editor.get("editor.root.parentElement.classList.contains('h3-mask-place')")


def test_another_shape_is_shown_as_it_is_and_the_edit_is_taken_there_on_request(
    editor: EditorPage, request: pytest.FixtureRequest
) -> None:
    editor.load(GRAPH)
    editor.zoom_graph(0.7)
    editor.press("r")
    editor.path([(0.25, 0.25), (0.5, 0.5)])
    before = editor.text()
    editor.page.evaluate(_OTHER, [128, 3])
    editor.get("editor.refresh()")
    editor.settle()
    notice = editor.page.locator("[data-part=notice]")
    assert "256x128, 39 frames; the latent is 128x128, 73 frames" in str(notice.text_content())
    # The new shot in its own shape; where the edit would lie is outlined, and nothing can be done to it by mistake.
    assert editor.get("editor.size") == {"width": 128, "height": 128, "frames": 73}
    assert editor.get("editor.cells.token(0).some(Boolean)")
    assert not editor.shaded().any()
    editor.path([(0.6, 0.6), (0.8, 0.8)])
    assert "of another shot" in caption(editor)
    editor.focus()
    editor.press("i", "Delete")
    editor.drag_lane("video", 0.2, 0.6)
    assert editor.text() == before
    editor.page.screenshot(path=_artifact(f"mask_editor_other_shape_{request.node.callspec.id}.png"))
    notice.locator("[data-action=adopt]").click()
    assert editor.document()["canvas"] == {"width": 128, "height": 128, "frames": 73}
    assert editor.document()["layers"][0]["range"] == [0, 73]
    notice.wait_for(state="hidden", timeout=10_000)
    assert editor.shaded().any()
    editor.focus()
    editor.press("Control+z")
    assert editor.text() == before
    notice.get_by_role("button", name="Begin with nothing painted").click()
    assert editor.document()["layers"] == []
    editor.path([(0.6, 0.6), (0.8, 0.8)])
    assert editor.document()["canvas"] == {"width": 128, "height": 128, "frames": 73}


_OTHER = """([width, seconds]) => { const { widgets } = app.graph.getNodeById(1);
    widgets[0].value = width; widgets[2].value = seconds; }"""


def caption(editor: EditorPage) -> str:
    """Return the lines on the picture, empty when there are none."""
    shown = editor.page.locator("[data-part=caption]")
    return shown.inner_text() if shown.is_visible() else ""


@in_one_renderer
def test_a_size_that_only_the_run_tells_comes_back_from_its_refusal(editor: EditorPage) -> None:
    editor.load(GRAPH)
    editor.zoom_graph(0.7)
    editor.path([(0.25, 0.25), (0.5, 0.5)])
    editor.page.evaluate(_LONGER)
    with pytest.raises(AssertionError, match="painted on 39 frames, the latent has 73"):
        editor.run()
    notice = editor.page.locator("[data-part=notice]")
    # ComfyUI tells it too: in a dialog, in later versions beside the graph.
    said = editor.page.get_by_role("dialog").or_(editor.page.get_by_test_id("error-overlay"))
    said.get_by_role("button", name="Close").first.click()
    notice.wait_for(state="visible", timeout=10_000)
    assert "the latent is 256x128, 73 frames" in str(notice.text_content())
    editor.page.get_by_role("button", name="Take all layers and ranges away").click()
    editor.run()
    editor.path([(0.25, 0.25), (0.5, 0.5)])
    assert editor.document()["canvas"] == {"width": 256, "height": 128, "frames": 73}


@in_one_renderer
def test_what_another_tab_ran_is_not_taken_for_this_ones(editor: EditorPage) -> None:
    first, second = ({**GRAPH, "id": f"{letter * 8}-0000-4000-8000-000000000000"} for letter in "ab")
    editor.load(first)
    editor.run()
    ran = editor.page.evaluate("() => JSON.stringify(app.nodeOutputs['2'])")
    told = json.loads(ran)["h3_mask"][0]
    assert told["workflow"] == first["id"]
    # The page gives the outputs of a run to the node of that id in whatever tab is open.
    give = "(output) => app.graph.getNodeById(2).onExecuted(JSON.parse(output))"
    told["canvas"] = {"width": 128, "height": 128, "frames": 22}
    other = json.dumps({"h3_mask": [told]})
    for graph, taken in ((second, False), (first, True)):
        editor.load(graph)
        editor.page.evaluate(give, other)
        editor.settle()
        assert (editor.get("editor.size") == told["canvas"]) is taken


@in_one_renderer
def test_a_run_reaches_the_tab_that_queued_it_and_not_another_of_the_same_template(
    editor: EditorPage, comfyui: ComfyUI
) -> None:
    Image.fromarray(np.zeros((HEIGHT, WIDTH), np.uint8)).save(comfyui.base / "input" / "right.png")
    template = {**GRAPH, "id": "cccccccc-0000-4000-8000-000000000000"}
    chip = "editor.root.querySelectorAll('[data-part=carried]').length"
    editor.load(template)
    editor.page.evaluate(_CONNECT)
    first = "() => { window.first = app.extensionManager.workflow.activeWorkflow; }"
    listen = """() => { window.told = []; for (const name of ['executed', 'h3_engine.canvas'])
        app.api.addEventListener(name, ({ detail }) => window.told.push([name, structuredClone(detail)])); }"""
    for script in (first, listen):
        editor.page.evaluate(script)
    editor.run()
    editor.page.wait_for_function("() => document.querySelector('[data-part=carried]')")
    told = editor.page.evaluate("() => window.told")
    assert {name for name, _ in told} == {"executed", "h3_engine.canvas"}
    assert len({detail.get("prompt") or detail["prompt_id"] for _, detail in told}) == 1, "both name the run"
    for _, detail in told:
        if "canvas" in detail:
            detail["canvas"] = {"width": 128, "height": 128, "frames": 22}
    # The other tab is in front when the run tells of itself: the ids of its nodes and of its workflow are the same.
    editor.load(template)
    editor.page.evaluate(
        "(told) => { for (const [type, detail] of told)"
        " app.api.dispatchEvent(Object.assign(new CustomEvent(type, { detail }))); }",
        told,
    )
    editor.settle()
    editor.get("node.graph && editor.root.dispatchEvent(new PointerEvent('pointerenter'))")
    editor.settle()
    assert editor.page.evaluate("() => app.nodeOutputs['2'].h3_mask[0].carried"), "ComfyUI gives it to this tab"
    assert editor.get(chip) == 0
    assert editor.get("editor.size") == SIZE
    editor.page.evaluate("async () => { await app.loadGraphData(window.first.activeState, true, true, window.first); }")
    editor.wait()
    editor.page.wait_for_function("() => document.querySelector('[data-part=carried]')")


@in_one_renderer
def test_what_changes_nothing_or_replaces_something_says_so_at_once(editor: EditorPage) -> None:
    editor.load(GRAPH)
    editor.zoom_graph(0.7)
    editor.focus()
    editor.press("r")
    editor.path([(0.2, 0.2), (0.8, 0.8)])
    assert caption(editor) == ""
    editor.press("e", *"[[[[[[[[")
    editor.path([(0.4, 0.5), (0.6, 0.5)])
    assert editor.document()["layers"][1]["mode"] == "erase"
    # What a stroke changed is looked into a little at a time, while the page goes on.
    editor.page.locator("[data-part=caption]", has_text="only once all of it is erased").wait_for(timeout=10_000)
    editor.press(*"]]]]]]]]]]]]]]]")
    editor.path([(0.4, 0.5), (0.6, 0.5)])
    assert caption(editor) == "", "what was said of the stroke before is over"
    editor.page.get_by_role("button", name="Take all layers and ranges away").click()

    editor.drag_lane("video", 0.1, 0.3)
    editor.drag_lane("audio0", 0.1, 0.3)
    before = editor.text()
    editor.page.locator("[data-action=preset]").select_option("redo-end")
    editor.settle()
    assert caption(editor).startswith("Replaced 2 ranges.")
    editor.page.locator("[data-action=undo-said]").click()
    assert editor.text() == before
    editor.settle()
    assert caption(editor) == ""

    # Where a range keeps the frame, the pointer alone is told so, before a stroke is lost.
    editor.page.locator("[data-action=preset]").select_option("redo-end")
    editor.press("Home", "b")
    editor.get("editor.show({ said: '' })")
    left, top, width, height = editor.page.evaluate(_PICTURE_BOX)
    editor.page.mouse.move(left + width / 2, top + height / 2)
    editor.settle()
    assert "keeps all of this frame" in caption(editor)
    editor.page.mouse.move(5, 5)
    editor.settle()
    assert caption(editor) == ""


_PICTURE_BOX = """() => { const on = document.querySelector('.h3-mask-view canvas').getBoundingClientRect();
    return [on.x, on.y, on.width, on.height]; }"""
_LONGER = """() => { const extend = LiteGraph.createNode('H3EngineExtend'); app.graph.add(extend);
    extend.widgets.find((widget) => widget.name === 'after').value = 1;
    app.graph.getNodeById(1).connect(0, extend, 0);
    extend.connect(0, app.graph.getNodeById(2), 0); }"""


@in_one_renderer
def test_a_pens_pressure_scales_the_stroke(editor: EditorPage) -> None:
    editor.load(GRAPH)
    editor.zoom_graph(0.7)
    editor.pen([(0.1, 0.5, 0.2), (0.5, 0.5, 1.0), (0.9, 0.5, 0.6)])
    (layer,) = editor.document()["layers"]
    points = layer["keys"][0]["points"]
    assert [points[0][2], points[-1][2]] == pytest.approx([0.2, 0.6], abs=0.02)
    video, _ = editor.cells(**SIZE)
    assert np.abs(editor.page_cells() - video).max() <= 1 / 512
    editor.path([(0.1, 0.9), (0.9, 0.9)])
    assert all(len(point) == 2 for point in editor.document()["layers"][1]["keys"][0]["points"]), "a mouse has none"


@in_one_renderer
def test_strokes_join_the_chosen_layer_and_move_as_one(editor: EditorPage) -> None:
    editor.load(GRAPH)
    editor.zoom_graph(0.7)
    editor.path([(0.1, 0.2), (0.2, 0.2)])
    editor.path([(0.1, 0.4), (0.2, 0.4)])
    chips = "editor.root.querySelectorAll('[data-layer]')"
    assert editor.get(f"{chips}[0].textContent") == "●stroke-1 (2 strokes)"
    editor.page.get_by_role("group", name="Chosen layer").get_by_label("mode").select_option("erase")
    assert [layer["mode"] for layer in editor.document()["layers"]] == ["erase", "erase"]
    editor.settle()
    assert editor.get(f"{chips}[0].textContent") == "●stroke-1 (2 strokes, erase)"
    editor.press("End", "v")
    editor.path([(0.15, 0.2), (0.55, 0.2)])
    one, two = editor.document()["layers"]
    assert one["group"] == two["group"]
    for layer in (one, two):
        assert [key["frame"] for key in layer["keys"]] == [0, FRAMES - 1]
        assert layer["keys"][1]["offset"] == pytest.approx([0.4, 0], abs=0.01)
    editor.page.locator("[data-action=new-layer]").click()
    editor.press("b")
    editor.path([(0.3, 0.7), (0.4, 0.7)])
    assert editor.get(f"{chips}.length") == 2
    editor.press("Escape", "v")
    editor.path([(0.55, 0.4), (0.55, 0.6)])
    assert editor.get("editor.layer.group") == one["group"], "a press on a shape chooses it"
    editor.press("Delete")
    assert [layer["id"] for layer in editor.document()["layers"]] == ["stroke-3"]


@in_one_renderer
def test_a_shape_is_drawn_anew_at_another_frame(editor: EditorPage) -> None:
    editor.load(GRAPH)
    editor.zoom_graph(0.7)
    editor.press("l")
    editor.path(circle(0.25, 0.5, 0.1))
    editor.press("End")
    editor.page.get_by_role("button", name="The next shape that you draw").click()
    editor.path(circle(0.75, 0.5, 0.2, points=24))
    (layer,) = editor.document()["layers"]
    first, last = (np.array(key["points"]) for key in layer["keys"])
    assert first.shape == last.shape
    assert last.mean(axis=0) == pytest.approx([0.75, 0.5], abs=0.02)
    video, _ = editor.cells(**SIZE)
    assert np.abs(editor.page_cells() - video).max() <= 1 / 512
    assert (video[-1] > 0).sum() > 2 * (video[0] > 0).sum()


def test_imported_and_connected_masks_and_the_latents_own_are_shaded_and_run(
    editor: EditorPage, comfyui: ComfyUI, request: pytest.FixtureRequest
) -> None:
    left, right = np.zeros((2, HEIGHT, WIDTH), np.uint8)
    left[30:60, 20:70] = right[70:90, 150:230] = 255
    for name, pixels in (("left", left), ("right", right)):
        # In colour: of a grey file later versions of ComfyUI read white as 254.
        Image.fromarray(pixels).convert("RGB").save(comfyui.base / "input" / f"{name}.png")
    editor.load(GRAPH)
    editor.zoom_graph(0.7)
    editor.page.evaluate(_CONNECT)
    editor.run_up_to_here()
    editor.page.wait_for_function("() => document.querySelector('[data-part=carried]')")
    editor.settle()
    assert editor.get("editor.statistics.report.videoPercent") == 100
    assert editor.get("editor.cells.carriedAt(0).every((value) => Math.abs(value - 0.25) < 0.01)")
    editor.page.get_by_role("button", name="The MASK that is connected").click()
    editor.page.set_input_files("[aria-label='Mask file']", comfyui.base / "input" / "left.png")
    top = "some((value, at, all) => value && at < all.length / 2)"
    editor.page.wait_for_function(f"() => window.h3Engine.maskEditor(app.graph.getNodeById(2)).cells.token(0).{top}")
    editor.settle()
    assert [layer["file"] for layer in editor.document()["layers"]] == ["@mask", "h3_masks/left.png"]
    expected = np.stack([left, right]).max(0).reshape(HEIGHT // 16, 16, WIDTH // 16, 16).max(axis=(1, 3)) / 255
    assert np.array_equal(editor.page_cells()[3], expected)
    editor.page.screenshot(path=_artifact(f"mask_editor_layers_{request.node.callspec.id}.png"))
    editor.run()
    stored = load_file(comfyui.base / "output" / "painted.safetensors")["noise_mask.0"][0, 0]
    assert np.allclose(stored, np.maximum(expected, 0.25)[None], atol=1 / 256)


_CONNECT = """() => { const add = (type, values) => { const node = LiteGraph.createNode(type); app.graph.add(node);
        for (const widget of node.widgets ?? []) if (widget.name in values) widget.value = values[widget.name];
        return node; };
    const mask = app.graph.getNodeById(2), solid = add('SolidMask', { value: 0.25, width: 256, height: 128 });
    const before = add('H3EngineMaskFromImages', {});
    const image = add('LoadImageMask', { image: 'right.png', channel: 'red' });
    app.graph.getNodeById(1).connect(0, before, 0);
    solid.connect(0, before, before.inputs.findIndex((input) => input.name === 'mask'));
    before.connect(0, mask, 0);
    image.connect(0, mask, mask.inputs.findIndex((input) => input.name === 'mask')); }"""


@in_one_renderer
def test_what_cannot_be_painted_on_yet_says_what_to_do(editor: EditorPage) -> None:
    editor.load(GRAPH)
    editor.run()
    editor.load(GRAPH)  # of another tab: the size that the run told is not known there
    editor.page.evaluate("() => app.graph.getNodeById(2).disconnectInput(0)")
    note = editor.page.locator("[data-part=locked]")
    note.wait_for(state="visible", timeout=10_000)
    assert "Connect “latent”" in str(note.text_content())
    assert not note.get_by_role("button").is_visible()
    editor.page.evaluate(
        "() => { const node = LiteGraph.createNode('H3EngineLoadLatent'); app.graph.add(node);"
        " node.connect(0, app.graph.getNodeById(2), 0); }"
    )
    note.get_by_role("button").wait_for(state="visible", timeout=10_000)
    assert "Run what leads here" in str(note.text_content())
    assert editor.get("editor.root.querySelector('[data-part=where]').textContent") == "length not known yet"


def test_the_editor_is_read_as_well_in_the_light_theme(editor: EditorPage, request: pytest.FixtureRequest) -> None:
    editor.load(GRAPH)
    editor.zoom_graph(0.8)
    editor.path([(0.3, 0.3), (0.6, 0.3)])
    theme = "(name) => app.extensionManager.setting.set('Comfy.ColorPalette', name)"
    editor.page.evaluate(theme, "light")
    try:
        editor.page.wait_for_function(f"() => ({_CONTRAST})()[1] > 0.5", timeout=10_000)
        editor.page.screenshot(path=_artifact(f"mask_editor_light_{request.node.callspec.id}.png"))
        contrast, _ = editor.page.evaluate(_CONTRAST)
    finally:
        editor.page.evaluate(theme, "dark")
    assert contrast >= 4.5, "as WCAG asks of text"


_CONTRAST = """() => { const light = (text) => { const [r, g, b] = text.match(/[0-9.]+/g).map((value) => value / 255)
        .map((value) => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
    const root = document.querySelector('.h3-mask');
    const pairs = [root, ...root.querySelectorAll('button:not(:disabled), select')].map((element) => {
        const { color, backgroundColor } = getComputedStyle(element), [a, b] = [light(color), light(backgroundColor)];
        return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05); });
    return [Math.min(...pairs), light(getComputedStyle(root).backgroundColor)]; }"""
