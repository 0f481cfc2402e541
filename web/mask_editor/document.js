// The document of a mask edit, version 1: reading, writing, and which shape a layer has at a frame. No page is touched.
// docs/mask-document.md says what every field means; engine/contract/mask_document.py reads the same.

export const VERSION = 1;

/** @typedef {"stroke" | "rect" | "ellipse" | "polygon" | "raster"} LayerKind */
/** @typedef {[number, number] | [number, number, number]} Point x, y as fractions of the canvas, pressure 0..1 */
/** @typedef {{ width: number, height: number, frames: number }} Canvas pixels and pixel frames */
/** @typedef {{ frame: number, points?: Point[], offset?: [number, number], scale?: number }} Key */
/**
 * @typedef {object} Layer
 * @property {string} id
 * @property {LayerKind} kind
 * @property {"paint" | "erase"} mode
 * @property {number} size a stroke's width, pixels of the document's canvas
 * @property {number} softness pixels of the document's canvas
 * @property {number} strength 0..1
 * @property {[number, number]} range pixel frames [from, to)
 * @property {"hold" | "linear"} interpolate
 * @property {Key[]} keys by rising frame
 * @property {boolean} enabled
 * @property {string} name
 * @property {string} file of a raster: its uploaded file
 */
/** @typedef {{ from: number, to: number, value: number, channel?: number | null }} Range pixel frames [from, to) */
/**
 * @typedef {object} MaskDocument
 * @property {1} version
 * @property {Canvas | null} canvas null: nothing was painted yet
 * @property {Layer[]} layers
 * @property {{ base: number, ranges: Range[] }} video
 * @property {{ base: number, linked: boolean, ranges: Range[] }} audio
 * @property {number} feather pixels of the document's canvas
 */
/**
 * A layer's shape at a frame: its points after keys, offset and scale.
 * @typedef {object} Shape
 * @property {number[]} x pixels of the document's canvas
 * @property {number[]} y
 * @property {number[]} pressure 0..1
 * @property {[number, number]} offset fractions of the canvas
 * @property {number} scale
 */

/**
 * Return an empty document: everything is kept.
 * @param {Canvas | null} canvas
 * @returns {MaskDocument}
 */
export function emptyDocument(canvas = null) {
  return {
    version: VERSION,
    canvas,
    layers: [],
    video: { base: 0, ranges: [] },
    audio: { base: 0, linked: true, ranges: [] },
    feather: 0,
  };
}

/**
 * Read a widget's text. Unknown fields stay where they are. A text that is no document of this version gives a problem in
 * words and no document: show it read-only, never write it over.
 * @param {string} text empty: an empty document
 * @returns {{ document: MaskDocument, problem: null } | { document: null, problem: string }}
 */
export function readDocument(text) {
  void text;
  throw new Error("not written yet");
}

/**
 * Return the widget's text of a document: JSON on one line, coordinates with 5 digits.
 * @param {MaskDocument} document
 * @returns {string}
 */
export function writeDocument(document) {
  void document;
  throw new Error("not written yet");
}

/**
 * Return whether a layer acts at a frame.
 * @param {Layer} layer
 * @param {number} frame
 */
export function isActive(layer, frame) {
  return layer.enabled && layer.range[0] <= frame && frame < layer.range[1];
}

/**
 * Return a number that is the same for two frames exactly when the layer's shape is the same in both.
 * @param {Layer} layer
 * @param {number} frame
 * @returns {number}
 */
export function stateAt(layer, frame) {
  void [layer, frame];
  throw new Error("not written yet");
}

/**
 * Return a layer's shape at a frame.
 * @param {Layer} layer
 * @param {number} frame
 * @param {Canvas} canvas the document's
 * @returns {Shape}
 */
export function shapeAt(layer, frame, canvas) {
  void [layer, frame, canvas];
  throw new Error("not written yet");
}

/**
 * Return `count` points along a path, evenly spaced, so that keys of one layer can be interpolated point by point.
 * @param {Point[]} points
 * @param {number} count
 * @param {{ closed: boolean, canvas: Canvas }} options closed: of a polygon
 * @returns {Point[]}
 */
export function resample(points, count, options) {
  void [points, count, options];
  throw new Error("not written yet");
}
