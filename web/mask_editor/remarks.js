// What there is to say of an edit, in words. Pure functions: no page.

import { isActive } from "./document.js";

/** @typedef {import("./document.js").MaskDocument} MaskDocument */
/** @typedef {import("./document.js").Range} Range */
/** @typedef {import("./grid.js").Size} Size */

const ASPECT_SLACK = 1.05;
const CHUNK = 17; // frames between two lengths of the model
const LENGTHS = "The model's lengths are 17n+5 frames at 24 a second: 5, 22, 39, 56 …";

/**
 * Say how an edit differs from the latent that is connected; empty when it fits, or edits nothing.
 * @param {MaskDocument} edit
 * @param {Size | null} given the latent's
 */
export function mismatchOf({ canvas: drawn, layers, video, audio }, given) {
  if (!drawn || !given || !(layers.length + video.ranges.length + audio.ranges.length)) return "";
  const ratio = (drawn.width * given.height) / (drawn.height * given.width);
  const fits = drawn.frames === given.frames && ratio <= ASPECT_SLACK && 1 / ratio <= ASPECT_SLACK;
  const name = (/** @type {Size} */ s) => `${s.width}x${s.height}, ${s.frames} frames`;
  return fits ? "" : `This edit was painted on ${name(drawn)}; the latent is ${name(given)}.`;
}

/**
 * Say why what is painted does not count in a frame; empty when it does.
 * @param {MaskDocument} edit
 * @param {number} frame
 * @param {boolean} painting whether somebody is about to paint; else only layers that are there are spoken of
 */
export function overruled({ layers, video }, frame, painting) {
  const range = video.ranges.findLast(({ from, to }) => from <= frame && frame < to);
  if (!range || !(painting || layers.some((layer) => isActive(layer, frame)))) return "";
  const { value } = range;
  const does = value === 0 ? "keeps all" : value === 1 ? "regenerates all" : `sets ${Math.round(value * 100)}% for all`;
  return `A range of the “picture” lane ${does} of this frame: what is painted does not count here.` +
    (painting ? " Delete the range, or drag its edge, to paint here." : "");
}

/**
 * Return how many frames of a latent are the clip's own: behind them its last picture is held.
 * @param {number} frames of the latent
 * @param {number} clip frames of the clip that is shown, 0 when there is none
 */
export function ownFrames(frames, clip) {
  return clip && clip < frames && frames - clip < CHUNK ? clip : frames;
}

/**
 * Return what to say of a clip that is not as long as its latent.
 * @param {number} frames of the latent
 * @param {number} clip frames of the clip that is shown, 0 when there is none
 * @returns {{ text: string, title: string }} text: short, empty when there is nothing to say
 */
export function lengthOf(frames, clip) {
  if (!clip || clip === frames) return { text: "", title: LENGTHS };
  const held = frames - ownFrames(frames, clip);
  if (held) {
    return { text: ` (clip ${clip} + ${held} held)`, title: `The clip has ${clip} frames. ${LENGTHS} So its last picture is held for ${held} more.` };
  }
  return { text: ` (clip ${clip})`, title: `The clip that is shown has ${clip} frames, the latent ${frames}. ${LENGTHS}` };
}

/**
 * Return where the middle of the cells above 0 is from left to right, 0..1; null where there are none.
 * @param {Float32Array} cells
 * @param {number} columns
 */
export function middleOfCells(cells, columns) {
  let [left, right] = [columns, -1];
  cells.forEach((value, i) => {
    if (value) [left, right] = [Math.min(left, i % columns), Math.max(right, i % columns)];
  });
  return right < 0 ? null : (left + right + 1) / 2 / columns;
}

/**
 * Say what a preset put in place of what, and what it set.
 * @param {MaskDocument} before
 * @param {MaskDocument} after
 */
export function presetRemark(before, after) {
  const key = (/** @type {Range} */ { from, to, value, channel }) => `${from} ${to} ${value} ${channel ?? null}`;
  const gone = (/** @type {Range[]} */ old, /** @type {Range[]} */ now) => old.filter((range) => !now.some((other) => key(other) === key(range))).length;
  const count = gone(before.video.ranges, after.video.ranges) + gone(before.audio.ranges, after.audio.ranges);
  const parts = [];
  if (count) parts.push(`Replaced ${count} ${count > 1 ? "ranges" : "range"}.`);
  if (before.audio.base !== after.audio.base) parts.push("The sound elsewhere is kept again.");
  const [first, then] = after.video.ranges;
  if (then) parts.push(`Kept: frames ${first.from}–${first.to - 1} (${(first.to / 24).toFixed(2)} s), regenerated: ${then.from}–${then.to - 1}; whole blocks.`);
  return parts.join(" ");
}
