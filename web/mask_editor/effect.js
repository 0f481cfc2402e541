// Whether a shape that was just drawn changes a cell, and if not, why. No page is touched.

import { tokenOfFrame, tokenStart } from "./grid.js";
import { MaskCells } from "./cells.js";

/** @typedef {import("./document.js").MaskDocument} MaskDocument */
/** @typedef {import("./document.js").Layer} Layer */
/** @typedef {import("./cells.js").Raster} Raster */
/** @typedef {{ before: MaskDocument, after: MaskDocument, rasters: ReadonlyMap<string, Raster> }} Edit after: with a layer more, on top */

/** Pixels of the latent: wherever a stroke as wide is, it covers all samples of a cell. */
const SURE = 40;
const SLICE_MS = 8;

/**
 * Return whether an edit changes a token: at once where `cells` knows both.
 * @param {MaskCells} cells left at `after`
 * @param {Edit} edit
 * @param {number} token
 */
export function changesToken(cells, { before, after, rasters }, token) {
  cells.update(before, rasters);
  const was = cells.token(token);
  cells.update(after, rasters);
  return differ(was, cells.token(token));
}

/**
 * Say why the uppermost layer changes no cell; empty when it changes one. Worked out a little at a time, so that a page does
 * not wait for it.
 * @param {MaskCells} cells whose size and carried mask count
 * @param {Edit} edit
 * @param {() => boolean} [wanted] false once nobody waits for the answer any more
 */
export async function whyNothing({ size, carried }, { before, after, rasters }, wanted = () => true) {
  const layer = /** @type {Layer} */ (after.layers.at(-1));
  const tokens = tokensOf(layer, size.frames);
  const cellsOf = (/** @type {MaskDocument} */ document) => {
    const cells = new MaskCells(size);
    cells.carried = carried;
    cells.update(document, rasters);
    return cells;
  };
  const [was, now] = [cellsOf(before), cellsOf(after)];
  if (await some(tokens, (token) => differ(was.token(token), now.token(token)), wanted)) return "";
  if (tokens.every((token) => isOverruled(after, token))) return "No cell changed: ranges of the “picture” lane decide wherever this shape is.";
  if (!layer.strength) return "No cell changed: the strength of the shape is 0%.";
  if (layer.mode === "paint") return "No cell changed: all that this shape covers is regenerated already.";
  const alone = cellsOf({ ...after, layers: [{ ...layer, mode: "paint" }], video: { ...after.video, base: 0, ranges: [] } });
  const meets = (/** @type {Float32Array | null} */ values, /** @type {number} */ token) =>
    values !== null && alone.token(token).some((value, i) => value > 0 && values[i] > 0);
  if (await some(tokens, (token) => meets(now.token(token), token), wanted)) {
    const sure = Math.ceil(SURE * ((after.canvas?.height ?? size.height) / size.height));
    return `No cell changed: a cell of 16 px is kept only once all of it is erased. Size ${sure} px always does; overlay “paint” shows the stroke.`;
  }
  if (await some(tokens, (token) => meets(now.carriedAt(token), token), wanted)) {
    return "No cell changed: the violet mask came with the latent, and is changed in the node that made it.";
  }
  return "No cell changed: all that this shape covers is kept already.";
}

/** @param {Layer} layer @param {number} frames @returns {number[]} the tokens in which it acts */
function tokensOf({ range: [from, to] }, frames) {
  const first = tokenOfFrame(Math.max(0, from));
  const last = tokenOfFrame(Math.min(frames, to) - 1);
  return Array.from({ length: Math.max(0, last - first + 1) }, (_, i) => first + i);
}

/**
 * Return whether a test is true of a token, resting now and then.
 * @param {number[]} tokens
 * @param {(token: number) => boolean} test
 * @param {() => boolean} wanted
 */
async function some(tokens, test, wanted) {
  let end = performance.now() + SLICE_MS;
  for (const token of tokens) {
    if (!wanted() || test(token)) return true;
    if (performance.now() < end) continue;
    await new Promise((done) => setTimeout(done));
    end = performance.now() + SLICE_MS;
  }
  return false;
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
