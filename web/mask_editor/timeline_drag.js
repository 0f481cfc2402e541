// What the pointer does on the lanes. On "tokens": drag marks frames, click goes to a frame. On picture and sound: drag makes a
// run that does the opposite of the lane (Shift: the same; Shift in a run: the opposite of the run), its edges and inside
// move, a double click turns it. On "layer": keys and the layer's span.

import { putRange, snapEdge, snapSpan, withRanges } from "./edits.js";
import { changeGroup } from "./groups.js";
import { hitTest, timeAt, timeStateOf } from "./timeline.js";
import { pointOn } from "./dom.js";

/** @typedef {import("./editor.js").MaskEditor} MaskEditor */
/** @typedef {import("./timeline.js").Hit} Hit */
/** @typedef {import("./edits.js").Lane} Lane */
/** @typedef {import("./document.js").Layer} Layer */
/** @typedef {import("./document.js").MaskDocument} MaskDocument */
/** @typedef {{ hit: Hit, start: number, moved: boolean, document: MaskDocument, x: number, free: boolean, shift: boolean }} Drag */

const SLACK = 3; // pixels before a click becomes a drag

/** @param {Hit} hit @returns {Lane | null} */
function laneOf(hit) {
  return hit.row === "video" ? "video" : hit.row.startsWith("audio") ? "audio" : null;
}

/**
 * Listen to the pointer on the lanes.
 * @param {MaskEditor} editor
 * @param {HTMLCanvasElement} canvas
 */
export function listenToTimeline(editor, canvas) {
  /** @type {Drag | null} */
  let drag = null;
  /** @param {MouseEvent} event */
  const look = (event) => {
    const [x, y] = pointOn(canvas, event);
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    return { x, time: timeAt(x, width, editor.frames), hit: hitTest(timeStateOf(editor), { x, y, width, height }) };
  };
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || !editor.frames) return;
    canvas.setPointerCapture(event.pointerId);
    const { x, time, hit } = look(event);
    if (!hit) return;
    const document = editor.document;
    drag = { hit, start: time, moved: false, document, x, free: false, shift: event.shiftKey };
    choose(editor, hit, time);
  });
  canvas.addEventListener("pointermove", (event) => {
    const { x, time, hit } = look(event);
    if (!drag) return void (canvas.style.cursor = cursorOf(hit));
    drag.free = event.ctrlKey || event.metaKey;
    if (!drag.moved && Math.abs(x - drag.x) < SLACK) return;
    drag.moved = true;
    follow(editor, drag, time);
  });
  canvas.addEventListener("pointerup", (event) => {
    if (canvas.hasPointerCapture(event.pointerId)) canvas.releasePointerCapture(event.pointerId);
    if (drag?.moved) editor.settle();
    else if (drag?.hit.row === "bands" && editor.state.marked) editor.mark(null);
    drag = null;
  });
  canvas.addEventListener("pointercancel", () => {
    if (drag?.moved) editor.drop();
    drag = null;
  });
  canvas.addEventListener("dblclick", (event) => {
    const { hit } = look(event);
    const lane = hit && laneOf(hit);
    if (!lane || hit.index === undefined) return;
    editor.commit(withRanges(editor.document, lane, turned(editor, lane, hit.index)));
  });
}

/** @param {MaskEditor} editor @param {Lane} lane @param {number} index */
function turned(editor, lane, index) {
  return editor.document[lane].ranges.map((run, at) => (at === index ? { ...run, value: run.value > 0 ? 0 : 1 } : run));
}

/** @param {Hit | null} hit */
function cursorOf(hit) {
  if (!hit) return "default";
  if (hit.part === "from" || hit.part === "to" || hit.part === "key") return "ew-resize";
  return hit.part === "inside" && hit.row !== "keys" ? "grab" : "pointer";
}

/** @param {MaskEditor} editor @param {Hit} hit @param {number} time */
function choose(editor, hit, time) {
  const lane = laneOf(hit);
  editor.chooseRun(lane && hit.index !== undefined ? { lane, index: hit.index } : null);
  editor.goTo(hit.part === "key" ? (hit.key ?? 0) : Math.floor(time));
}

/** @param {MaskEditor} editor @param {Drag} drag @param {number} time */
function follow(editor, drag, time) {
  const { hit } = drag;
  const lane = laneOf(hit);
  if (hit.row === "bands") editor.mark(snapSpan("video", drag.start, time, editor.frames));
  else if (hit.row === "keys") dragLayer(editor, drag, time);
  else if (lane && (hit.index === undefined || drag.shift)) newRun(editor, drag, lane, time);
  else if (lane) moveRun(editor, drag, lane, time);
}

/** @param {Drag} drag @param {Lane} lane @returns {number} 0 keeps, 1 regenerates: by default what changes something there */
function valueOfNew(drag, lane) {
  const { base, ranges } = drag.document[lane];
  const run = drag.hit.index === undefined ? undefined : ranges[drag.hit.index];
  if (run) return run.value > 0 ? 0 : 1;
  return base > 0 === drag.shift ? 1 : 0;
}

/** @param {MaskEditor} editor @param {Drag} drag @param {Lane} lane @param {number} time */
function newRun(editor, drag, lane, time) {
  if (!editor.editable) return;
  const [from, to] = snapSpan(lane, drag.start, time, editor.frames);
  const channel = drag.document.audio.linked ? null : drag.hit.row === "audio1" ? 1 : 0;
  const run = { from, to, value: valueOfNew(drag, lane), ...(lane === "audio" ? { channel } : {}) };
  const ranges = putRange(drag.document[lane].ranges, run);
  editor.preview(withRanges(drag.document, lane, ranges));
  editor.chooseRun({ lane, index: ranges.length - 1 });
}

/** @param {MaskEditor} editor @param {Drag} drag @param {Lane} lane @param {number} time */
function moveRun(editor, drag, lane, time) {
  const run = drag.document[lane].ranges[drag.hit.index ?? 0];
  const { frames } = editor;
  if (!run || !editor.editable) return;
  /** @param {number} frame */
  const snap = (frame) => (drag.free ? Math.min(frames, Math.max(0, Math.round(frame))) : snapEdge(lane, frame, frames));
  let { from, to } = run;
  if (drag.hit.part === "from") from = snap(time);
  else if (drag.hit.part === "to") to = snap(time);
  else {
    from = snap(Math.min(frames - (run.to - run.from), Math.max(0, run.from + time - drag.start)));
    to = drag.free ? from + run.to - run.from : snap(from + run.to - run.from);
  }
  if (from >= to) return;
  const others = drag.document[lane].ranges.filter((_, index) => index !== drag.hit.index);
  const ranges = putRange(others, { ...run, from, to });
  editor.preview(withRanges(drag.document, lane, ranges));
  editor.chooseRun({ lane, index: ranges.length - 1 });
}

/** @param {MaskEditor} editor @param {Drag} drag @param {number} time */
function dragLayer(editor, drag, time) {
  const layer = drag.document.layers.find((found) => found.id === editor.selected);
  if (!layer || !editor.editable) return void editor.goTo(Math.floor(time));
  const { frames } = editor;
  const frame = Math.min(frames - 1, Math.floor(time));
  const { part, key } = drag.hit;
  if (part === "key") {
    if (layer.keys.some((other) => other.frame === frame && frame !== key)) return;
    const keysOf = (/** @type {Layer} */ of) =>
      of.keys.map((old) => (old.frame === key ? { ...old, frame } : old)).sort((a, b) => a.frame - b.frame);
    if (layer.kind !== "raster" && !keysOf(layer)[0].points) return;
    return void editor.preview(changeGroup(drag.document, layer, (old) => ({ ...old, keys: keysOf(old) })));
  }
  const edge = drag.free ? Math.round(time) : snapEdge("video", time, frames);
  let [from, to] = layer.range;
  if (part === "from") from = Math.min(edge, to - 1);
  else if (part === "to") to = Math.max(edge, from + 1);
  else return void editor.goTo(frame);
  editor.preview(changeGroup(drag.document, layer, (old) => ({ ...old, range: [from, Math.min(frames, to)] })));
}
