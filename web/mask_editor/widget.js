// The editor on its node: in place of the text of the widget `document`, inline or over the whole page. The widget's text is
// the only thing that is saved; the editor follows it when a file is opened, a tab comes back or ComfyUI undoes.

import { make } from "./dom.js";
import { MaskEditor } from "./editor.js";
import { FactsStore } from "./frames.js";
import { runsOf } from "./runs.js";
import { downstream, missingClip, originOfLatent, resultInGraph, sizeInGraph, sourceInGraph, stepsInGraph, upstream, valueOf } from "./graph.js";

/** @typedef {import("../../../scripts/app.js").GraphNode} GraphNode */
/** @typedef {import("../../../scripts/app.js").App} App */
/** @typedef {import("./cells.js").Size} Size */
/** @typedef {import("./frames.js").Source} Source */
/**
 * What the node left of its last run; graph, text: what `stateOf` and the document said then.
 * workflow: the id of the one that ran, see runs.js.
 * @typedef {{ key: string | null, mask?: string | null, carried?: string | null, canvas: Size, notes?: string[], workflow?: string | null, graph?: string, text?: string }} Shown
 */

/** @typedef {{ seconds: number, steps: number }} Sampling */
/** @typedef {{ node: string, canvas: Size, workflow: string | null, prompt?: string }} Told */

export const NODE = "H3EngineLatentMask";
const SIZE = /** @type {const} */ ([840, 960]);
const MIN_HEIGHT = 560;
const MIN_WIDTH = 520;
const ABOVE = 172; // pixels of a node that its slots and other widgets take
const FOLDER = "h3_masks";
const CANVAS_EVENT = "h3_engine.canvas";
const TEXT_WIDGET = "$$node-text-preview"; // ComfyUI's name for it

/** Editors by their node, for tests and for other scripts of the page. @type {WeakMap<GraphNode, MaskEditor>} */
const editors = new WeakMap();

/** @param {GraphNode} node */
export function editorOf(node) {
  return editors.get(node) ?? null;
}

/**
 * Put an editor on a new node.
 * @param {GraphNode} node
 * @param {App} app
 */
export function attachEditor(node, app) {
  const text = node.widgets?.find((widget) => widget.name === "document");
  if (!text || !node.addDOMWidget) return;
  hide(text);
  hideText(node);
  const place = make("div", { class: "h3-mask-place", "data-capture-wheel": "true" });
  place.style.cssText = `width: 100%; height: 100%; min-height: ${MIN_HEIGHT}px;`;
  const away = make("div", { class: "h3-mask-away" }, "The editor is open in full screen.");
  const over = make("div", { class: "h3-mask-full" });
  /** @type {Shown | null} */
  let shown = null;
  /** @type {Sampling | null} of the last run of this size */
  let last = null;
  const facts = new FactsStore((route) => app.api.apiURL(route), () => editor.refresh());
  const inGraph = () => sizeInGraph(node, (file) => facts.of(file));
  // What a run told holds until the graph gives another size or another clip.
  const current = () => (shown && shown.graph === stateOf(node) ? shown : null);
  const runs = runsOf(app);
  const remember = (/** @type {Shown} */ found) => {
    found.graph ??= stateOf(node);
    found.text ??= String(text.value);
    shown = found;
  };
  const editor = new MaskEditor({
    save: (value) => {
      text.value = value;
      node.graph?.setDirtyCanvas?.(true, true);
      const tracker = app.extensionManager?.workflow?.activeWorkflow?.changeTracker;
      if (tracker?.captureCanvasState) tracker.captureCanvasState();
      else tracker?.checkState?.(); // as it was called before
    },
    url: (route) => app.api.apiURL(route),
    size: () => current()?.canvas ?? inGraph() ?? shown?.canvas ?? null,
    carried: () => current()?.carried ?? null,
    edited: () => shown !== null && shown.text !== text.value,
    notes: () => current()?.notes ?? [],
    missing: () => missingClip(node, (file) => facts.lacks(file)),
    connected: () => originOfLatent(node) !== null,
    source: (gone) => {
      const key = current()?.key ?? (sourceInGraph(node) ? null : shown?.key);
      return key && key !== gone ? { key } : sourceInGraph(node);
    },
    result: () => resultInGraph(node, runs.outputs()),
    seconds: () => estimate(node, last),
    run: () => void runUpTo(node, app),
    upload: (files) => upload(app, files),
    full: (full) => showFull(editor, { full, place, away, over }),
  });
  editors.set(node, editor);
  place.append(editor.root);
  place.addEventListener("wheel", (event) => handOn(event, place, app), { capture: true, passive: false });
  const widget = node.addDOMWidget("mask_editor", "h3_mask_editor", place, {
    serialize: false, hideOnZoom: false, getMinHeight: () => MIN_HEIGHT, margin: 6,
  });
  widget.serialize = false;
  Object.assign(widget, { computeLayoutSize: () => ({ minHeight: MIN_HEIGHT, minWidth: MIN_WIDTH }) });
  node.setSize?.([Math.max(node.size?.[0] ?? 0, SIZE[0]), Math.max(node.size?.[1] ?? 0, SIZE[1])]);
  /** @type {Shown | null} taken last from an output */
  let seen = null;
  /** @param {Record<string, unknown> | undefined} [output] of this node */
  const look = (output = runs.outputs()[String(node.id)]) => {
    const found = /** @type {Shown[] | undefined} */ (output?.h3_mask)?.[0];
    if (output && found && found !== seen && runs.isOfTab(runs.promptOf(output), found.workflow)) remember((seen = found));
    editor.rasters.connect(shown?.mask ? { key: shown.mask } : null);
    editor.load(textOf(node));
    editor.refresh();
  };
  /** @param {Record<string, unknown>} [output] */
  const take = (output) => {
    place.dataset.node = String(node.id);
    fit(node, place);
    look(output);
    void lastSampling(app, editor.size).then((found) => {
      last = found;
      editor.redraw();
    });
  };
  follow(node, app, { take, look, editor, remember, over, place });
  for (const wait of [50, 400]) setTimeout(() => takeOver(place), wait);
}

/** @param {GraphNode} node @returns {string} its document */
function textOf(node) {
  const text = valueOf(node, "document");
  return typeof text === "string" ? text : "";
}

/**
 * Hide a widget; nor does it take room (some versions lay out what is hidden).
 * @param {import("../../../scripts/app.js").Widget} widget
 */
function hide(widget) {
  widget.hidden = true;
  // In place: later versions hold on to the object.
  Object.assign((widget.options ??= {}), { hidden: true });
  Object.assign(widget, { computeLayoutSize: () => ({ minHeight: 0, maxHeight: 0, minWidth: 0 }), computeSize: () => [0, -4] });
}

/**
 * Hide the text that ComfyUI puts on a node that runs: it takes half of the editor's room to say what the editor says.
 * @param {GraphNode} node
 */
function hideText(node) {
  const { addCustomWidget } = node;
  node.addCustomWidget = function (widget) {
    if (widget.name === TEXT_WIDGET) hide(widget);
    return addCustomWidget?.call(this, widget) ?? widget;
  };
}

/**
 * Return a text that is the same as long as the graph gives the node the same clip and size.
 * @param {GraphNode} node
 */
function stateOf(node) {
  const origin = originOfLatent(node);
  return JSON.stringify([sourceInGraph(node), origin?.id, origin?.widgets?.map((widget) => widget.value)]);
}

/**
 * Give the editor the room of its node: Vue nodes of 2025 do not stretch what is in them, later ones lay it out in a grid that
 * does. The only place that writes a height.
 * @param {GraphNode} node
 * @param {HTMLElement} place
 */
function fit(node, place) {
  const around = place.closest(".lg-node-widgets");
  const fixed = window.LiteGraph?.vueNodesMode && (!around || getComputedStyle(around).display !== "grid");
  const room = fixed ? (node.size?.[1] ?? 0) - ABOVE : 0;
  place.style.minHeight = `${Math.max(MIN_HEIGHT, room)}px`;
}

/**
 * Give the graph the wheel over an editor without the focus; Vue nodes of later versions do so before it comes here.
 * @param {WheelEvent} event
 * @param {HTMLElement} place
 * @param {App} app
 */
function handOn(event, place, app) {
  if (event.defaultPrevented || place.contains(document.activeElement)) return;
  event.preventDefault();
  event.stopPropagation();
  app.canvas?.canvas?.dispatchEvent(new WheelEvent(event.type, event));
}

/**
 * Put the editor where the page still shows the one of a node that is gone: Vue nodes of the same id are kept when ComfyUI
 * undoes or a tab comes back, with the elements that they were made with.
 * @param {HTMLElement} place
 */
function takeOver(place) {
  if (place.isConnected || !place.dataset.node) return;
  document.querySelector(`.h3-mask-place[data-node="${CSS.escape(place.dataset.node)}"]`)?.replaceWith(place);
}

/**
 * Follow what happens to the node.
 * @param {GraphNode} node
 * @param {App} app
 * @param {{ take: (output?: Record<string, unknown>) => void, look: () => void, editor: MaskEditor,
 *   remember: (shown: Shown) => void, over: HTMLElement, place: HTMLElement }} about take, look: at what the node holds now
 */
function follow(node, app, { take, look, editor, remember, over, place }) {
  const { onConfigure, onExecuted, onConnectionsChange, onRemoved, onResize } = node;
  const runs = runsOf(app);
  const soon = () => void requestAnimationFrame(() => void runs.arrived().then(() => take()));
  node.onConfigure = function (saved) {
    onConfigure?.call(this, saved);
    place.dataset.node = String(node.id);
    // Its tab is not in front yet: what runs left is looked at soon.
    editor.load(textOf(node));
    soon();
  };
  node.onResize = function (size) {
    onResize?.call(this, size);
    fit(node, place);
  };
  node.onExecuted = function (output) {
    onExecuted?.call(this, output);
    void runs.settled().then(() => take(output));
  };
  node.onConnectionsChange = function (...change) {
    onConnectionsChange?.apply(this, change);
    soon();
  };
  const unlisten = runs.listen((id) => {
    if (downstream(node).some((other) => String(other.id) === id)) soon();
  });
  // The node tells the size before it refuses an edit of another one.
  /** @param {Event} event */
  const told = async (event) => {
    const { node: id, canvas, workflow, prompt } = /** @type {CustomEvent<Told>} */ (event).detail;
    await runs.settled();
    if (String(id) !== String(node.id) || !runs.isOfTab(prompt, workflow)) return;
    remember({ key: null, canvas, workflow });
    editor.refresh();
  };
  app.api.addEventListener(CANVAS_EVENT, told);
  // A change elsewhere in the graph: another size, another file. Not every change is told, so the pointer looks too.
  const glance = () => look();
  editor.root.addEventListener("pointerenter", glance);
  app.api.addEventListener("graphChanged", glance);
  node.onRemoved = function () {
    onRemoved?.call(this);
    unlisten();
    app.api.removeEventListener("graphChanged", glance);
    app.api.removeEventListener(CANVAS_EVENT, told);
    over.remove();
    editor.close();
  };
  soon();
}

/**
 * Run what leads to a node, and no more. Seeds that change after each run are put back where nothing ran.
 * @param {GraphNode} node
 * @param {App} app
 */
async function runUpTo(node, app) {
  const ran = new Set([node, ...upstream(node)]);
  const idle = (app.graph?.nodes ?? []).filter((other) => !ran.has(other)).flatMap((other) => other.widgets ?? []);
  const before = idle.map((widget) => widget.value);
  await app.queuePrompt(0, 1, [String(node.id)]);
  idle.forEach((widget, index) => {
    if (widget.value === before[index]) return;
    widget.value = before[index];
    widget.callback?.(widget.value); // Vue nodes show what they are told
  });
}

/**
 * Move the editor to the whole page, or back into its node.
 * @param {MaskEditor} editor
 * @param {{ full: boolean, place: HTMLElement, away: HTMLElement, over: HTMLElement }} places
 */
function showFull(editor, { full, place, away, over }) {
  if (full) {
    place.replaceChildren(away);
    over.replaceChildren(editor.root);
    document.body.append(over);
  } else {
    over.remove();
    place.replaceChildren(editor.root);
  }
  editor.root.focus({ preventScroll: true });
}

/**
 * Return about how many seconds sampling will take: the last run's, by steps.
 * @param {GraphNode} node
 * @param {Sampling | null} last
 */
function estimate(node, last) {
  return last ? (last.seconds * (stepsInGraph(node) ?? last.steps)) / Math.max(1, last.steps) : null;
}

/**
 * Return what the last sampling of a size took, null before the first.
 * @param {App} app
 * @param {Size} size
 * @returns {Promise<Sampling | null>}
 */
async function lastSampling(app, { width, height, frames }) {
  const answer = await app.api.fetchApi(`/h3_engine/sampling?width=${width}&height=${height}&frames=${frames}`).catch(() => null);
  return answer?.ok ? answer.json() : null;
}

/**
 * Put a mask's file into ComfyUI's input folder and return its name there.
 * @param {App} app
 * @param {File[]} files the first is taken
 */
async function upload(app, [file]) {
  const body = new FormData();
  body.append("image", file);
  body.append("subfolder", FOLDER);
  const answer = await app.api.fetchApi("/upload/image", { method: "POST", body });
  const { name, subfolder } = await answer.json();
  return subfolder ? `${subfolder}/${name}` : name;
}
