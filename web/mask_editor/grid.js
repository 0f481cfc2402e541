// Times and sizes of the latent's grid: frames, tokens in time, sound latents, and the size that a clip becomes. No page is
// touched.

/** @typedef {{ width: number, height: number, frames: number }} Size pixels (multiples of 16) and pixel frames (17n+5) */

export const FPS = 24;
export const CELL = 16;
/** Pixels of a side of the model's rows, which a canvas is a multiple of. */
const ROW = 2 * CELL;
/** Pixel frames of a sound latent of 25 ms. */
export const AUDIO_STEP = 0.6;
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

/**
 * Return the frames that a video of some seconds has: the next 17n+5.
 * @param {number} seconds
 */
export function framesOfSeconds(seconds) {
  return wholeFrames(evenRound(seconds * FPS));
}

/** @param {number} frames @returns {number} the next 17n+5 */
function wholeFrames(frames) {
  return Math.max(0, Math.ceil((frames - 5) / 17)) * 17 + 5;
}

/**
 * Return the size of the smallest latent that holds a canvas.
 * @param {Size} canvas
 * @returns {Size}
 */
export function gridOf({ width, height, frames }) {
  return { width: Math.ceil(width / ROW) * ROW, height: Math.ceil(height / ROW) * ROW, frames: wholeFrames(frames) };
}

/** Longer clips than this are not edited in one piece. */
const MOST_FRAMES = 24 * 60 + 17;

/**
 * Return the size of the latent that a clip becomes where nothing else is asked for (engine/media/conditions.py); null when
 * the engine makes none of it.
 * @param {{ width: number, height: number, frames: number }} clip pixels, frames at 24 a second
 * @returns {Size | null}
 */
export function canvasOfClip({ width, height, frames }) {
  const [w, h] = [width, height].map((side) => Math.max(ROW, evenRound(side / ROW) * ROW));
  const known = frames <= MOST_FRAMES && w <= 4 * h && h <= 4 * w;
  return known ? { width: w, height: h, frames: wholeFrames(frames) } : null;
}

/** @param {number} value @returns {number} as Python rounds: a half to the even one */
function evenRound(value) {
  const low = Math.floor(value);
  return value - low === 0.5 ? low + (low % 2) : Math.round(value);
}
