// What the editor says: above the picture what has to be decided, on the picture what was just said or does not count here.

import { button } from "./controls.js";
import { make } from "./dom.js";
import { clearAll } from "./edits.js";
import { HELP } from "./keys.js";

/** @typedef {import("./editor.js").MaskEditor} MaskEditor */
/** @typedef {() => void} Update */

/** @param {MaskEditor} editor @param {Update[]} updates */
export function noticeBar(editor, updates) {
  const text = make("span", {});
  const adopt = button("move the edit to this latent", "As the outline shows it: places stay where they are in the picture, sizes follow the height, what went to the end goes to the end, and what lies behind it is cut",
    () => editor.adopt(), { "data-action": "adopt" });
  const fresh = button("start a new edit", "Begin with nothing painted; undo (Ctrl+Z) brings the old edit back", () => editor.replace(clearAll(editor.history.state)));
  const anew = button("start a new edit", "Put an empty edit in place of this text", () => editor.startAnew());
  const bar = make("div", { class: "h3-mask-notice", role: "alert", "data-part": "notice" }, text, " ", adopt, fresh, anew);
  updates.push(() => {
    const mismatch = editor.problem ? "" : editor.mismatch();
    const said = editor.problem ? `Read-only: ${editor.problem}` : mismatch && `${mismatch} The node does not run it before you decide:`;
    bar.hidden = !said;
    adopt.hidden = fresh.hidden = !mismatch;
    anew.hidden = !editor.broken;
    if (text.textContent !== said) text.textContent = said;
  });
  return bar;
}

/**
 * What stands over the picture while its size is not known, and the one thing to do then.
 * @param {MaskEditor} editor
 * @param {Update[]} updates
 */
export function lockedNote(editor, updates) {
  const text = make("p", {});
  const run = button("run up to here", "Run what leads to this node, and no more; then you can paint", () => editor.host.run());
  const note = make("div", { class: "h3-mask-locked", role: "status", "data-part": "locked" }, text, run);
  updates.push(() => {
    note.hidden = editor.known !== null || editor.problem !== "";
    if (note.hidden) return;
    const [connected, missing] = [editor.host.connected(), editor.host.missing()];
    run.hidden = !connected || missing !== null;
    text.textContent = connected ? lockedText(missing) : "Connect “latent” to the shot: H3 Engine Encode Media for a clip, or a sampler.";
  });
  return note;
}

/** @param {{ loader: string, file: string } | null} missing the clip that a run would look for */
function lockedText(missing) {
  if (!missing) return "The size of this shot is known once it was made. Run what leads here, then paint.";
  const there = missing.file ? `“${missing.file}” cannot be read or is not in ComfyUI's input folder` : "no clip is chosen yet";
  return `Choose a clip in ${missing.loader}, then paint: ${there}.`;
}

/** @param {MaskEditor} editor @param {Update[]} updates */
export function help(editor, updates) {
  const rows = HELP.map(([keys, does]) => make("div", {}, make("b", {}, keys), ` ${does}`));
  const table = make("div", { class: "h3-mask-help", "data-part": "help" }, ...rows);
  updates.push(() => (table.hidden = !editor.state.helping));
  return table;
}

/**
 * Lines on the picture: what was just said, with undo where that is at hand, and why what is painted does not count.
 * @param {MaskEditor} editor
 * @param {Update[]} updates
 */
export function caption(editor, updates) {
  const [line, why] = [make("span", {}), make("div", {})];
  const undo = button("undo", "Take that back (Ctrl+Z)", () => {
    editor.undo();
    editor.show({ said: "" });
  }, { "data-action": "undo-said" });
  const place = make("div", { class: "h3-mask-caption", role: "status", "data-part": "caption" }, line, " ", undo, why);
  updates.push(() => {
    const before = editor.comparing && editor.host.edited() ? "The result on the right is of the mask before this edit: run again." : "";
    const { said, undoable } = editor.state;
    // What was said of a state is over with it.
    const gone = undoable !== null && undoable !== editor.history.state;
    const texts = [(!gone && said) || before, editor.overruled()];
    place.hidden = !texts.some(Boolean);
    undo.hidden = !said || gone || undoable === null;
    [line, why].forEach((element, i) => element.textContent !== texts[i] && (element.textContent = texts[i]));
  });
  return place;
}
