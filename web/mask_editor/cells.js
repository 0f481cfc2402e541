// The mask on the latent's grid, as the engine computes it (engine/contract/mask_cells.py; formulae in
// docs/mask-document.md). 0 keeps, 1 regenerates. No page is touched. What was computed for a frame is kept until a layer that
// acts there is replaced: layers and rasters are compared by identity, so an edit must put new objects in place of those that
// it changes.

import { emptyDocument } from "./document.js";

/** @typedef {import("./document.js").MaskDocument} MaskDocument */
/** @typedef {{ width: number, height: number, frames: number }} Size pixels (multiples of 16) and pixel frames (17n+5) */
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

export const FPS = 24;
export const CELL = 16;
/** Pixel frames covered by latent frames 0..4 of each chunk of 17. */
export const FRAMES_PER_TOKEN = [1, 4, 4, 4, 4];

/**
 * Return the latent frames (tokens in time) of a frame count 17n+5.
 * @param {number} frames
 */
export function tokenCount(frames) {
  return ((frames - 5) / 17) * 5 + 2;
}

/**
 * Return the first pixel frame of token t (of the last token + 1: the frame count).
 * @param {number} token
 */
export function tokenStart(token) {
  const rest = token % 5;
  return Math.floor(token / 5) * 17 + (rest ? 1 + 4 * (rest - 1) : 0);
}

/**
 * Return the token that covers a pixel frame.
 * @param {number} frame
 */
export function tokenOfFrame(frame) {
  return Math.floor(frame / 17) * 5 + Math.ceil((frame % 17) / 4);
}

/**
 * Return the sound latents per channel of a frame count.
 * @param {number} frames
 */
export function audioCount(frames) {
  return Math.round((frames * 40) / 24);
}

/** The cells of one document at one size. */
export class MaskCells {
  /** @param {Size} size of the latent */
  constructor(size) {
    this.size = size;
    this.columns = size.width / CELL;
    this.rows = size.height / CELL;
    this.tokens = tokenCount(size.frames);
    /** @type {MaskDocument} */
    this.document = emptyDocument();
  }

  /**
   * Take another state of the document, and the pixels of its raster layers by file.
   * @param {MaskDocument} document
   * @param {ReadonlyMap<string, Raster>} [rasters] a missing one counts as 0 everywhere
   */
  update(document, rasters) {
    void rasters;
    this.document = document;
  }

  /**
   * Return the mask of one pixel frame, rows x columns (do not write into it).
   * @param {number} frame
   * @returns {Float32Array}
   */
  frame(frame) {
    void frame;
    throw new Error("not written yet");
  }

  /**
   * Return the mask of one token: what the engine regenerates, rows x columns (do not write into it).
   * @param {number} token
   * @returns {Float32Array}
   */
  token(token) {
    void token;
    throw new Error("not written yet");
  }

  /**
   * Return the mask of all tokens, tokens x rows x columns.
   * @returns {Float32Array}
   */
  video() {
    throw new Error("not written yet");
  }

  /**
   * Return the sound's mask, 2 x latents: left, then right.
   * @returns {Float32Array}
   */
  audio() {
    throw new Error("not written yet");
  }

  /**
   * Return what the mask does, in numbers.
   * @returns {MaskReport}
   */
  describe() {
    throw new Error("not written yet");
  }
}
