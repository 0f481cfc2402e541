"""The mask editor in ComfyUI's page, worked with the pointer and the keyboard as an artist does."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from playwright.sync_api import Page

from engine.contract.mask_cells import audio_cells, video_cells
from engine.contract.mask_document import read_document

Cells = npt.NDArray[np.float32]

_NODE = "app.graph._nodes.find((node) => node.type === 'H3EngineLatentMask')"
_EDITOR = f"window.h3Engine.maskEditor({_NODE})"
_PICTURE = f"""() => {{ const editor = {_EDITOR}, canvas = editor.panel.picture, box = editor.box();
    const on = canvas.getBoundingClientRect(), scale = on.width / canvas.clientWidth;
    return [on.x + box.left * scale, on.y + box.top * scale, box.width * scale, box.height * scale]; }}"""
_LANES = f"""() => {{ const on = {_EDITOR}.panel.time.getBoundingClientRect();
    return [on.x, on.y, on.width, on.height, {_EDITOR}.panel.time.clientWidth]; }}"""
_SHADED = f"""() => {{ const editor = {_EDITOR}, canvas = editor.panel.picture, box = editor.box();
    const context = canvas.getContext('2d'), scale = canvas.width / canvas.clientWidth;
    const {{ rows, columns }} = editor.cells, found = [];
    for (let row = 0; row < rows; row++) for (let column = 0; column < columns; column++) {{
        const x = (box.left + (column + 0.5) * box.width / columns) * scale;
        const y = (box.top + (row + 0.5) * box.height / rows) * scale;
        const [red, green] = context.getImageData(Math.floor(x), Math.floor(y), 1, 1).data;
        found.push(red - green); }}
    return [rows, columns, found]; }}"""
_STILL = f"""async (scale) => {{ const {{ root }} = {_EDITOR};
    const where = () => JSON.stringify(root.getBoundingClientRect());
    const before = where();
    for (let i = 0; i < 10; i++) await new Promise((done) => requestAnimationFrame(done));
    return before === where() && Math.abs(root.getBoundingClientRect().width / root.offsetWidth - scale) < 0.01; }}"""
_LEFT, _RIGHT = 52, 8
"""Pixels of the lanes beside the time."""
LANE_AT = {"keys": 0.08, "video": 0.33, "audio0": 0.63, "bands": 0.9}
"""Where a lane is, of the lanes' height, while both channels are linked."""


def mask_graph(
    *, width: int, height: int, seconds: float, document: str = "", extra: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    """Return a workflow file: an empty latent, the mask node, and a node that stores its latent as ``painted``."""
    nodes = [
        _node(1, "H3EngineEmptyLatent", [60, 140], outputs=["LATENT", "INT"], values=[width, height, seconds]),
        _node(
            2,
            "H3EngineLatentMask",
            [420, 140],
            inputs=["latent:LATENT", "source_images:IMAGE", "source_audio:AUDIO", "mask:MASK"],
            outputs=["LATENT", "MASK", "IMAGE"],
            values=[document, 24],
        ),
        _node(3, "H3TestStore", [60, 420], inputs=["value:*"], outputs=[], values=["painted"]),
        *extra,
    ]
    links = [[1, 1, 0, 2, 0, "LATENT"], [2, 2, 0, 3, 0, "LATENT"]]
    for number, source, slot, target, into, _ in links:
        _by_id(nodes, source)["outputs"][slot]["links"].append(number)
        _by_id(nodes, target)["inputs"][into]["link"] = number
    return {"version": 0.4, "last_node_id": 9, "last_link_id": 9, "nodes": nodes, "links": links, "extra": {}}


def _node(
    number: int, kind: str, at: list[int], *, outputs: list[str], values: list[Any], inputs: Iterable[str] = ()
) -> dict[str, Any]:
    size = [860, 960] if kind == "H3EngineLatentMask" else [270, 120]
    slots = [name.split(":") for name in inputs]
    return {
        "id": number,
        "type": kind,
        "pos": at,
        "size": size,
        "flags": {},
        "order": number,
        "mode": 0,
        "inputs": [{"name": name, "type": type_, "link": None} for name, type_ in slots],
        "outputs": [{"name": name, "type": name, "links": []} for name in outputs],
        "properties": {},
        "widgets_values": values,
    }


def _by_id(nodes: list[dict[str, Any]], number: int) -> dict[str, Any]:
    return next(node for node in nodes if node["id"] == number)


class EditorPage:
    """The one editor on a page."""

    def __init__(self, page: Page) -> None:
        self.page = page

    def load(self, workflow: dict[str, Any]) -> None:
        """Open a workflow file, its mask node in view."""
        self.page.evaluate("async (workflow) => { await app.loadGraphData(workflow, true, true); }", workflow)
        self.wait()

    def wait(self) -> None:
        """Wait until the editor has drawn what it holds."""
        self.page.wait_for_function(f"() => {_NODE} && {_EDITOR}?.panel.picture.clientWidth > 0")
        self.settle()

    def zoom_graph(self, scale: float) -> None:
        """Set the graph's zoom, the mask node in the corner of the page."""
        self.page.evaluate(
            f"""(scale) => {{ const {{ ds }} = app.canvas, [x, y] = {_NODE}.pos;
            ds.scale = scale; ds.offset = [90 / scale - x, 110 / scale - y];
            app.graph.setDirtyCanvas(true, true); }}""",
            scale,
        )
        self.page.wait_for_function(_STILL, arg=scale)
        self.settle()

    def settle(self) -> None:
        """Wait until the numbers are those of the document and two more frames are drawn."""
        self.page.wait_for_function(f"() => !{_EDITOR}.statistics.stale")
        self.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def get(self, expression: str) -> Any:
        """Return an expression of ``editor`` and ``node``."""
        return self.page.evaluate(f"() => {{ const node = {_NODE}, editor = {_EDITOR}; return {expression}; }}")

    def text(self) -> str:
        """Return the widget's text."""
        return str(self.get("node.widgets.find((widget) => widget.name === 'document').value"))

    def document(self) -> dict[str, Any]:
        """Return the widget's document."""
        loaded: dict[str, Any] = json.loads(self.text())
        return loaded

    def path(self, points: Sequence[tuple[float, float]]) -> None:
        """Draw with the pointer over places in fractions of the picture."""
        # A document that was just opened has no picture before its first frame is drawn.
        self.page.wait_for_function(f"() => ({_PICTURE})().every(Number.isFinite)")
        left, top, width, height = self.page.evaluate(_PICTURE)
        mouse = self.page.mouse
        for index, (x, y) in enumerate(points):
            mouse.move(left + x * width, top + y * height, steps=1 if index == 0 else 3)
            if index == 0:
                mouse.down()
        mouse.up()
        self.settle()

    def pen(self, points: Sequence[tuple[float, float, float]]) -> None:
        """Draw with a pen over places in fractions of the picture, each with a pressure in 0..1."""
        left, top, width, height = self.page.evaluate(_PICTURE)
        session = self.page.context.new_cdp_session(self.page)
        kinds = ["mousePressed", *["mouseMoved"] * (len(points) - 1)]
        places = [(left + x * width, top + y * height, pressure) for x, y, pressure in points]
        for kind, (x, y, pressure) in [*zip(kinds, places, strict=True), ("mouseReleased", places[-1])]:
            event = {"type": kind, "x": x, "y": y, "force": pressure, "pointerType": "pen", "button": "left"}
            session.send(
                "Input.dispatchMouseEvent", {**event, "buttons": int(kind != "mouseReleased"), "clickCount": 1}
            )
        session.detach()
        self.settle()

    def wheel(self, x: float, y: float, turns: float) -> None:
        """Turn the wheel over a place in fractions of the picture, below 0 into it, and wait until the view follows."""
        left, top, width, height = self.page.evaluate(_PICTURE)
        self.page.mouse.move(left + x * width, top + y * height)
        view = self.get("JSON.stringify(editor.view)")
        self.page.mouse.wheel(0, turns)
        self.page.wait_for_function(f"(view) => JSON.stringify({_EDITOR}.view) !== view", arg=view, timeout=10_000)
        self.settle()

    def drag_lane(self, lane: str, start: float, end: float) -> None:
        """Drag on a lane from one time to another, in fractions of the clip."""
        left, top, width, height, inner = self.page.evaluate(_LANES)
        y = top + LANE_AT[lane] * height
        scale = width / inner
        places = [left + scale * (_LEFT + at * (inner - _LEFT - _RIGHT)) for at in (start, end)]
        mouse = self.page.mouse
        mouse.move(places[0], y)
        mouse.down()
        mouse.move(places[1], y, steps=6)
        mouse.up()
        self.settle()

    def press(self, *keys: str) -> None:
        """Press keys; the editor has the focus."""
        for key in keys:
            self.page.keyboard.press(key)
        self.settle()

    def focus(self) -> None:
        """Give the editor the keyboard."""
        self.page.evaluate(f"() => {_EDITOR}.root.focus()")

    def shaded(self) -> npt.NDArray[np.bool_]:
        """Return which cells of the shown frame are shaded, by the pixel in their middle: [rows, columns]."""
        self.press("Escape")
        self.page.mouse.move(5, 5)
        self.settle()
        rows, columns, redness = self.page.evaluate(_SHADED)
        return np.array(redness).reshape(rows, columns) > 5

    def cells(self, *, width: int, height: int, frames: int) -> tuple[Cells, Cells]:
        """Return what the engine understands of the widget's text: [T, h, w] and [2, A]."""
        document = read_document(self.text())
        return video_cells(document, width=width, height=height, frames=frames), audio_cells(document, frames=frames)

    def page_cells(self) -> Cells:
        """Return the cells that the page computes, [T, h, w]."""
        found = self.get("Array.from(editor.cells.video())")
        tokens, rows, columns = self.get("[editor.cells.tokens, editor.cells.rows, editor.cells.columns]")
        return np.array(found, np.float32).reshape(tokens, rows, columns)

    def run(self, *, seconds: float = 120) -> None:
        """Press Run and wait for its end."""
        self._run("() => app.queuePrompt(0, 1)", seconds)

    def run_up_to_here(self, *, seconds: float = 120) -> None:
        """Press the editor's button that runs what leads to its node, and wait for its end."""
        self._run("() => document.querySelector('.h3-mask [data-action=run]').click()", seconds)

    def _run(self, press: str, seconds: float) -> None:
        listen = """() => { window.seen = []; for (const kind of ['success', 'error', 'interrupted'])
            app.api.addEventListener('execution_' + kind, (event) => window.seen.push([kind, event.detail])); }"""
        self.page.evaluate(listen)
        self.page.evaluate(press)
        self.page.wait_for_function("() => window.seen.length", timeout=seconds * 1000)
        assert self.page.evaluate("() => window.seen[0][0]") == "success", self.page.evaluate("() => window.seen[0][1]")


def circle(x: float, y: float, radius: float, *, points: int = 16) -> list[tuple[float, float]]:
    """Return places around a middle, in fractions of the picture."""
    turns = [2 * math.pi * index / points for index in range(points + 1)]
    return [(x + radius * math.cos(turn), y + radius * math.sin(turn)) for turn in turns]
