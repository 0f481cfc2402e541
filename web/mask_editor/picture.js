// What stands on the picture's canvas: the frame (or why there is none), onion skin, the result beside the source, grid, cells,
// the layers' shapes and the brush.

import { tokenCount, tokenOfFrame, tokenStart } from "./grid.js";
import { isActive, shapeAt } from "./document.js";
import { prepare } from "./dom.js";
import { groupOf } from "./groups.js";
import { drawCells, drawCursor, drawEdges, drawEmpty, drawGhost, drawGrid, drawKnob, drawLabel, drawPicture, drawShape, hitsShape } from "./overlay.js";

/** @typedef {import("./editor.js").MaskEditor} MaskEditor */
/** @typedef {import("./viewport.js").Box} Box */
/** @typedef {CanvasRenderingContext2D} Context */

const PREFETCH = 8;
const KNOB = 11;
// What differs from the token before is cold, from the one after warm.
const BEFORE = "#2f7bff";
const AFTER = "#ff7a1a";

/** @param {MaskEditor} editor */
export function drawEditor(editor) {
  const context = prepare(editor.panel.picture, devicePixelRatio * editor.panel.scale());
  if (!context) return;
  const box = editor.box();
  drawFrames(editor, context, box);
  const { overlay, grid } = editor.state;
  if (grid) drawGrid(context, editor.size, box);
  const { columns } = editor.cells;
  if (editor.known && overlay === "cells") {
    const token = tokenOfFrame(editor.frame);
    const carried = editor.cells.carriedAt(token);
    // What would become of an edit of another shot is outlined: nothing of it runs yet.
    const shaded = !editor.moved && (!editor.comparing || editor.pending !== null || editor.host.edited());
    if (carried && shaded) drawCells(context, carried, columns, box, { carried: true });
    if (shaded) drawCells(context, editor.cells.token(token), columns, box);
    drawEdges(context, editor.cells.whole(token), columns, box);
  }
  drawShapes(editor, context, box);
  drawPointer(editor, context, box);
}

/** @param {MaskEditor} editor @param {Context} context @param {Box} box */
function drawFrames(editor, context, box) {
  const { frame, source, state } = editor;
  const picture = source?.get(frame);
  if (picture) drawPicture(context, picture, box);
  else {
    const stale = editor.lastPicture?.width ? editor.lastPicture : null;
    drawEmpty(context, box, stale ? "" : emptyText(editor));
    // Until the frame is there the last one stays, faintly; while playing as it is.
    if (stale) drawPicture(context, stale, box, state.playing ? 1 : 0.4);
  }
  editor.lastPicture = picture ?? editor.lastPicture;
  if (state.onion) drawOnion(editor, context, box);
  if (state.playing) for (let ahead = 1; ahead <= PREFETCH; ahead++) source?.get((frame + ahead) % editor.frames);
  const after = editor.comparing ? editor.result?.get(frame) : null;
  if (!after) return;
  const x = box.left + editor.wipe * box.width;
  context.save();
  context.beginPath();
  context.rect(x, 0, 1e5, 1e5);
  context.clip();
  drawPicture(context, after, box);
  context.restore();
  context.fillStyle = "#ffd65a";
  context.fillRect(x - 1, box.top, 2, box.height);
  const knob = knobOf(editor);
  drawKnob(context, knob);
  drawLabel(context, "before", x - knob.radius - 4, knob.y + 4, "right");
  drawLabel(context, "after", x + knob.radius + 4, knob.y + 4, "left");
}

/**
 * Return where the line between source and result is dragged: low, beside most shapes, and not under what the editor says.
 * @param {MaskEditor} editor
 */
export function knobOf(editor) {
  const box = editor.box();
  const bottom = Math.min(box.top + box.height, editor.panel.picture.clientHeight);
  return { x: box.left + editor.wipe * box.width, y: bottom - KNOB - 6, radius: KNOB };
}

/** @param {MaskEditor} editor @param {Context} context @param {Box} box */
function drawOnion({ frame, frames, source }, context, box) {
  const now = source?.get(frame);
  if (!now) return;
  const token = tokenOfFrame(frame);
  const before = token > 0 ? source?.get(tokenStart(token - 1)) : null;
  const after = token + 1 < tokenCount(frames) ? source?.get(tokenStart(token + 1)) : null;
  if (before) drawGhost(context, { now, other: before, colour: BEFORE }, box);
  if (after) drawGhost(context, { now, other: after, colour: AFTER }, box);
}

/** @param {MaskEditor} editor */
function emptyText({ known, source }) {
  if (!known) return "";
  if (source?.problem) return `Frames: ${source.problem}.`;
  return source ? "Loading frames …" : "No frames: connect source_images (they show after “run up to here”). You can paint without.";
}

/** @param {MaskEditor} editor @param {Context} context @param {Box} box */
function drawShapes(editor, context, box) {
  const { canvas, frame, layer: chosen, state } = editor;
  const fill = state.overlay === "paint";
  for (const layer of editor.document.layers) {
    if (layer.kind === "raster" || !isActive(layer, frame)) continue;
    const selected = !!chosen && groupOf(layer) === groupOf(chosen) && !editor.pending && state.overlay !== "off";
    if (fill || selected) drawShape(context, layer, shapeAt(layer, frame, canvas), { box, canvas, selected, fill });
  }
}

/** @param {MaskEditor} editor @param {Context} context @param {Box} box */
function drawPointer(editor, context, box) {
  if (!editor.pointer || !editor.editable || (editor.tool !== "brush" && editor.tool !== "erase")) return;
  const scale = box.width / editor.canvas.width;
  drawCursor(context, ...editor.pointer, { radius: (editor.brush.size / 2) * scale, softness: editor.brush.softness * scale });
}

/**
 * Return the uppermost layer whose shape is under a place of the canvas; the chosen one goes before the others.
 * @param {MaskEditor} editor
 * @param {[number, number]} at
 */
export function layerUnder(editor, at) {
  const { canvas, frame, layer: chosen } = editor;
  const context = editor.panel.picture.getContext("2d");
  const hit = editor.document.layers.filter((layer) => layer.kind !== "raster" && isActive(layer, frame) && context
    && hitsShape(context, layer, shapeAt(layer, frame, canvas), { box: editor.box(), canvas, at }));
  return hit.find((layer) => chosen && groupOf(layer) === groupOf(chosen)) ?? hit.at(-1) ?? null;
}
