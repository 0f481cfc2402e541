// What the whole mask does, computed a few tokens at a time so that the page never waits.

import { tokenStart } from "./grid.js";

/** @typedef {import("./cells.js").MaskCells} MaskCells */
/** @typedef {import("./cells.js").MaskReport} MaskReport */

const SLICE_MS = 8;
const REST_MS = 60;

export class Statistics {
  /** @param {() => void} done */
  constructor(done) {
    this.done = done;
    this.timer = 0;
    /** @type {Float32Array | null} of each token, the share of its cells that are regenerated */
    this.share = null;
    /** @type {Float32Array | null} */
    this.sound = null;
    /** @type {MaskReport | null} */
    this.report = null;
    /** True while the numbers are of an older state. */
    this.stale = false;
  }

  /** Begin again. @param {MaskCells} cells */
  start(cells) {
    clearTimeout(this.timer);
    this.stale = true;
    const share = new Float32Array(cells.tokens);
    /** @type {number[]} */
    const rows = [];
    let token = 0;
    const slice = () => {
      const end = performance.now() + SLICE_MS;
      while (token < cells.tokens && performance.now() < end) {
        const found = cells.whole(token);
        let touched = 0;
        for (const cell of found) if (cell) touched++;
        rows.push(cells.touchedRows(token));
        share[token++] = touched / found.length;
      }
      if (token < cells.tokens) this.timer = window.setTimeout(slice);
      else this.#finish(cells, share, rows);
    };
    this.timer = window.setTimeout(slice, REST_MS);
  }

  /**
   * @param {MaskCells} cells
   * @param {Float32Array} share
   * @param {number[]} rows
   */
  #finish(cells, share, rows) {
    this.share = share;
    this.sound = cells.wholeAudio();
    this.report = cells.describe(rows);
    this.stale = false;
    this.done();
  }

  clear() {
    clearTimeout(this.timer);
    this.share = this.sound = this.report = null;
    this.stale = false;
  }
}

/**
 * Return the line under the editor.
 * @param {MaskReport | null} report
 * @param {{ share: Float32Array | null, seconds: number | null, frames: number }} about share: of each token's cells that are
 *   regenerated; seconds: of the last run's sampling
 * @returns {{ text: string, warning: string }}
 */
export function statusOf(report, { share, seconds, frames }) {
  if (!report) return { text: "", warning: "" };
  // As it is shaded, frame by frame: the report counts the model's squares, which are twice as large, token by token.
  const touched = (share ?? new Float32Array()).reduce((sum, one, token) => sum + one * (tokenStart(token + 1) - tokenStart(token)), 0);
  const picturePercent = (100 * touched) / frames;
  const { audioPercent, videoSeconds, audioSeconds, videoFrames, audioLatents } = report;
  const parts = [`${percent(picturePercent)} of the picture`, `${percent(audioPercent)} of the sound`];
  if (videoSeconds && videoFrames) parts.push(`picture ${span(videoSeconds)} (frames ${videoFrames[0]}–${videoFrames[1] - 1})`);
  if (audioSeconds && audioLatents) parts.push(`sound ${span(audioSeconds)}`);
  if (seconds !== null) parts.push(`sampling about ${duration(seconds)}`);
  let warning = "";
  if (!picturePercent && !audioPercent) warning = "Nothing will change: everything is kept.";
  else if (picturePercent > 99.999 && audioPercent === 100) warning = "Everything will be regenerated: nothing of the source is kept.";
  return { text: `${parts.join(" · ")} · ${(frames / 24).toFixed(2)} s in all`, warning };
}

/** @param {number} value */
function percent(value) {
  if (value > 0 && value < 1) return "<1%";
  return `${value > 99 && value < 100 ? 99 : Math.round(value)}%`;
}

/** @param {[number, number]} seconds */
function span([from, to]) {
  return `${from.toFixed(2)}–${to.toFixed(2)} s`;
}

/** @param {number} seconds */
function duration(seconds) {
  if (seconds < 60) return `${Math.max(1, Math.round(seconds))} s`;
  return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
}
