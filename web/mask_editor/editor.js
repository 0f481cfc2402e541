// One editor: the document with its history, what is chosen and shown, and when both canvases are drawn. It knows its elements
// and, through `Host`, the node; ComfyUI itself is known to widget.js only.

import { MaskCells } from "./cells.js";
import { gridOf, tokenCount, tokenOfFrame, tokenStart } from "./grid.js";
import { emptyDocument, MOST_LAYERS, readDocument, writeDocument } from "./document.js";
import { prepare } from "./dom.js";
import { moveToCanvas, snapSpan } from "./edits.js";
import { FrameStore } from "./frames.js";
import { CarriedStore } from "./carried.js";
import { changeGroup } from "./groups.js";
import { History } from "./history.js";
import { listenToKeys } from "./keys.js";
import { buildPanel } from "./panel.js";
import { Player } from "./playing.js";
import { drawEditor } from "./picture.js";
import { RasterStore } from "./rasters.js";
import { mismatchOf, overruled, ownFrames } from "./remarks.js";
import { FIRST_BRUSH, freshState } from "./state.js";
import { Statistics } from "./statistics.js";
import { drawTimeline, timeStateOf } from "./timeline.js";
import { listenToTimeline } from "./timeline_drag.js";
import { listenToPicture } from "./tools.js";
import { pictureBox } from "./viewport.js";

/** @typedef {import("./document.js").MaskDocument} MaskDocument */
/** @typedef {import("./document.js").Layer} Layer */
/** @typedef {import("./cells.js").Size} Size */
/** @typedef {import("./frames.js").Source} Source */
/** @typedef {import("./host.js").Host} Host */
/** @typedef {import("./state.js").State} State */

const SAID_MS = 5000;
const UNDO_MS = 12000;

export class MaskEditor {
  /** @param {Host} host */
  constructor(host) {
    this.host = host;
    this.state = freshState();
    /** @type {History<MaskDocument>} */
    this.history = new History(emptyDocument());
    /** @type {MaskDocument | null} shown while a drag lasts */
    this.pending = null;
    /** @type {MaskDocument | null} the edit of another shot as it would be on this one, until somebody decides */
    this.moved = null;
    /** @type {string | null} the widget's, as it was read or written last */
    this.text = null;
    this.gone = "";
    this.problem = "";
    /** True when the text is no document, of this or another version. */
    this.broken = false;
    /** @type {Size | null} */
    this.given = null;
    this.cells = new MaskCells({ width: 32, height: 32, frames: 5 });
    /** @type {FrameStore | null} */
    this.source = null;
    /** @type {FrameStore | null} */
    this.result = null;
    /** @type {[number, number] | null} the pointer, on the picture's canvas */
    this.pointer = null;
    /** @type {ImageBitmap | null} */
    this.lastPicture = null;
    this.saying = 0;
    this.drawing = 0;
    this.closed = false;
    this.closing = new AbortController();
    this.carried = new CarriedStore(host.url, () => this.#changed());
    this.rasters = new RasterStore(host.url, () => this.#changed());
    this.statistics = new Statistics(() => this.redraw());
    this.player = new Player(this);
    this.panel = buildPanel(this);
    this.root = this.panel.root;
    listenToPicture(this, this.panel.picture);
    listenToTimeline(this, this.panel.time);
    listenToKeys(this, this.root);
    this.resizing = new ResizeObserver(() => this.redraw());
    this.resizing.observe(this.panel.picture);
    this.resizing.observe(this.panel.time);
    this.load("");
  }

  // What is edited

  /** The document as it is shown. */
  get document() {
    return this.pending ?? this.moved ?? this.history.state;
  }

  /** The size on which the mask is computed; null while nothing is known. */
  get known() {
    const drawn = this.history.state.canvas;
    return this.given ?? (drawn && gridOf(drawn));
  }

  get size() {
    return this.known ?? { width: 1344, height: 768, frames: 124 };
  }

  /** What the document's pixels are of. */
  get canvas() {
    return this.document.canvas ?? this.size;
  }

  get frames() {
    return this.size.frames;
  }

  /** Frames of the clip that is shown, 0 when there is none. */
  get clip() {
    return this.source?.facts?.frames ?? 0;
  }

  /** Frames that are not held ones. */
  get own() { return ownFrames(this.frames, this.clip); } // prettier-ignore

  /** Whether the document may be replaced: a text that is none is never written over. */
  get writable() {
    return !this.problem && this.known !== null;
  }

  /** Whether it can be worked on: not while it is of another shot. */
  get editable() {
    return this.writable && !this.mismatch();
  }

  get layer() {
    return this.document.layers.find((layer) => layer.id === this.state.selected) ?? null;
  }

  get frame() { return this.state.frame; } // prettier-ignore
  get tool() { return this.state.tool; } // prettier-ignore
  get brush() { return this.state.brush; } // prettier-ignore
  get view() { return this.state.view; } // prettier-ignore
  get selected() { return this.layer?.id ?? null; } // prettier-ignore
  get mode() { return this.state.tool === "erase" ? "erase" : this.state.mode; } // prettier-ignore
  get wipe() { return this.state.wipe; } // prettier-ignore
  get reshaping() { return this.state.reshaping && this.layer !== null; } // prettier-ignore
  get comparing() { return this.state.comparing && !!this.result?.facts; } // prettier-ignore

  /** Say how the document differs from the latent that is connected; empty when it fits. */
  mismatch() {
    return mismatchOf(this.history.state, this.given);
  }

  /** Say why what is painted does not count in this frame; empty when it does, or nobody paints. */
  overruled() {
    return this.moved ? "" : overruled(this.document, this.frame, this.pointer !== null && this.editable && this.tool !== "move");
  }

  /** Frames [from, to) in which a new layer lives. @returns {[number, number]} */
  lives() {
    const { lives, marked, frame } = this.state;
    if (lives === "marked" && marked) return [...marked];
    return lives === "token" ? snapSpan("video", frame, frame + 1, this.frames) : [0, this.frames];
  }

  /**
   * Take the widget's text; what the editor itself wrote changes nothing.
   * @param {string} text
   */
  load(text) {
    if (text === this.text) return;
    const read = readDocument(text);
    this.text = text;
    this.problem = read.problem ?? "";
    this.broken = read.problem !== null && read.version === null;
    this.pending = null;
    this.history = new History(read.edit ?? emptyDocument());
    this.refresh();
  }

  /** Look at the graph again: size, source and result. */
  refresh() {
    this.given = this.host.size();
    this.source = this.#store(this.source, this.host.source(this.gone));
    this.result = this.#store(this.result, this.host.result());
    this.#changed();
  }

  /**
   * @param {FrameStore | null} old
   * @param {Source | null} source
   */
  #store(old, source) {
    if (old && source && JSON.stringify(old.source) === JSON.stringify(source) && !old.problem) return old;
    old?.close();
    this.lastPicture = null;
    if (!source) return null;
    const store = new FrameStore(source, this.host.url, () => {
      if (store.problem && "key" in source && source.key !== this.gone) {
        this.gone = source.key;
        this.refresh();
      } else this.redraw();
    });
    void store.open();
    return store;
  }

  /**
   * Show a document while a drag lasts.
   * @param {MaskDocument} document
   */
  preview(document) {
    this.pending = this.#onCanvas(document);
    this.#changed();
  }

  /** Keep what is previewed. @param {string} [tag] */
  settle(tag = "") {
    if (this.pending) this.commit(this.pending, tag);
  }

  /** Forget what is previewed. */
  drop() {
    this.pending = null;
    this.#changed();
  }

  /**
   * Take a new state of the document and write it into the widget.
   * @param {MaskDocument} document
   * @param {string} [tag] of changes that are one step of undo
   */
  commit(document, tag = "") {
    this.pending = null;
    if (!this.editable) return this.#changed();
    if (document.layers.length > MOST_LAYERS) {
      this.say(`This edit has ${MOST_LAYERS} strokes and shapes, the most: take some away, or paint with fewer and longer strokes.`);
      return this.#changed();
    }
    this.replace(document, tag);
  }

  /**
   * Take a new state even in place of an edit of another shot.
   * @param {MaskDocument} document
   * @param {string} [tag]
   */
  replace(document, tag = "") {
    this.pending = null;
    if (!this.writable) return this.#changed();
    this.state.said = ""; // it was of what was there before
    this.history.push(this.#onCanvas(document), tag);
    this.#write();
  }

  undo() {
    if (this.writable && this.history.undo()) this.#stepped();
  }

  redo() {
    if (this.writable && this.history.redo()) this.#stepped();
  }

  /** What was chosen may be gone: then the uppermost layer is. */
  #stepped() {
    if (this.state.selected && !this.layer) this.state.selected = this.document.layers.at(-1)?.id ?? null;
    this.#write();
  }

  #write() {
    this.text = writeDocument(this.history.state);
    this.host.save(this.text);
    this.#changed();
  }

  /** @param {MaskDocument} document @returns {MaskDocument} */
  #onCanvas(document) {
    return document.canvas ? document : { ...document, canvas: { ...(this.given ?? this.size) } };
  }

  /** @param {(layer: Layer) => Layer} change of the chosen layer and what belongs to it @param {string} [tag] */
  changeSelected(change, tag = "") {
    if (this.layer) this.commit(changeGroup(this.document, this.layer, change), tag && `${tag} ${this.layer.id}`);
  }

  /** Put an empty edit in place of a text that is none. */
  startAnew() {
    this.load("");
    this.host.save("");
  }

  /** Bring the edit to the latent that is connected. */
  adopt() {
    if (this.moved) this.replace(this.moved);
  }

  // What is shown

  /** @param {Partial<State>} changes */
  show(changes) {
    Object.assign(this.state, changes);
    this.redraw();
  }

  /** @param {number} frame */
  goTo(frame) {
    this.show({ frame: Math.min(this.frames - 1, Math.max(0, Math.round(frame))) });
  }

  /** Go to the next or previous token. @param {number} by */
  goToToken(by) {
    const token = tokenOfFrame(this.frame) + by;
    this.goTo(tokenStart(Math.min(tokenCount(this.frames) - 1, Math.max(0, token))));
  }

  /**
   * Say something for some seconds.
   * @param {string} text
   * @param {{ undoable?: boolean }} [how] undoable: it is of the last change, which can be undone beside it
   */
  say(text, { undoable = false } = {}) {
    clearTimeout(this.saying);
    this.saying = window.setTimeout(() => this.show({ said: "" }), undoable ? UNDO_MS : SAID_MS);
    this.show({ said: text, undoable: undoable ? this.history.state : null });
  }

  /** @param {[number, number] | null} marked */
  mark(marked) {
    this.show({ marked, lives: marked ? "marked" : "all" });
  }

  /** @param {State["run"]} run */
  chooseRun(run) {
    this.show({ run });
  }

  /** @param {[number, number] | null} at */
  pointAt(at) {
    this.pointer = at;
    this.redraw();
  }

  /** @param {boolean} full */
  setFull(full) {
    this.state.full = full;
    this.host.full(full);
    this.redraw();
  }

  /** Where the picture lies on its canvas. */
  box() {
    const { clientWidth: width, clientHeight: height } = this.panel.picture;
    return pictureBox(this.view, { width, height }, this.size);
  }

  #changed() {
    this.moved = this.mismatch() && this.given ? moveToCanvas(this.history.state, this.given) : null;
    const { width, height, frames } = this.size;
    const had = this.cells.size;
    if (had.width !== width || had.height !== height || had.frames !== frames) {
      this.cells = new MaskCells({ width, height, frames });
      this.state.frame = Math.min(this.frame, frames - 1);
      this.state.marked = null;
    }
    this.cells.carried = this.carried.of(this.host.carried(), this.cells);
    this.cells.update(this.document, this.rasters.of(this.document, this.size));
    this.#sizeBrush();
    if (this.known && !this.moved) this.statistics.start(this.cells);
    else this.statistics.clear();
    this.redraw();
  }

  /** Until somebody chooses one, the brush is of a size for the picture. */
  #sizeBrush() {
    if (!this.known || this.state.brush !== FIRST_BRUSH) return;
    const short = Math.min(this.canvas.width, this.canvas.height);
    const [size, softness] = [Math.round(short / 8), Math.round(short / 32)];
    if (size < FIRST_BRUSH.size) this.state.brush = { ...FIRST_BRUSH, size, softness };
  }

  redraw() {
    if (this.drawing || this.closed) return;
    this.drawing = requestAnimationFrame(() => {
      this.drawing = 0;
      this.panel.update();
      drawEditor(this);
      const { time } = this.panel;
      const context = prepare(time, devicePixelRatio * this.panel.scale());
      if (context && this.known) drawTimeline(context, timeStateOf(this), time.clientWidth, time.clientHeight);
    });
  }

  close() {
    this.closed = true;
    clearTimeout(this.saying);
    this.closing.abort();
    this.resizing.disconnect();
    this.statistics.clear();
    this.player.close();
    this.source?.close();
    this.result?.close();
  }
}
