// The mask that a latent came with, from a node before: fetched once for each, shown and counted, never changed here.

import { audioCount } from "./grid.js";

/** @typedef {import("./cells.js").Carried} Carried */
/** @typedef {import("./cells.js").MaskCells} MaskCells */

export class CarriedStore {
  /**
   * @param {(route: string) => string} url
   * @param {() => void} changed called when it has come
   */
  constructor(url, changed) {
    this.url = url;
    this.changed = changed;
    this.key = "";
    /** @type {Float32Array | null} */
    this.values = null;
  }

  /**
   * Return the mask of a key on the grid of `cells`; null while it is not there, and of another grid.
   * @param {string | null} key
   * @param {MaskCells} cells
   * @returns {Carried | null}
   */
  of(key, cells) {
    if ((key ?? "") !== this.key) {
      this.key = key ?? "";
      this.values = null;
      if (key) void this.#fetch(key);
    }
    const video = cells.tokens * cells.rows * cells.columns;
    if (this.values?.length !== video + 2 * audioCount(cells.size.frames)) return null;
    return { video: this.values.subarray(0, video), audio: this.values.subarray(video) };
  }

  /** @param {string} key */
  async #fetch(key) {
    const answer = await fetch(this.url(`/h3_engine/cells?key=${encodeURIComponent(key)}`)).catch(() => null);
    if (!answer?.ok) return;
    const data = new Uint8Array(await answer.arrayBuffer());
    if (key !== this.key) return;
    this.values = Float32Array.from(data, (level) => level / 255);
    this.changed();
  }
}
