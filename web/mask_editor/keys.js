// The editor's keys, while it has the focus. They do not reach ComfyUI's own shortcuts; every other key does: Ctrl+S saves the
// workflow, Ctrl+Enter runs it.

import { invertPicture, keyHere, withRanges } from "./edits.js";
import { removeGroup } from "./groups.js";
import { WHOLE } from "./viewport.js";

/** @typedef {import("./editor.js").MaskEditor} MaskEditor */

/** What the keys do, for people. @type {[string, string][]} */
export const HELP = [
  ["B E R C L V", "brush, erase, rectangle, ellipse, lasso, move"],
  ["[ ], Shift+[ ]", "size and softness of the brush"],
  ["wheel, right button, 0", "zoom, pan, show the whole picture"],
  ["← →, Shift+← →", "a frame, a block of frames"],
  ["Home, End", "the first frame, the clip's last"],
  ["Space", "play"],
  ["K", "key the layer here"],
  ["Shift, Alt with move", "move at all frames, scale"],
  ["Shift on a lane", "a range that does the same as the lane; in a range, its opposite"],
  ["I O G F", "invert the picture, onion skin, grid, full screen"],
  ["Ctrl+Z, Ctrl+Shift+Z", "undo, redo"],
  ["Delete", "take the chosen range or layer away"],
  ["Esc", "choose nothing; then close full screen"],
];

/** @type {Record<string, (editor: MaskEditor) => void>} */
const KEYS = {
  b: (editor) => editor.show({ tool: "brush" }),
  e: (editor) => editor.show({ tool: "erase" }),
  r: (editor) => editor.show({ tool: "rect" }),
  c: (editor) => editor.show({ tool: "ellipse" }),
  l: (editor) => editor.show({ tool: "lasso" }),
  v: (editor) => editor.show({ tool: "move" }),
  k: (editor) => {
    if (editor.layer) editor.changeSelected((layer) => keyHere(layer, editor.frame, editor.canvas));
    else editor.say("A key is of a layer: choose one first.");
  },
  i: (editor) => editor.commit(invertPicture(editor.document)),
  o: (editor) => editor.show({ onion: !editor.state.onion }),
  g: (editor) => editor.show({ grid: !editor.state.grid }),
  "?": (editor) => editor.show({ helping: !editor.state.helping }),
  f: (editor) => editor.setFull(!editor.state.full),
  0: (editor) => editor.show({ view: WHOLE }),
  " ": (editor) => editor.player.toggle(),
  "[": (editor) => editor.show({ brush: { ...editor.brush, size: Math.max(2, Math.round(editor.brush.size / 1.2)) } }),
  "]": (editor) => editor.show({ brush: { ...editor.brush, size: Math.min(1024, Math.ceil(editor.brush.size * 1.2)) } }),
  "{": (editor) => editor.show({ brush: { ...editor.brush, softness: Math.max(0, editor.brush.softness - 4) } }),
  "}": (editor) => editor.show({ brush: { ...editor.brush, softness: Math.min(512, editor.brush.softness + 4) } }),
  delete: remove,
  backspace: remove,
  home: (editor) => editor.goTo(0),
  // The clip's own last frame, then the last one that is held.
  end: (editor) => editor.goTo((editor.frame === editor.own - 1 ? editor.frames : editor.own) - 1),
};

/** With Ctrl, in a number's box: undo, redo, choose all. */
const BOX = "zya";
/** With Ctrl: these would copy the node under the editor, or put one there. */
const CLIPBOARD = "cxv";

/** @param {MaskEditor} editor */
function remove(editor) {
  const { run } = editor.state;
  if (run) {
    const ranges = editor.document[run.lane].ranges.filter((_, index) => index !== run.index);
    editor.chooseRun(null);
    editor.commit(withRanges(editor.document, run.lane, ranges));
  } else if (editor.layer) editor.commit(removeGroup(editor.document, editor.layer));
}

/**
 * Do what a key means; return whether it means something.
 * @param {MaskEditor} editor
 * @param {KeyboardEvent} event
 */
function press(editor, event) {
  const key = event.key.toLowerCase();
  if (event.altKey) return false;
  if (withCommand(event)) {
    if (key === "z" && !event.shiftKey) editor.undo();
    else if (key === "z" || (key === "y" && !event.shiftKey)) editor.redo();
    else if (key === "a" && !event.shiftKey) editor.root.ownerDocument.getSelection()?.removeAllRanges();
    else return false;
    return true;
  }
  if (key === "arrowleft" || key === "arrowright") {
    const by = key === "arrowleft" ? -1 : 1;
    if (event.shiftKey) editor.goToToken(by);
    else editor.goTo(editor.frame + by);
    return true;
  }
  // A sign may need Shift on a keyboard; a letter or a key with a name means something else with it.
  if (event.shiftKey && /^[a-z ]$|../.test(key)) return false;
  if (key === "escape") {
    if (editor.pending) editor.drop();
    else if (editor.state.helping) editor.show({ helping: false });
    else if (editor.layer || editor.state.run) editor.show({ selected: null, run: null, reshaping: false });
    else if (editor.state.full) editor.setFull(false);
    else if (editor.state.marked) editor.mark(null);
    return true;
  }
  const action = KEYS[key];
  action?.(editor);
  return action !== undefined;
}

/** @param {KeyboardEvent} event */
function withCommand(event) {
  return event.ctrlKey || event.metaKey;
}

/**
 * Whether a key with Ctrl is the page's own: copy and paste, and in a number's box its undo.
 * @param {EventTarget | null} target
 * @param {string} key
 */
function commandsOf(target, key) {
  const number = target instanceof HTMLInputElement && target.type === "number";
  return CLIPBOARD.includes(key) || (number && BOX.includes(key));
}

/**
 * Whether an element takes keys itself.
 * @param {EventTarget | null} target
 * @param {string} key
 */
function typesInto(target, key) {
  if (target instanceof HTMLSelectElement) return true;
  if (target instanceof HTMLButtonElement) return key === " " || key === "Enter";
  if (!(target instanceof HTMLInputElement)) return false;
  return target.type === "range" ? key.startsWith("Arrow") || key === "Home" || key === "End" : target.type !== "checkbox" || key === " ";
}

/**
 * Listen to the keyboard, and keep the editor's events from the graph under it.
 * @param {MaskEditor} editor
 * @param {HTMLElement} root
 */
export function listenToKeys(editor, root) {
  root.tabIndex = 0;
  // ComfyUI's undo leaves alone what has the focus and is of this type; the editor has an undo of its own.
  Object.assign(root, { type: "textarea" });
  root.addEventListener("keydown", (event) => {
    if (event.key === "Tab") return;
    const taken = withCommand(event) ? commandsOf(event.target, event.key.toLowerCase()) : !event.altKey && typesInto(event.target, event.key);
    if (!taken && !press(editor, event)) return;
    event.stopPropagation();
    if (!taken) event.preventDefault();
  });
  root.addEventListener("pointerdown", (event) => {
    event.stopPropagation();
    if (!(event.target instanceof HTMLElement) || !event.target.closest("button, input, select")) root.focus({ preventScroll: true });
  });
  root.addEventListener("click", (event) => {
    // A button that was pressed by the pointer gives the keys back to the editor.
    if (event.detail && event.target instanceof HTMLButtonElement) root.focus({ preventScroll: true });
  });
  // Nor do ComfyUI's own copy and paste take the node while the editor has the keys.
  for (const name of ["copy", "cut", "paste"]) root.addEventListener(name, (event) => event.stopPropagation());
  // So does a list once something was chosen.
  root.addEventListener("change", (event) => {
    if (event.target instanceof HTMLSelectElement) root.focus({ preventScroll: true });
  });
  for (const name of ["pointerup", "pointermove", "mousedown", "mousemove", "click", "dblclick", "contextmenu", "wheel"]) {
    root.addEventListener(name, (event) => event.stopPropagation());
  }
}
