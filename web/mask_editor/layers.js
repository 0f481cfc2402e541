// The row of layers, and the controls of the chosen layer or the chosen run.

import { button, choice, slider, toggle } from "./controls.js";
import { isActive } from "./document.js";
import { make } from "./dom.js";
import { addLayer, freeId, keyHere, removeKey, withRanges } from "./edits.js";
import { changeGroup, groupOf, membersOf, modeOf, removeGroup, reorderGroup } from "./groups.js";

/** @typedef {import("./editor.js").MaskEditor} MaskEditor */
/** @typedef {import("./document.js").Layer} Layer */
/** @typedef {import("./tools.js").Tool} Tool */
/** @typedef {() => void} Update */

/** @type {Record<Layer["kind"], Tool>} */
const TOOL_OF = { stroke: "brush", rect: "rect", ellipse: "ellipse", polygon: "lasso", raster: "move" };

/**
 * Build the row.
 * @param {MaskEditor} editor
 */
export function buildLayers(editor) {
  /** @type {Update[]} */
  const updates = [];
  const list = make("div", { class: "h3-mask-layers", "data-part": "layers", role: "group", "aria-label": "Layers" });
  const ofLayer = layerBar(editor, updates);
  const ofRun = runBar(editor, updates);
  const sound = soundBar(editor, updates);
  const hint = make("p", {}, "Paint on the picture, or drag on a lane: what is striped is regenerated, the rest stays. " +
    "Strokes join the chosen layer; “+ new layer” starts another. Every edit is in the workflow at once: save that (Ctrl+S).");
  /** @type {readonly Layer[] | null} */
  let shown = null;
  let chosen = "";
  const update = () => {
    const { layers } = editor.document;
    const acting = editor.overruled() ? [] : layers.filter((layer) => isActive(layer, editor.frame)).map((layer) => layer.id);
    const now = `${editor.selected} ${editor.editable} ${editor.cells.carried !== null} ${acting}`;
    if (layers !== shown || chosen !== now) list.replaceChildren(importButton(editor), newButton(editor), ...carriedChip(editor), ...chips(editor));
    [shown, chosen] = [layers, now];
    ofLayer.hidden = !editor.layer || runOf(editor) !== null;
    ofRun.hidden = !runOf(editor);
    hint.hidden = !ofLayer.hidden || !ofRun.hidden || !editor.editable;
    updates.forEach((one) => one());
  };
  return { element: make("div", { class: "h3-mask-foot" }, make("div", { class: "h3-mask-slot" }, hint, ofLayer, ofRun), make("div", { class: "h3-mask-bar" }, sound, list)), update };
}

/** @param {MaskEditor} editor */
function importButton(editor) {
  const picker = make("input", { type: "file", accept: "image/*,video/*", hidden: true, "aria-label": "Mask file" });
  picker.addEventListener("change", async () => {
    const files = [...(picker.files ?? [])];
    if (files.length) addRaster(editor, await editor.host.upload(files));
  });
  const open = button("+ import mask …", "A picture or a clip: white regenerates, black keeps", () => picker.click());
  open.disabled = !editor.editable;
  const connected = button("+ connected mask", "The MASK that is connected to this node, as a layer", () => addRaster(editor, "@mask"));
  connected.disabled = !editor.editable || !editor.rasters.connected;
  return make("span", { class: "h3-mask-group" }, open, connected, picker);
}

/**
 * Add a raster layer.
 * @param {MaskEditor} editor
 * @param {string} file
 */
export function addRaster(editor, file) {
  const id = freeId(editor.document, "raster");
  const name = file === "@mask" ? "connected mask" : (file.split("/").at(-1) ?? file);
  editor.show({ selected: id });
  editor.commit(addLayer(editor.document, {
    id, name, kind: "raster", mode: "paint", enabled: true, size: 64, softness: 0, strength: 1,
    range: [0, editor.frames], interpolate: "linear", keys: [], file,
  }));
}

/** @param {MaskEditor} editor */
function newButton(editor) {
  const open = button("+ new layer", "What you paint next becomes a layer of its own (Esc); else strokes join the chosen layer",
    () => editor.show({ selected: null, run: null, reshaping: false }), { "data-action": "new-layer" });
  open.disabled = !editor.editable || !editor.layer;
  return open;
}

/** @param {MaskEditor} editor @returns {HTMLElement[]} */
function carriedChip(editor) {
  const title = "The latent came with this mask, from a node before (violet). It is changed there; what either regenerates is regenerated.";
  return editor.cells.carried ? [make("span", { class: "h3-mask-carried", "data-part": "carried", title }, "▨ mask of the latent")] : [];
}

/** @param {MaskEditor} editor @returns {HTMLElement[]} one for each group of layers, by its first */
function chips(editor) {
  const { layers } = editor.document;
  return layers.filter((layer, at) => layers.findIndex((other) => groupOf(other) === groupOf(layer)) === at)
    .map((layer) => chip(editor, layer, membersOf(editor.document, layer)));
}

/** @param {MaskEditor} editor @param {Layer} layer @param {Layer[]} members */
function chip(editor, layer, members) {
  const { enabled, id, kind, keys } = layer;
  const mode = modeOf(editor.document, layer);
  const acts = !editor.overruled() && members.some((member) => isActive(member, editor.frame));
  const chosen = members.some((member) => member.id === editor.selected);
  const eye = button(enabled ? "●" : "○", enabled ? "Acts; press to switch it off" : "Off; press to switch it on",
    () => editor.commit(changeGroup(editor.document, layer, (old) => ({ ...old, enabled: !enabled }))));
  eye.disabled = !editor.editable;
  const shape = kind === "polygon" ? "lasso" : kind;
  const words = [
    members.length > 1 ? `${members.length} strokes` : layer.name && shape,
    mode === "mixed" ? "some erase" : mode === "erase" && "erase",
    keys.length > 1 && `${keys.length} keys`,
  ].filter(Boolean);
  const name = [layer.name || id, ...(words.length ? [`(${words.join(", ")})`] : [])].join(" ");
  const pick = button(name, "Choose this layer", () =>
    editor.show({ selected: id, run: null, reshaping: false }));
  pick.setAttribute("aria-pressed", String(chosen));
  return make("span", { class: "h3-mask-layer", "data-layer": id, "data-selected": String(chosen), "data-acts": String(acts) }, eye, pick);
}

/** @param {MaskEditor} editor @param {Update[]} updates */
function layerBar(editor, updates) {
  /** @param {string} text @param {string} title @param {() => void} click @param {(layer: Layer) => boolean} [pressed] @param {(layer: Layer) => boolean} [enabled] */
  const act = (text, title, click, pressed = () => false, enabled = () => true) =>
    toggle(updates, button(text, title, click), () => !!editor.layer && pressed(editor.layer),
      () => editor.editable && !!editor.layer && enabled(editor.layer));
  /** @param {(layer: Layer) => Layer} change @param {string} [tag] */
  const change = (change, tag) => editor.changeSelected(change, tag);
  const hasKey = (/** @type {Layer} */ layer) => layer.keys.some((key) => key.frame === editor.frame);
  return make("div", { class: "h3-mask-bar", role: "group", "aria-label": "Chosen layer" },
    make("b", {}, "chosen layer:"),
    act("◆ key here", "Hold the layer's place at this frame; then move it elsewhere at another frame (K)", () => change((layer) => keyHere(layer, editor.frame, editor.canvas)), hasKey),
    act("◇ remove key", "Take the key at this frame away", () => change((layer) => removeKey(layer, editor.frame)), undefined,
      (layer) => layer.keys.length > 1 && hasKey(layer)),
    act("glide", "Between keys the shape glides; otherwise it stays until the next key",
      () => change((layer) => ({ ...layer, interpolate: layer.interpolate === "linear" ? "hold" : "linear" })), (layer) => layer.interpolate === "linear"),
    act("redraw here", "The next shape that you draw becomes this layer's shape at this frame", () =>
      editor.show({ reshaping: !editor.state.reshaping, tool: editor.layer ? TOOL_OF[editor.layer.kind] : "brush" }),
      () => editor.reshaping, (layer) => layer.kind !== "raster" && membersOf(editor.document, layer).length === 1),
    choice(updates, { name: "mode", title: "Paint: what the chosen layer covers is regenerated. Erase: it is kept. Paint + erase: some of its strokes erase; choose one for all of them",
      options: [["paint", "paint"], ["erase", "erase"], ["mixed", "paint + erase"]], told: "mixed", enabled: () => editor.editable,
      get: () => (editor.layer ? modeOf(editor.document, editor.layer) : "paint"),
      set: (mode) => mode !== "mixed" && change((layer) => ({ ...layer, mode })) }),
    act("to marked frames", "The layer lives in the marked frames only (drag over “blocks” to mark)", () => change((layer) => ({ ...layer, range: editor.state.marked ?? layer.range })),
      undefined, () => editor.state.marked !== null),
    act("to all frames", "The layer lives in all frames", () => change((layer) => ({ ...layer, range: [0, editor.frames] }))),
    slider(updates, { name: "strength", unit: "%", title: "Of the chosen layer", max: 1, step: 0.05, get: () => editor.layer?.strength ?? 1,
      set: (strength) => change((layer) => ({ ...layer, strength }), "strength") }),
    slider(updates, { name: "soft", unit: "px", title: "Soft edge of the chosen layer", max: 128, get: () => editor.layer?.softness ?? 0,
      set: (softness) => change((layer) => ({ ...layer, softness }), "softness") }),
    act("↑", "Over the next layer", () => editor.layer && editor.commit(reorderGroup(editor.document, editor.layer, 1))),
    act("↓", "Under the layer before", () => editor.layer && editor.commit(reorderGroup(editor.document, editor.layer, -1))),
    act("delete layer", "Take the chosen layer away (Delete)", () => editor.layer && editor.commit(removeGroup(editor.document, editor.layer))),
  );
}

/** @param {MaskEditor} editor */
function runOf(editor) {
  const { run } = editor.state;
  return run ? (editor.document[run.lane].ranges[run.index] ?? null) : null;
}

/** @param {MaskEditor} editor @param {Update[]} updates */
function runBar(editor, updates) {
  /** @param {number} value @param {string} [tag] */
  const set = (value, tag) => {
    const { run } = editor.state;
    if (!run) return;
    const ranges = editor.document[run.lane].ranges.map((old, index) => (index === run.index ? { ...old, value } : old));
    editor.commit(withRanges(editor.document, run.lane, ranges), tag);
  };
  const remove = () => {
    const { run } = editor.state;
    if (!run) return;
    editor.chooseRun(null);
    editor.commit(withRanges(editor.document, run.lane, editor.document[run.lane].ranges.filter((_, index) => index !== run.index)));
  };
  const enabled = () => editor.editable;
  return make("div", { class: "h3-mask-bar", role: "group", "aria-label": "Chosen range" },
    make("b", {}, "chosen range:"),
    toggle(updates, button("keep", "Keep the source here (double click on the range turns it)", () => set(0)), () => runOf(editor)?.value === 0, enabled),
    toggle(updates, button("regenerate", "Regenerate all of it", () => set(1)), () => runOf(editor)?.value === 1, enabled),
    slider(updates, { name: "strength", unit: "%", title: "How much of the range is regenerated", max: 1, step: 0.05, get: () => runOf(editor)?.value ?? 1,
      set: (value) => set(value, "run") }),
    toggle(updates, button("delete range", "Take the range away (Delete)", remove), () => false, enabled),
  );
}

/** @param {MaskEditor} editor @param {Update[]} updates */
function soundBar(editor, updates) {
  const audio = () => editor.document.audio;
  const put = (/** @type {Partial<ReturnType<typeof audio>>} */ changes) =>
    editor.commit({ ...editor.document, audio: { ...audio(), ...changes } });
  const linked = button("", "Whether both channels of the sound are one lane", () => put({ linked: !audio().linked }), { "data-action": "linked" });
  const base = button("", "What the sound is outside of its ranges", () => put({ base: 1 - audio().base }), { "data-action": "base" });
  updates.push(() => {
    linked.textContent = audio().linked ? "L R linked" : "L R apart";
    base.textContent = `sound elsewhere: ${audio().base ? "regenerate" : "keep"}`;
  });
  return make("div", { class: "h3-mask-group" },
    toggle(updates, linked, () => audio().linked, () => editor.editable),
    toggle(updates, base, () => audio().base === 1, () => editor.editable),
  );
}
