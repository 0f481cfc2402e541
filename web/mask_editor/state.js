// What an editor shows and has chosen, besides its document: nothing of it is saved.

import { WHOLE } from "./viewport.js";

/** @typedef {import("./document.js").MaskDocument} MaskDocument */
/** @typedef {import("./tools.js").Tool} Tool */
/** @typedef {import("./edits.js").Lane} Lane */
/** @typedef {"cells" | "paint" | "off"} Overlay */
/** @typedef {"all" | "token" | "marked"} Lives how long a new layer lives */
/** @typedef {ReturnType<typeof freshState>} State */

export const FIRST_BRUSH = { size: 64, softness: 16, strength: 1 };

export function freshState() {
  return {
    frame: 0,
    tool: /** @type {Tool} */ ("brush"),
    brush: FIRST_BRUSH,
    /** Of the next shape; the eraser erases whatever it says. */
    mode: /** @type {"paint" | "erase"} */ ("paint"),
    lives: /** @type {Lives} */ ("all"),
    marked: /** @type {[number, number] | null} */ (null),
    selected: /** @type {string | null} */ (null),
    run: /** @type {{ lane: Lane, index: number } | null} */ (null),
    overlay: /** @type {Overlay} */ ("cells"),
    onion: false,
    grid: true,
    reshaping: false,
    comparing: false,
    helping: false,
    wipe: 1 / 3,
    full: false,
    playing: false,
    heard: /** @type {import("./playing.js").Heard} */ ("source"),
    said: "",
    /** What was said is of this state: as long as it lasts, undoing is at hand. */
    undoable: /** @type {MaskDocument | null} */ (null),
    view: WHOLE,
  };
}
