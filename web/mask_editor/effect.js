// Whether a shape that was just drawn changes a cell, and if not, why. No page is touched.

import { tokenOfFrame, tokenStart } from "./grid.js";
import { MaskCells } from "./cells.js";

/** @typedef {import("./document.js").MaskDocument} MaskDocument */
/** @typedef {import("./document.js").Layer} Layer */
/** @typedef {import("./cells.js").Raster} Raster */

/** Pixels of the latent: wherever a stroke as wide is, it covers all samples of a cell. */
const SURE = 40;

/**
 * Say why the uppermost layer changes no cell; empty when it changes one.
 * @param {MaskCells} cells of the latent's size; left at `after`
 * @param {{ before: MaskDocument, after: MaskDocument, rasters: ReadonlyMap<string, Raster> }} edit
 */
export function whyNothing(cells, { before, after, rasters }) {
  const layer = /** @type {Layer} */ (after.layers.at(-1));
  const { frames, height } = cells.size;
  const first = tokenOfFrame(Math.max(0, layer.range[0]));
  const tokens = Array.from({ length: tokenOfFrame(Math.min(frames, layer.range[1]) - 1) - first + 1 }, (_, i) => first + i);
  const at = (/** @type {MaskDocument} */ document, /** @type {number} */ token) => {
    cells.update(document, rasters);
    return cells.token(token);
  };
  const changed = tokens.some((token) => differ(at(before, token), at(after, token)));
  if (changed) return "";
  if (tokens.every((token) => isOverruled(after, token))) return "No cell changed: ranges of the “picture” lane decide wherever this shape is.";
  if (!layer.strength) return "No cell changed: the strength of the shape is 0%.";
  if (layer.mode === "paint") return "No cell changed: all that this shape covers is regenerated already.";
  const alone = new MaskCells(cells.size);
  alone.update({ ...after, layers: [{ ...layer, mode: "paint" }], video: { ...after.video, base: 0, ranges: [] } });
  const meets = (/** @type {Float32Array | null} */ values, /** @type {number} */ token) =>
    values !== null && alone.token(token).some((value, i) => value > 0 && values[i] > 0);
  if (tokens.some((token) => meets(at(after, token), token))) {
    const sure = Math.ceil(SURE * ((after.canvas?.height ?? height) / height));
    return `No cell changed: a cell of 16 px is kept only once all of it is erased. Size ${sure} px always does; overlay “paint” shows the stroke.`;
  }
  if (tokens.some((token) => meets(cells.carriedAt(token), token))) {
    return "No cell changed: the violet mask came with the latent, and is changed in the node that made it.";
  }
  return "No cell changed: all that this shape covers is kept already.";
}

/** @param {Float32Array} one @param {Float32Array} other */
function differ(one, other) {
  return one !== other && one.some((value, i) => value !== other[i]);
}

/** @param {MaskDocument} edit @param {number} token */
function isOverruled({ video }, token) {
  for (let frame = tokenStart(token); frame < tokenStart(token + 1); frame++) {
    if (!video.ranges.some(({ from, to }) => from <= frame && frame < to)) return false;
  }
  return true;
}
