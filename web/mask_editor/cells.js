// The mask on the latent's grid, as the engine computes it (engine/contract/mask_cells.py; formulae in
// docs/mask-document.md). 0 keeps, 1 regenerates. No page is touched. What was computed for a frame is found again until a
// layer that acts there is replaced: layers and rasters are compared by identity, so an edit must put new objects in place
// of those that it changes.

import { emptyDocument, isActive, shapeAt, stateAt } from "./document.js";
import { CELL, FPS, audioCount, tokenCount, tokenStart } from "./grid.js";
import { combine, SampleGrid, SAMPLES } from "./shapes.js";

/** @typedef {import("./document.js").MaskDocument} MaskDocument */
/** @typedef {import("./document.js").Layer} Layer */
/** @typedef {import("./document.js").Range} Range */
/** @typedef {{ video: Float32Array, audio: Float32Array }} Carried the mask that the latent came with: tokens x rows x columns, 2 x latents */
/** @typedef {import("./grid.js").Size} Size */
/**
 * Pixels of a raster layer's file.
 * @typedef {object} Raster
 * @property {number} width
 * @property {number} height
 * @property {number} frames
 * @property {Uint8Array | Uint8ClampedArray | Float32Array} data frames x height x width, 0..255 (bytes) or 0..1 (floats)
 */
/**
 * @typedef {object} MaskReport
 * @property {number} videoPercent rows of the picture whose mask is not 0, of 100
 * @property {number} audioPercent
 * @property {[number, number] | null} videoFrames pixel frames [first, end) touched, whole tokens
 * @property {[number, number] | null} videoSeconds
 * @property {[number, number] | null} audioLatents latents of 25 ms [first, end) touched in any channel
 * @property {[number, number] | null} audioSeconds
 */

/** What was computed for this many looks of a frame, and of a token, is kept. */
const KEPT = 1024;
/** What a time may miss an edge of a sound latent by, in latents, and still end there. */
const ROUNDING = 1e-6;

/** The cells of one document at one size. */
export class MaskCells {
  /** @param {Size} size of the latent */
  constructor(size) {
    this.size = size;
    this.columns = size.width / CELL;
    this.rows = size.height / CELL;
    this.tokens = tokenCount(size.frames);
    this.edit = emptyDocument();
    /** @type {ReadonlyMap<string, Raster>} */
    this.rasters = new Map();
    /** @type {Map<string, Float32Array>} */
    this.kept = new Map();
    /** @type {WeakMap<object, number>} */
    this.numbers = new WeakMap();
    this.last = 0;
    /** @type {Carried | null} */
    this.carried = null;
    this.below = { look: "", samples: new Float32Array() };
    this.samples = new Float32Array(this.columns * this.rows * SAMPLES * SAMPLES);
  }

  /**
   * Take another state of the document, and the pixels of its raster layers by file.
   * @param {MaskDocument} edit
   * @param {ReadonlyMap<string, Raster>} [rasters] a missing one counts as 0 everywhere
   */
  update(edit, rasters = new Map()) {
    this.edit = edit;
    this.rasters = rasters;
  }

  /**
   * Return the mask of one pixel frame, rows x columns (do not write into it).
   * @param {number} frame
   * @returns {Float32Array}
   */
  frame(frame) {
    return this.once(this.lookOf(frame), () => this.painted(frame));
  }

  /**
   * Return the mask of one token: what the engine regenerates, rows x columns (do not write into it).
   * @param {number} token
   * @returns {Float32Array}
   */
  token(token) {
    const frames = this.framesOf(token);
    const looks = [...new Set(frames.map((frame) => this.lookOf(frame)))];
    if (looks.length === 1) return this.frame(frames[0]);
    return this.once(looks.join("|"), () => {
      const cells = this.frame(frames[0]).slice();
      for (const frame of frames.slice(1)) {
        const other = this.frame(frame);
        for (let i = 0; i < cells.length; i++) if (other[i] > cells[i]) cells[i] = other[i];
      }
      return cells;
    });
  }

  /**
   * Return the mask of all tokens, tokens x rows x columns.
   * @returns {Float32Array}
   */
  video() {
    const cells = new Float32Array(this.tokens * this.rows * this.columns);
    for (let token = 0; token < this.tokens; token++) cells.set(this.token(token), token * this.rows * this.columns);
    return cells;
  }

  /**
   * Return the sound's mask, 2 x latents: left, then right.
   * @returns {Float32Array}
   */
  audio() {
    const { audio } = this.edit;
    const count = audioCount(this.size.frames);
    const cells = new Float32Array(2 * count);
    for (const channel of [0, 1]) {
      const runs = audio.ranges.filter((run) => audio.linked || (run.channel ?? channel) === channel);
      fillAudio(cells.subarray(channel * count, (channel + 1) * count), runs, audio.base, this.size.frames);
    }
    return cells;
  }

  /**
   * Return the mask that the latent came with, of one token; null without one.
   * @param {number} token
   */
  carriedAt(token) {
    const count = this.rows * this.columns;
    return this.carried && this.carried.video.subarray(token * count, (token + 1) * count);
  }

  /**
   * Return what is regenerated of a token: by this document or by the mask that the latent came with.
   * @param {number} token
   */
  whole(token) {
    return larger(this.token(token), this.carriedAt(token));
  }

  /** Return the same of the sound, 2 x latents. */
  wholeAudio() {
    return larger(this.audio(), this.carried?.audio ?? null);
  }

  /**
   * Return how many of the model's rows of a token are regenerated.
   * @param {number} token
   */
  touchedRows(token) {
    return this.rowsOf(token).reduce((sum, row) => sum + Number(row > 0), 0);
  }

  /**
   * Return what the mask does, in numbers.
   * @param {number[]} [touched] `touchedRows` of each token, where they are known
   * @returns {MaskReport}
   */
  describe(touched = Array.from({ length: this.tokens }, (_, token) => this.touchedRows(token))) {
    const sound = this.wholeAudio();
    const count = sound.length / 2;
    const latents = Array.from({ length: count }, (_, i) => Math.max(sound[i], sound[count + i]));
    const rows = (this.rows * this.columns) / 4;
    const tokens = extent(touched);
    const audioLatents = extent(latents);
    const videoFrames = tokens && pair(tokenStart(tokens[0]), tokenStart(tokens[1]));
    return {
      videoPercent: (100 * touched.reduce((sum, some) => sum + some, 0)) / (this.tokens * rows),
      audioPercent: (100 * sound.filter((value) => value > 0).length) / sound.length,
      videoFrames,
      videoSeconds: videoFrames && pair(videoFrames[0] / FPS, videoFrames[1] / FPS),
      audioLatents,
      audioSeconds: audioLatents && pair(audioLatents[0] / 40, audioLatents[1] / 40),
    };
  }

  /**
   * Return what the model is given for a token: the maximum over 2 x 2 cells, rounded up to 1/256.
   * @param {number} token
   * @returns {Float32Array}
   */
  rowsOf(token) {
    const largest = largestOfTiles(this.whole(token), this.rows, this.columns, 2);
    return largest.map((value) => Math.ceil(value * 256) / 256);
  }

  /** @param {number} token @returns {number[]} its pixel frames */
  framesOf(token) {
    const start = tokenStart(token);
    return Array.from({ length: tokenStart(token + 1) - start }, (_, i) => start + i);
  }

  /**
   * Return a text that is the same for frames that look the same.
   * @param {number} frame
   * @returns {string}
   */
  lookOf(frame) {
    const run = rangeAt(this.edit.video.ranges, frame);
    return run ? `=${run.value}` : this.lookOfLayers(this.actingAt(frame), frame);
  }

  /**
   * @param {Layer[]} layers
   * @param {number} frame
   */
  lookOfLayers(layers, frame) {
    const { canvas, video, feather } = this.edit;
    const { width = 0, height = 0 } = canvas ?? {};
    const looks = layers.map((layer) => {
      const raster = this.rasters.get(layer.file);
      const pixels = layer.kind === "raster" && raster ? `r${this.numberOf(raster)}f${shownAt(layer, frame, raster)}` : "";
      return `${this.numberOf(layer)}@${stateAt(layer, frame)}${pixels}`;
    });
    return [video.base, feather, width, height, ...looks].join(" ");
  }

  /** @param {number} frame @returns {Layer[]} */
  actingAt(frame) {
    return this.edit.layers.filter((layer) => isActive(layer, frame) && layer.strength > 0);
  }

  /**
   * @param {number} frame
   * @returns {Float32Array}
   */
  painted(frame) {
    const { canvas, video } = this.edit;
    const run = rangeAt(video.ranges, frame);
    const layers = run || !canvas ? [] : this.actingAt(frame);
    if (!layers.length || !canvas) return new Float32Array(this.rows * this.columns).fill(run ? run.value : video.base);
    // The uppermost is the one that is being drawn: what lies under it stays for the next time.
    const below = layers.slice(0, -1);
    const look = this.lookOfLayers(below, frame);
    if (look !== this.below.look) {
      this.samples.fill(video.base);
      this.combine(below, frame, canvas);
      this.below = { look, samples: this.samples.slice() };
    }
    this.samples.set(this.below.samples);
    this.combine(layers.slice(-1), frame, canvas);
    return largestOfTiles(this.samples, this.rows * SAMPLES, this.columns * SAMPLES, SAMPLES);
  }

  /**
   * Put layers onto the samples.
   * @param {Layer[]} layers
   * @param {number} frame
   * @param {import("./document.js").Canvas} canvas
   */
  combine(layers, frame, canvas) {
    const { feather } = this.edit;
    const grid = new SampleGrid(canvas, this.columns * SAMPLES, this.rows * SAMPLES);
    for (const layer of layers) {
      const raster = this.rasters.get(layer.file);
      const shown = raster ? shownAt(layer, frame, raster) : 0;
      combine(this.samples, layer, shapeAt(layer, frame, canvas), grid, { feather, raster, shown });
    }
  }

  /** @param {object} thing @returns {number} the same for the same object */
  numberOf(thing) {
    const number = this.numbers.get(thing) ?? ++this.last;
    this.numbers.set(thing, number);
    return number;
  }

  /**
   * @param {string} look
   * @param {() => Float32Array} make
   * @returns {Float32Array}
   */
  once(look, make) {
    const found = this.kept.get(look) ?? make();
    this.kept.delete(look);
    this.kept.set(look, found); // the newest is the last
    if (this.kept.size > KEPT) this.kept.delete(this.kept.keys().next().value ?? "");
    return found;
  }
}

/**
 * @param {Float32Array} cells
 * @param {Float32Array | null} others
 * @returns {Float32Array}
 */
function larger(cells, others) {
  return others ? cells.map((value, i) => Math.max(value, others[i])) : cells;
}

/**
 * @param {Range[]} ranges
 * @param {number} frame
 * @returns {Range | undefined} the last that covers the frame
 */
function rangeAt(ranges, frame) {
  return ranges.findLast((run) => run.from <= frame && frame < run.to);
}

/**
 * Return which frame of its file a raster layer shows.
 * @param {Layer} layer
 * @param {number} frame
 * @param {Raster} raster
 */
function shownAt(layer, frame, raster) {
  return Math.min(frame - layer.range[0], raster.frames - 1);
}

/**
 * Set one channel's latents: each takes the maximum over its time.
 * @param {Float32Array} cells
 * @param {Range[]} runs
 * @param {number} base
 * @param {number} frames
 */
function fillAudio(cells, runs, base, frames) {
  const perFrame = 40 / FPS;
  const edges = runs.flatMap((run) => [Math.min(run.from, frames), Math.min(run.to, frames)]);
  const sorted = [...new Set([0, frames, ...edges])].sort((a, b) => a - b);
  for (let i = 0; i + 1 < sorted.length; i++) {
    const [start, stop] = [sorted[i], sorted[i + 1]];
    const value = runs.findLast((run) => run.from <= start && stop <= run.to)?.value ?? base;
    const first = Math.min(Math.floor(start * perFrame + ROUNDING), cells.length - 1);
    const end = stop === frames ? cells.length : Math.max(Math.ceil(stop * perFrame - ROUNDING), first + 1);
    for (let at = first; at < end; at++) cells[at] = Math.max(cells[at], value);
  }
}

/**
 * @param {Float32Array} values rows x columns
 * @param {number} rows
 * @param {number} columns
 * @param {number} side of a tile
 * @returns {Float32Array}
 */
function largestOfTiles(values, rows, columns, side) {
  const wide = columns / side;
  const found = new Float32Array((rows / side) * wide);
  for (let row = 0, i = 0; row < rows; row++) {
    const line = Math.floor(row / side) * wide;
    for (let column = 0; column < columns; column++, i++) {
      const at = line + Math.floor(column / side);
      if (values[i] > found[at]) found[at] = values[i];
    }
  }
  return found;
}

/**
 * Return the numbers [first, end) of the values above 0.
 * @param {number[]} values
 */
function extent(values) {
  const first = values.findIndex((value) => value > 0);
  return first < 0 ? null : pair(first, values.findLastIndex((value) => value > 0) + 1);
}

/**
 * @param {number} first
 * @param {number} end
 * @returns {[number, number]}
 */
function pair(first, end) {
  return [first, end];
}
