// Layers that belong together: strokes that were painted one after the other are chosen, moved, keyed and deleted as one. A
// group is a name that its layers share; the mask does not depend on it. Pure functions on documents; see edits.js.

import { middleOf, shapeAt } from "./document.js";
import { addLayer, transformLayer } from "./edits.js";

/** @typedef {import("./document.js").MaskDocument} MaskDocument */
/** @typedef {import("./document.js").Layer} Layer */
/** @typedef {import("./document.js").Canvas} Canvas */
/** @typedef {Layer["mode"] | "mixed"} GroupMode */

/** @param {Layer} layer @returns {string} the same for layers that belong together */
export function groupOf(layer) {
  return layer.group || layer.id;
}

/**
 * Return the layers that belong to one, itself among them.
 * @param {MaskDocument} document
 * @param {Layer} layer
 */
export function membersOf(document, layer) {
  return document.layers.filter((other) => groupOf(other) === groupOf(layer));
}

/**
 * Return what a layer and those that belong to it do: `mixed` where some paint and some erase.
 * @param {MaskDocument} document
 * @param {Layer} layer
 * @returns {GroupMode}
 */
export function modeOf(document, layer) {
  return membersOf(document, layer).every((other) => other.mode === layer.mode) ? layer.mode : "mixed";
}

/**
 * @param {MaskDocument} document
 * @param {Layer} layer
 * @param {(layer: Layer) => Layer} change of each that belongs to it
 * @returns {MaskDocument}
 */
export function changeGroup(document, layer, change) {
  return { ...document, layers: document.layers.map((other) => (groupOf(other) === groupOf(layer) ? change(other) : other)) };
}

/**
 * @param {MaskDocument} document
 * @param {Layer} layer
 * @returns {MaskDocument}
 */
export function removeGroup(document, layer) {
  return { ...document, layers: document.layers.filter((other) => groupOf(other) !== groupOf(layer)) };
}

/**
 * Move a group up (later, over the others) or down, past one other group.
 * @param {MaskDocument} document
 * @param {Layer} layer
 * @param {number} by 1 or -1
 * @returns {MaskDocument}
 */
export function reorderGroup(document, layer, by) {
  const order = [...new Set(document.layers.map(groupOf))];
  const from = order.indexOf(groupOf(layer));
  const to = Math.min(order.length - 1, Math.max(0, from + by));
  order.splice(to, 0, ...order.splice(from, 1));
  return { ...document, layers: order.flatMap((group) => document.layers.filter((other) => groupOf(other) === group)) };
}

/**
 * Move and scale a group as it is at a frame, about the middle of the given layer.
 * @param {MaskDocument} document
 * @param {Layer} layer
 * @param {{ frame: number, canvas: Canvas, dx?: number, dy?: number, factor?: number }} by dx, dy: fractions of the canvas
 * @returns {MaskDocument}
 */
export function transformGroup(document, layer, { frame, canvas, dx = 0, dy = 0, factor = 1 }) {
  const about = middleAt(layer, frame, canvas);
  return changeGroup(document, layer, (other) => {
    const [x, y] = middleAt(other, frame, canvas);
    const by = { dx: dx + (x - about[0]) * (factor - 1), dy: dy + (y - about[1]) * (factor - 1), factor };
    return transformLayer(other, frame, canvas, by);
  });
}

/**
 * Return whether a stroke that lives over `range` goes to a layer's group. Only to the uppermost, so that what is erased is
 * erased from all.
 * @param {MaskDocument} document
 * @param {Layer | null} layer the chosen one
 * @param {{ frame: number, range: [number, number] | null }} stroke range: null: as long as the group
 */
export function takesStroke(document, layer, { frame, range }) {
  const top = document.layers.at(-1);
  if (!layer || !top || layer.kind !== "stroke" || groupOf(top) !== groupOf(layer) || !layer.enabled) return false;
  if (range) return range[0] === layer.range[0] && range[1] === layer.range[1];
  return layer.range[0] <= frame && frame < layer.range[1];
}

/**
 * Return the document with a stroke in a layer's group; it moves as the layer does.
 * @param {MaskDocument} document
 * @param {Layer} layer
 * @param {Layer} stroke as it was drawn at its only key's frame
 * @param {Canvas} canvas
 * @returns {MaskDocument}
 */
export function addToGroup(document, layer, stroke, canvas) {
  const group = groupOf(layer);
  const [{ frame, points = [] }] = stroke.keys;
  const [x, y] = middleAt(stroke, frame, canvas);
  const [cx, cy] = middleAt(layer, frame, canvas);
  const now = shapeAt(layer, frame, canvas);
  const keys = layer.keys.map((key, index) => {
    const { offset, scale } = shapeAt(layer, key.frame, canvas);
    const grown = scale / now.scale;
    // Where the layer's own transform from `frame` to the key brings the stroke's middle.
    const dx = offset[0] - now.offset[0] + (x - cx) * (grown - 1);
    const dy = offset[1] - now.offset[1] + (y - cy) * (grown - 1);
    const still = !dx && !dy && grown === 1;
    return { frame: key.frame, ...(index ? {} : { points }), ...(still ? {} : { offset: /** @type {[number, number]} */ ([dx, dy]), scale: grown }) };
  });
  const joined = { ...stroke, group, name: layer.name, range: layer.range, interpolate: layer.interpolate, keys };
  return addLayer(changeGroup(document, layer, (other) => ({ ...other, group })), joined);
}

/**
 * Return the middle of a layer's shape at a frame, in fractions of the canvas.
 * @param {Layer} layer
 * @param {number} frame
 * @param {Canvas} canvas
 * @returns {[number, number]}
 */
function middleAt(layer, frame, canvas) {
  const { x, y } = shapeAt(layer, frame, canvas);
  return x.length ? [middleOf(x) / canvas.width, middleOf(y) / canvas.height] : [0.5, 0.5];
}
