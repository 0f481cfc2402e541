// The pixels of raster layers: fetched once for each file and size, already brought to the mask's samples of 4 x 4 pixels.

import { query } from "./frames.js";

/** @typedef {import("./document.js").MaskDocument} MaskDocument */
/** @typedef {import("./cells.js").Raster} Raster */
/** @typedef {import("./cells.js").Size} Size */
/** @typedef {import("./frames.js").Source} Source */

const SAMPLE = 4; // pixels

export class RasterStore {
  /**
   * @param {(route: string) => string} url
   * @param {() => void} changed called when pixels have come
   */
  constructor(url, changed) {
    this.url = url;
    this.changed = changed;
    this.size = "";
    /** @type {Map<string, Raster>} by the name in the document */
    this.found = new Map();
    /** @type {Set<string>} asked for, or not there */
    this.asked = new Set();
    /** @type {Source | null} the MASK that is connected to the node */
    this.connected = null;
  }

  /**
   * Return the pixels that are there of a document's rasters, and ask for the others.
   * @param {MaskDocument} document
   * @param {Size} size
   * @returns {ReadonlyMap<string, Raster>}
   */
  of(document, size) {
    const name = `${size.width}x${size.height}x${size.frames}`;
    if (name !== this.size) this.#forget();
    this.size = name;
    for (const layer of document.layers) {
      if (layer.kind === "raster" && !this.asked.has(layer.file)) void this.#fetch(layer.file, size);
    }
    return this.found;
  }

  /** Take another connected mask. @param {Source | null} source */
  connect(source) {
    if (JSON.stringify(source) === JSON.stringify(this.connected)) return;
    this.connected = source;
    this.asked.delete("@mask");
    this.found.delete("@mask");
    this.changed();
  }

  #forget() {
    this.found = new Map();
    this.asked.clear();
  }

  /**
   * @param {string} file
   * @param {Size} size
   */
  async #fetch(file, size) {
    this.asked.add(file);
    const source = file === "@mask" ? this.connected : { file };
    if (!source) return;
    const [width, height] = [size.width / SAMPLE, size.height / SAMPLE];
    const answer = await fetch(this.url(`/h3_engine/raster?${query(source, { width, height, frames: size.frames })}`)).catch(() => null);
    if (!answer?.ok || !this.asked.has(file) || this.size !== `${size.width}x${size.height}x${size.frames}`) return;
    const data = new Uint8Array(await answer.arrayBuffer());
    this.found.set(file, { width, height, frames: data.length / (width * height), data });
    this.changed();
  }
}
