// The editor's elements: bars of controls, the picture, the lanes, the layers, the status line; and what they show.

import { tokenOfFrame, tokenStart } from "./grid.js";
import { button, choice, slider, toggle } from "./controls.js";
import { make } from "./dom.js";
import { addLayer, applyPreset, clearAll, freeId, invertPicture, putRange, snapSpan, withRanges } from "./edits.js";
import { buildLayers } from "./layers.js";
import { caption, help, lockedNote, noticeBar } from "./notices.js";
import { lengthOf, middleOfCells, presetRemark } from "./remarks.js";
import { statusOf } from "./statistics.js";
import { addStyle } from "./style.js";
import { WHOLE } from "./viewport.js";

/** @typedef {import("./editor.js").MaskEditor} MaskEditor */
/** @typedef {import("./tools.js").Tool} Tool */
/** @typedef {import("./edits.js").Preset} Preset */
/** @typedef {() => void} Update */

/** @type {[Tool, string, string][]} */
const TOOLS = [
  ["brush", "✎ brush", "Paint what is to be regenerated (B). A pen's pressure scales the size."],
  ["erase", "⌫ erase", "Erase with the brush (E): what it covers is kept."],
  ["rect", "▭ rect", "Drag a rectangle (R)."],
  ["ellipse", "◯ ellipse", "Drag an ellipse (C)."],
  ["lasso", "◌ lasso", "Draw around something (L)."],
  ["move", "✥ move", "Drag a shape (V): its place is keyed at this frame. With Shift it moves at all frames; with Alt it scales."],
];
/** @type {[Preset, string, string][]} */
const PRESETS = [
  ["keep-start", "keep the first … s, regenerate the rest", "Both lanes; snapped to whole blocks"],
  ["redo-end", "regenerate the last … s", "Both lanes, counted from the clip's own end; snapped to whole blocks"],
  ["only-sound", "only the sound", "Keeps the picture"],
  ["only-picture", "only the picture", "Keeps the sound"],
  ["box", "a box of the picture", "A rectangle over all frames, to be moved"],
];

const PRESET_STEP = "preset";
const LANES = "Picture and sound: drag for a range that does the opposite of the lane (Shift: the same; in a range, its opposite); drag a range or its edges (Ctrl: between blocks); " +
  "double click turns it. Blocks: drag to mark frames. Layer: drag its keys and its span.";
const BLOCKS = "A block is the 1 or 4 frames that the model makes as one (its token): the mask changes from block to block.";

/**
 * Build the elements of an editor.
 * @param {MaskEditor} editor
 */
export function buildPanel(editor) {
  addStyle();
  const picture = make("canvas", { "aria-label": "Picture: paint here", role: "img" });
  const time = make("canvas", { class: "h3-mask-time", "aria-label": "Lanes: layer, picture, sound, blocks", role: "img", title: LANES });
  const status = make("div", { class: "h3-mask-status", role: "status", "data-part": "status" });
  /** @type {Update[]} */
  const updates = [];
  const layers = buildLayers(editor);
  updates.push(layers.update);
  const root = make("div", { class: "h3-mask", role: "application", "aria-label": "Mask editor", "data-capture-wheel": "true" },
    toolBar(editor, updates),
    editBar(editor, updates),
    noticeBar(editor, updates),
    make("div", { class: "h3-mask-view" }, picture, lockedNote(editor, updates), caption(editor, updates), help(editor, updates)),
    playBar(editor, updates),
    time,
    layers.element,
    status,
  );
  updates.push(() => {
    const { report, share, stale } = editor.statistics;
    const { text, warning } = statusOf(report, { share, seconds: editor.host.seconds(), frames: editor.frames });
    const notes = editor.host.notes().map((note) => make("div", {}, note));
    status.replaceChildren(make("b", {}, warning ? `⚠ ${warning} ` : ""), `${text}${stale && report ? " …" : ""}`, ...notes);
  });
  return {
    root,
    picture,
    time,
    update: () => updates.forEach((update) => update()),
    /** Pixels of the screen for one of the element: the graph's zoom, between 1 and 2. */
    scale: () => Math.min(2, Math.max(1, root.getBoundingClientRect().width / (root.offsetWidth || 1))),
  };
}

/** @param {MaskEditor} editor @param {Update[]} updates */
function toolBar(editor, updates) {
  const { state } = editor;
  const tools = TOOLS.map(([tool, text, title]) =>
    toggle(updates, button(text, title, () => editor.show({ tool, reshaping: false }), { "data-tool": tool }),
      () => state.tool === tool, () => editor.editable));
  /** @param {Partial<typeof state.brush>} change */
  const brush = (change) => editor.show({ brush: { ...state.brush, ...change } });
  const full = button("", "Full screen (F)", () => editor.setFull(!state.full), { "data-action": "full" });
  updates.push(() => (full.textContent = state.full ? "close full screen" : "full screen"));
  return make("div", { class: "h3-mask-bar" },
    full,
    make("div", { class: "h3-mask-group", role: "toolbar", "aria-label": "Tools" }, ...tools),
    make("b", {}, "next shape:"),
    slider(updates, { name: "size", unit: "px", title: "Width of the brush in pixels of the video ([ and ])", max: 512,
      get: () => state.brush.size, set: (size) => brush({ size: Math.max(2, size) }) }),
    slider(updates, { name: "soft", unit: "px", title: "Width of the soft edge in pixels of the video (Shift and [ or ])", max: 128,
      get: () => state.brush.softness, set: (softness) => brush({ softness }) }),
    slider(updates, { name: "strength", unit: "%", title: "How much of new shapes is regenerated; less blends with the source", max: 1,
      step: 0.05, get: () => state.brush.strength, set: (strength) => brush({ strength }) }),
    choice(updates, { name: "mode", title: "Paint: what the next shape covers is regenerated. Erase: it is kept. The tool “erase” always erases",
      options: [["paint", "paint"], ["erase", "erase"]], get: () => editor.mode, set: (mode) => editor.show({ mode }),
      enabled: () => editor.editable && state.tool !== "erase" }),
    choice(updates, { name: "lives", title: `How long a new shape lives. ${BLOCKS}`,
      options: [["all", "all frames"], ["token", "this block"], ["marked", "marked frames"]],
      get: () => state.lives, set: (lives) => editor.show({ lives }) }),
  );
}

/** @param {MaskEditor} editor @param {Update[]} updates */
function editBar(editor, updates) {
  const { state } = editor;
  /** @param {string} text @param {string} title @param {() => void} click @param {() => boolean} [enabled] */
  const act = (text, title, click, enabled = () => true) =>
    toggle(updates, button(text, title, click), () => false, () => editor.editable && enabled());
  /** @param {string} text @param {string} title @param {() => void} click @param {() => unknown[]} steps */
  const step = (text, title, click, steps) => toggle(updates, button(text, title, click), () => false, () => editor.writable && steps().length > 0);
  const fill = (/** @type {[number, number]} */ [from, to]) =>
    editor.commit(withRanges(editor.document, "video", putRange(editor.document.video.ranges, { from, to, value: 1 })));
  const seconds = make("input", { type: "number", value: "1", min: "0.1", step: "0.1", title: "Seconds of the preset", "aria-label": "Seconds of the preset" });
  /** @type {Preset | null} */
  let last = null;
  const apply = () => {
    if (!last) return;
    const most = editor.own / 24;
    const wanted = Math.min(most, Math.max(0.1, Number(seconds.value) || 1));
    if (wanted !== Number(seconds.value)) seconds.value = wanted.toFixed(2);
    usePreset(editor, last, wanted);
  };
  // As long as the preset is the last thing that was done, other seconds change it.
  seconds.addEventListener("change", () => editor.history.tag === PRESET_STEP && apply());
  const preset = make("select", { title: "Set both lanes in one click", "aria-label": "Preset", "data-action": "preset" },
    make("option", { value: "" }, "preset …"), ...PRESETS.map(([value, text, title]) => make("option", { value, title }, text)));
  preset.addEventListener("change", () => {
    last = /** @type {Preset} */ (preset.value);
    editor.history.tag = "";
    apply();
    preset.value = "";
  });
  updates.push(() => (preset.disabled = !editor.editable));
  return make("div", { class: "h3-mask-bar" },
    make("div", { class: "h3-mask-group" },
      step("↶", "Undo (Ctrl+Z)", () => editor.undo(), () => editor.history.past),
      step("↷", "Redo (Ctrl+Shift+Z)", () => editor.redo(), () => editor.history.future),
      act("invert", "Regenerate what was kept and keep what was regenerated, of the picture (I)", () => editor.commit(invertPicture(editor.document))),
      toggle(updates, button("clear", "Take all layers and ranges away: everything is kept", () => editor.replace(clearAll(editor.history.state))),
        () => false, () => editor.writable),
      act("fill block", `Regenerate the whole picture of the frames of this block. ${BLOCKS}`, () => fill(snapSpan("video", editor.frame, editor.frame + 1, editor.frames))),
      act("fill range", "Regenerate the whole picture of the marked frames (drag over “blocks” to mark)",
        () => state.marked && fill(state.marked), () => state.marked !== null)),
    make("div", { class: "h3-mask-group" }, preset, make("label", { title: "Seconds of the preset" }, seconds, "s")),
    choice(updates, { name: "overlay", title: "Cells: exactly what will be regenerated. Paint: the shapes",
      options: [["cells", "cells"], ["paint", "paint"], ["off", "off"]], get: () => state.overlay, set: (overlay) => editor.show({ overlay }) }),
    toggle(updates, button("grid", "The squares of 32 pixels that the model looks at (G). What changes is shaded in cells of 16", () => editor.show({ grid: !state.grid })), () => state.grid),
    toggle(updates, button("onion", "The blocks before and after, faintly (O)", () => editor.show({ onion: !state.onion })), () => state.onion),
    toggle(updates, button("before | after", "Source on the left, result of the last run on the right; drag the knob on the line", () => compare(editor), { "data-action": "compare" }),
      () => state.comparing, () => editor.result !== null),
    button("run up to here", "Run what leads to this node, to see the frames", () => editor.host.run(), { "data-action": "run" }),
  );
}

/** Begin to compare, the line over what was regenerated, or stop. @param {MaskEditor} editor */
function compare(editor) {
  const { cells, frame, state } = editor;
  const share = middleOfCells(cells.whole(tokenOfFrame(frame)), cells.columns);
  editor.show({ comparing: !state.comparing, wipe: share ?? state.wipe });
}

/** @param {MaskEditor} editor @param {Preset} preset @param {number} seconds */
function usePreset(editor, preset, seconds) {
  let document = applyPreset(editor.document, preset, { frames: editor.frames, own: editor.own, seconds });
  if (preset !== "box") {
    editor.commit(document, PRESET_STEP);
    return tellOfPreset(editor);
  }
  const id = freeId(document, "rect");
  document = addLayer(document, {
    id, name: "box", kind: "rect", mode: "paint", enabled: true, size: 64, softness: 0, strength: 1,
    range: [0, editor.frames], interpolate: "linear", keys: [{ frame: 0, points: [[0.25, 0.25], [0.75, 0.75]] }], file: "",
  });
  editor.show({ selected: id, tool: "move" });
  editor.commit(document);
  tellOfPreset(editor);
}

/** Say what the preset that was just used replaced. @param {MaskEditor} editor */
function tellOfPreset(editor) {
  // Of several that are one step of undo: what the first one found.
  const before = editor.history.past.at(-1);
  const said = before ? presetRemark(before, editor.document) : "";
  if (said) editor.say(said, { undoable: true });
}

/** @param {MaskEditor} editor @param {Update[]} updates */
function playBar(editor, updates) {
  const { state } = editor;
  const play = button("▶", "Play, with the sound that is chosen on the right (Space)", () => editor.player.toggle(), { "data-action": "play" });
  const where = make("span", { class: "h3-mask-where", "data-part": "where" });
  const long = make("span", { class: "h3-mask-long", "data-part": "long" });
  const scrub = make("input", { type: "range", min: "0", value: "0", "aria-label": "Frame", title: "Frame", style: "flex:1;width:auto",
    input: () => editor.goTo(Number(scrub.value)) });
  scrub.setAttribute("style", "flex: 1; min-width: 80px");
  const fit = button("", "Show the whole picture (0). After a press in the editor the wheel zooms, the right or middle button drags the picture", () => editor.show({ view: WHOLE }), { "data-action": "fit" });
  updates.push(() => {
    fit.textContent = state.view.zoom === 1 ? "fit" : `${Math.round(state.view.zoom * 100)}% → fit`;
    fit.disabled = state.view.zoom === 1;
    play.textContent = state.playing ? "❚❚ pause" : "▶ play";
    scrub.max = String(editor.frames - 1);
    scrub.value = String(state.frame);
    scrub.disabled = editor.known === null;
    const { text, title } = lengthOf(editor.frames, editor.clip);
    long.textContent = scrub.disabled ? "" : `${editor.frames}${text}`;
    where.title = `${title} ${BLOCKS}`;
    if (scrub.disabled) return void where.replaceChildren("length not known yet");
    const token = tokenOfFrame(state.frame);
    const [first, last] = [tokenStart(token), tokenStart(token + 1) - 1];
    const held = editor.clip && state.frame >= editor.clip ? " (held)" : "";
    where.replaceChildren(`frame ${state.frame}${held} of `, long, ` · ${(state.frame / 24).toFixed(2)} s · block ${token} (` +
      (first === last ? `frame ${first})` : `frames ${first}–${last})`));
  });
  return make("div", { class: "h3-mask-bar" },
    make("div", { class: "h3-mask-group" },
      button("«", "One block back (Shift+←)", () => editor.goToToken(-1)),
      button("‹", "One frame back (←)", () => editor.goTo(state.frame - 1)),
      play,
      button("›", "One frame on (→)", () => editor.goTo(state.frame + 1)),
      button("»", "One block on (Shift+→)", () => editor.goToToken(1))),
    scrub,
    where,
    choice(updates, { name: "♪", title: "The sound that is played with the pictures: the clip's, the last run's result, or none",
      options: [["source", "clip"], ["result", "result"], ["off", "off"]], get: () => state.heard, set: (heard) => editor.show({ heard }) }),
    fit,
    toggle(updates, button("?", "Keys and the pointer (?)", () => editor.show({ helping: !state.helping }), { "data-action": "help" }), () => state.helping),
  );
}
