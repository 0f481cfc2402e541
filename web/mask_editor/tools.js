// What the pointer does on the picture: brush, eraser, rectangle, ellipse, lasso, moving the chosen layer; pan and zoom, the
// wipe between source and result. The pointer is captured from press to release; pen pressure scales the brush.

import { addLayer, changeLayer, freeId, moveWhole, putKey } from "./edits.js";
import { changesToken, whyNothing } from "./effect.js";
import { tokenOfFrame } from "./grid.js";
import { addToGroup, changeGroup, groupOf, takesStroke, transformGroup } from "./groups.js";
import { knobOf, layerUnder } from "./picture.js";
import { pointOf, resample } from "./document.js";
import { panBy, toFractions, zoomAt } from "./viewport.js";
import { pointOn } from "./dom.js";

/** @typedef {import("./editor.js").MaskEditor} MaskEditor */
/** @typedef {import("./document.js").Layer} Layer */
/** @typedef {import("./document.js").Point} Point */
/** @typedef {import("./document.js").MaskDocument} MaskDocument */
/** @typedef {"brush" | "erase" | "rect" | "ellipse" | "lasso" | "move"} Tool */
/** @typedef {{ kind: "draw" | "move" | "pan" | "wipe", points: Point[], document: MaskDocument, last: [number, number] }} Gesture */

const NEAR = 1.5; // pixels of the canvas between two points of a stroke, at least
const SLACK = 0.75; // pixels of the canvas by which a finished path may differ from the hand's
const MIN_SIDE = 2; // pixels of the canvas
const WHEEL = 1.0015;

/** @type {Record<Tool, Layer["kind"]>} */
const KIND = { brush: "stroke", erase: "stroke", rect: "rect", ellipse: "ellipse", lasso: "polygon", move: "rect" };

/**
 * Listen to the pointer on the picture.
 * @param {MaskEditor} editor
 * @param {HTMLCanvasElement} canvas
 */
export function listenToPicture(editor, canvas) {
  /** @type {Gesture | null} */
  let gesture = null;
  canvas.addEventListener("pointerdown", (event) => {
    const kind = gestureOf(editor, canvas, event);
    if (!kind || gesture) return;
    event.preventDefault();
    canvas.setPointerCapture(event.pointerId);
    gesture = { kind, points: [], document: editor.document, last: pointOn(canvas, event) };
    if (kind === "draw") draw(editor, canvas, gesture, [event]);
  });
  canvas.addEventListener("pointermove", (event) => {
    editor.pointAt(pointOn(canvas, event));
    if (!gesture) return;
    if (gesture.kind === "draw") draw(editor, canvas, gesture, event.getCoalescedEvents?.() ?? [event]);
    else drag(editor, gesture, pointOn(canvas, event), { scaling: event.altKey, whole: event.shiftKey });
  });
  canvas.addEventListener("pointerup", (event) => {
    if (canvas.hasPointerCapture(event.pointerId)) canvas.releasePointerCapture(event.pointerId);
    if (gesture?.kind === "draw") finish(editor, gesture);
    else if (gesture?.kind === "move") editor.settle();
    gesture = null;
  });
  canvas.addEventListener("pointercancel", () => {
    if (gesture) editor.drop();
    gesture = null;
  });
  canvas.addEventListener("pointerleave", () => editor.pointAt(null));
  canvas.addEventListener("contextmenu", (event) => event.preventDefault());
  // On the window: Vue nodes hand the wheel to the graph before it comes here. Without the focus it is the graph's.
  const options = { capture: true, passive: false };
  window.addEventListener("wheel", (event) => {
    if (event.target === canvas && editor.root.contains(document.activeElement)) wheel(editor, canvas, event);
  }, { ...options, signal: editor.closing.signal });
}

/**
 * @param {MaskEditor} editor
 * @param {HTMLCanvasElement} canvas
 * @param {PointerEvent} event
 * @returns {Gesture["kind"] | null}
 */
function gestureOf(editor, canvas, event) {
  if (event.button === 1 || event.button === 2) return "pan";
  if (event.button !== 0) return null;
  const [x, y] = pointOn(canvas, event);
  const knob = editor.comparing ? knobOf(editor) : null;
  if (knob && Math.hypot(x - knob.x, y - knob.y) <= knob.radius) return "wipe";
  if (!editor.editable) {
    if (editor.moved) editor.say("This edit is of another shot: move it to this one, or start a new one, with the buttons above.");
    return null;
  }
  if (editor.state.playing) editor.player.toggle();
  return editor.tool === "move" ? grab(editor, pointOn(canvas, event)) : "draw";
}

/**
 * Choose the shape under the pointer, if there is one; else the chosen one is moved.
 * @param {MaskEditor} editor
 * @param {[number, number]} at
 * @returns {"move" | null}
 */
function grab(editor, at) {
  const under = layerUnder(editor, at);
  if (under && (!editor.layer || groupOf(under) !== groupOf(editor.layer))) editor.show({ selected: under.id, run: null });
  if (editor.layer) return "move";
  editor.say("There is no shape here to move: press on one, or choose a layer below.");
  return null;
}

/**
 * @param {MaskEditor} editor
 * @param {HTMLCanvasElement} canvas
 * @param {WheelEvent} event
 */
function wheel(editor, canvas, event) {
  event.preventDefault();
  event.stopImmediatePropagation();
  const [x, y] = pointOn(canvas, event);
  if (event.altKey && editor.layer && editor.editable && editor.tool === "move") {
    const { document, layer, frame, canvas } = editor;
    return editor.commit(transformGroup(document, layer, { frame, canvas, factor: WHEEL ** -event.deltaY }), `scale ${layer.id}`);
  }
  const screen = { width: canvas.clientWidth, height: canvas.clientHeight };
  editor.show({ view: zoomAt(editor.view, WHEEL ** -event.deltaY, { x, y, screen, picture: editor.size }) });
}

/**
 * @param {MaskEditor} editor
 * @param {Gesture} gesture
 * @param {[number, number]} at
 * @param {{ scaling: boolean, whole: boolean }} how whole: at all keys
 */
function drag(editor, gesture, at, { scaling, whole }) {
  const box = editor.box();
  const [dx, dy] = [at[0] - gesture.last[0], at[1] - gesture.last[1]];
  gesture.last = at;
  if (gesture.kind === "pan") return editor.show({ view: panBy(editor.view, box, dx, dy) });
  if (gesture.kind === "wipe") return editor.show({ wipe: Math.min(1, Math.max(0, (at[0] - box.left) / box.width)) });
  if (whole && !scaling && editor.layer) {
    const by = { dx: dx / box.width, dy: dy / box.height };
    return editor.preview(changeGroup(editor.document, editor.layer, (layer) => moveWhole(layer, by)));
  }
  const by = scaling ? { factor: 1.01 ** dx } : { dx: dx / box.width, dy: dy / box.height };
  const { canvas, frame, layer } = editor;
  if (layer) editor.preview(transformGroup(editor.document, layer, { frame, canvas, ...by }));
}

/**
 * Take the pointer's new places and show the shape so far.
 * @param {MaskEditor} editor
 * @param {HTMLCanvasElement} canvas
 * @param {Gesture} gesture
 * @param {PointerEvent[]} events
 */
function draw(editor, canvas, gesture, events) {
  const box = editor.box();
  const { width, height } = editor.canvas;
  for (const event of events) {
    const [x, y] = toFractions(box, ...pointOn(canvas, event));
    const pressure = event.pointerType === "pen" ? Math.max(0.05, event.pressure) : 1;
    const point = pointOf(x, y, pressure);
    const last = gesture.points.at(-1);
    const far = !last || Math.hypot((x - last[0]) * width, (y - last[1]) * height) >= NEAR;
    if (far) gesture.points.push(point);
  }
  const shape = shapeOf(editor.tool, gesture.points);
  if (shape) editor.preview(placed(editor, gesture.document, shape));
}

/**
 * Return the points of a shape under way, or null while it is none.
 * @param {Tool} tool
 * @param {Point[]} points
 * @returns {Point[] | null}
 */
function shapeOf(tool, points) {
  if (tool === "brush" || tool === "erase") return [...points];
  if (tool === "lasso") return points.length > 2 ? [...points] : null;
  const last = points.at(-1);
  return points.length > 1 && last ? [[points[0][0], points[0][1]], [last[0], last[1]]] : null;
}

/**
 * @param {MaskEditor} editor
 * @param {Gesture} gesture
 */
function finish(editor, gesture) {
  const shape = shapeOf(editor.tool, gesture.points);
  const { width, height } = editor.canvas;
  const small = !shape || (shape.length === 2 && KIND[editor.tool] !== "stroke"
    && Math.max(Math.abs(shape[0][0] - shape[1][0]) * width, Math.abs(shape[0][1] - shape[1][1]) * height) < MIN_SIDE);
  if (small || beside(editor, shape)) return editor.drop();
  const path = KIND[editor.tool] === "stroke" || editor.tool === "lasso" ? thinned(shape, width, height) : shape;
  const enough = editor.tool !== "lasso" || path.length > 2;
  const document = placed(editor, gesture.document, enough ? path : shape);
  if (editor.reshaping) return editor.commit(document);
  editor.show({ selected: document.layers.at(-1)?.id ?? null });
  editor.commit(document);
  if (editor.document.layers.at(-1)?.id === editor.selected) void tellOfNothing(editor, gesture.document);
}

/** Say so when the shape that was just drawn changes no cell. @param {MaskEditor} editor @param {MaskDocument} before */
async function tellOfNothing(editor, before) {
  const { cells, document: after } = editor;
  const edit = { before, after, rasters: editor.rasters.of(after, editor.size) };
  if (changesToken(cells, edit, tokenOfFrame(editor.frame))) return;
  const wanted = () => editor.document === after && !editor.closed;
  const why = await whyNothing(cells, edit, wanted);
  if (why && wanted()) editor.say(why);
}

/**
 * Return whether a shape lies beside the picture, where it does nothing.
 * @param {MaskEditor} editor
 * @param {Point[]} points
 */
function beside({ brush, canvas, tool }, points) {
  const reach = brush.softness + (KIND[tool] === "stroke" ? brush.size / 2 : 0);
  const outside = (/** @type {0 | 1} */ axis, /** @type {number} */ length) => {
    const places = points.map((point) => point[axis] * length);
    return Math.max(...places) + reach < 0 || Math.min(...places) - reach > length;
  };
  return outside(0, canvas.width) || outside(1, canvas.height);
}

/**
 * Return the document with the shape: a new layer, a stroke more of the chosen one, or its shape at this frame.
 * @param {MaskEditor} editor
 * @param {MaskDocument} document
 * @param {Point[]} points
 */
function placed(editor, document, points) {
  const kind = KIND[editor.tool];
  const { layer, frame, canvas } = editor;
  if (editor.reshaping && layer) {
    const first = layer.keys.find((key) => key.points)?.points ?? [];
    const closed = layer.kind === "polygon";
    const even = layer.kind === "rect" || layer.kind === "ellipse" ? bounds(points) : resample(points, first.length, { closed, canvas });
    return changeLayer(document, layer.id, (old) => putKey(old, { frame, points: even, offset: [0, 0], scale: 1 }));
  }
  /** @type {Layer} */
  const made = {
    id: freeId(document, kind === "polygon" ? "lasso" : kind),
    name: "",
    kind,
    mode: editor.mode,
    enabled: true,
    size: editor.brush.size,
    softness: editor.brush.softness,
    strength: editor.brush.strength,
    range: editor.lives(),
    interpolate: "linear",
    keys: [{ frame, points }],
    file: "",
  };
  const range = editor.state.lives === "all" ? null : made.range;
  if (layer && kind === "stroke" && takesStroke(document, layer, { frame, range })) return addToGroup(document, layer, made, canvas);
  return addLayer(document, made);
}

/** @param {Point[]} points @returns {Point[]} */
function bounds(points) {
  const [xs, ys] = [points.map((point) => point[0]), points.map((point) => point[1])];
  return [[Math.min(...xs), Math.min(...ys)], [Math.max(...xs), Math.max(...ys)]];
}

/**
 * Return the path without the points that lie on the way between their neighbours (Douglas and Peucker's rule).
 * @param {Point[]} points
 * @param {number} width
 * @param {number} height
 * @returns {Point[]}
 */
function thinned(points, width, height) {
  const keep = new Set([0, points.length - 1]);
  /** @type {[number, number][]} */
  const parts = [[0, points.length - 1]];
  for (let part = parts.pop(); part; part = parts.pop()) {
    const [first, last] = part;
    let [worst, most] = [-1, SLACK];
    for (let i = first + 1; i < last; i++) {
      const off = distance(points[i], points[first], points[last], width, height);
      if (off > most) [worst, most] = [i, off];
    }
    if (worst < 0) continue;
    keep.add(worst);
    parts.push([first, worst], [worst, last]);
  }
  return points.filter((_, i) => keep.has(i));
}

/** @param {Point} p @param {Point} a @param {Point} b @param {number} width @param {number} height */
function distance(p, a, b, width, height) {
  const [dx, dy] = [(b[0] - a[0]) * width, (b[1] - a[1]) * height];
  const [px, py] = [(p[0] - a[0]) * width, (p[1] - a[1]) * height];
  const along = dx * dx + dy * dy;
  const u = along ? Math.min(1, Math.max(0, (px * dx + py * dy) / along)) : 0;
  const pressure = Math.abs((p[2] ?? 1) - ((a[2] ?? 1) + ((b[2] ?? 1) - (a[2] ?? 1)) * u));
  return Math.hypot(px - u * dx, py - u * dy) + 20 * pressure;
}
