// Playing: frames at 24 a second, from the one that is shown, round and round.

import { FPS } from "./grid.js";

/** @typedef {import("./editor.js").MaskEditor} MaskEditor */

/** Begin to play, or stop. @param {MaskEditor} editor */
export function togglePlaying(editor) {
  const playing = !editor.state.playing;
  editor.show({ playing });
  if (!playing) return;
  const [start, first] = [performance.now(), editor.frame];
  const step = (/** @type {number} */ now) => {
    if (!editor.state.playing || editor.closed) return;
    const frame = (first + Math.floor(((now - start) * FPS) / 1000)) % editor.frames;
    if (frame !== editor.frame) editor.goTo(frame);
    requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
}
