// One editor: the document with its history, what is chosen and shown, and when both canvases are drawn. It knows its elements
// and, through `Host`, the node; ComfyUI itself is known to widget.js only.

import { MaskCells } from "./cells.js";
import { gridOf, tokenCount, tokenOfFrame, tokenStart } from "./grid.js";
import { emptyDocument, isActive, MOST_LAYERS, readDocument, writeDocument } from "./document.js";
import { prepare } from "./dom.js";
import { moveToCanvas, snapSpan } from "./edits.js";
import { FrameStore } from "./frames.js";
import { CarriedStore } from "./carried.js";
import { changeGroup } from "./groups.js";
import { History } from "./history.js";
import { listenToKeys } from "./keys.js";
import { buildPanel } from "./panel.js";
import { drawEditor } from "./picture.js";
import { RasterStore } from "./rasters.js";
import { Statistics } from "./statistics.js";
import { drawTimeline } from "./timeline.js";
import { listenToTimeline } from "./timeline_drag.js";
import { listenToPicture } from "./tools.js";
import { pictureBox, WHOLE } from "./viewport.js";

/** @typedef {import("./document.js").MaskDocument} MaskDocument */
/** @typedef {import("./document.js").Layer} Layer */
/** @typedef {import("./cells.js").Size} Size */
/** @typedef {import("./frames.js").Source} Source */
/** @typedef {import("./tools.js").Tool} Tool */
/** @typedef {import("./edits.js").Lane} Lane */
/**
 * What the editor needs of its node.
 * @typedef {object} Host
 * @property {(text: string) => void} save writes the widget's text
 * @property {(route: string) => string} url
 * @property {() => Size | null} size of the latent, as far as the graph tells
 * @property {() => string | null} carried key of the mask that the latent came with
 * @property {() => boolean} edited whether the document is another one than in the last run
 * @property {() => string[]} notes what the last run had to say
 * @property {() => boolean} connected whether there is a latent
 * @property {(gone: string) => Source | null} source of the frames; gone: key of a clip that is not kept any more
 * @property {() => Source | null} result of the last run
 * @property {() => number | null} seconds that the last run's sampling took
 * @property {() => void} run everything that leads to this node
 * @property {(files: File[]) => Promise<string>} upload returns the name of a raster's file
 * @property {(full: boolean) => void} full
 */
/** @typedef {"cells" | "paint" | "off"} Overlay */
/** @typedef {"all" | "token" | "marked"} Lives how long a new layer lives */
/** @typedef {ReturnType<typeof freshState>} State */

const ASPECT_SLACK = 1.05;
const SAID_MS = 5000;
const FIRST_BRUSH = { size: 64, softness: 16, strength: 1 };

function freshState() {
  return {
    frame: 0,
    tool: /** @type {Tool} */ ("brush"),
    brush: FIRST_BRUSH,
    lives: /** @type {Lives} */ ("all"),
    marked: /** @type {[number, number] | null} */ (null),
    selected: /** @type {string | null} */ (null),
    run: /** @type {{ lane: Lane, index: number } | null} */ (null),
    overlay: /** @type {Overlay} */ ("cells"),
    onion: false,
    grid: true,
    erasing: false,
    reshaping: false,
    comparing: false,
    helping: false,
    wipe: 0.5,
    full: false,
    playing: false,
    said: "",
    view: WHOLE,
  };
}

export class MaskEditor {
  /** @param {Host} host */
  constructor(host) {
    this.host = host;
    this.state = freshState();
    /** @type {History<MaskDocument>} */
    this.history = new History(emptyDocument());
    /** @type {MaskDocument | null} shown while a drag lasts */
    this.pending = null;
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
    return this.pending ?? this.history.state;
  }

  /** The size on which the mask is computed; null while nothing is known. */
  get known() {
    const drawn = this.document.canvas;
    return (!this.mismatch() && this.given) || (drawn && gridOf(drawn));
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

  get editable() {
    return !this.problem && this.known !== null;
  }

  get layer() {
    return this.document.layers.find((layer) => layer.id === this.state.selected) ?? null;
  }

  get frame() { return this.state.frame; } // prettier-ignore
  get tool() { return this.state.tool; } // prettier-ignore
  get brush() { return this.state.brush; } // prettier-ignore
  get view() { return this.state.view; } // prettier-ignore
  get selected() { return this.layer?.id ?? null; } // prettier-ignore
  get erasing() { return this.state.erasing; } // prettier-ignore
  get wipe() { return this.state.wipe; } // prettier-ignore
  get reshaping() { return this.state.reshaping && this.layer !== null; } // prettier-ignore
  get comparing() { return this.state.comparing && !!this.result?.facts; } // prettier-ignore

  /** Say how the document differs from the latent that is connected, in words; empty when it fits. */
  mismatch() {
    const [drawn, given] = [this.document.canvas, this.given];
    const { layers, video, audio } = this.document;
    if (!drawn || !given || !(layers.length + video.ranges.length + audio.ranges.length)) return "";
    const ratio = (drawn.width * given.height) / (drawn.height * given.width);
    const fits = drawn.frames === given.frames && ratio <= ASPECT_SLACK && 1 / ratio <= ASPECT_SLACK;
    if (fits) return "";
    const name = (/** @type {Size} */ s) => `${s.width}x${s.height}, ${s.frames} frames`;
    return `This edit was painted on ${name(drawn)}; the latent is ${name(given)}.`;
  }

  /** Say why the layers of this frame do not count; empty when they do. */
  overruled() {
    const run = this.document.video.ranges.findLast(({ from, to }) => from <= this.frame && this.frame < to);
    if (!run || !this.document.layers.some((layer) => isActive(layer, this.frame))) return "";
    const does = run.value === 0 ? "keeps all" : run.value === 1 ? "regenerates all" : `sets ${Math.round(run.value * 100)}% for all`;
    return `The run in the “picture” lane ${does} of this frame: layers do not count here.`;
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
    this.history.push(this.#onCanvas(document), tag);
    this.#write();
  }

  undo() {
    if (this.editable && this.history.undo()) this.#stepped();
  }

  redo() {
    if (this.editable && this.history.redo()) this.#stepped();
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
    if (this.given) this.commit(moveToCanvas(this.document, this.given));
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

  /** Say something for some seconds. @param {string} text */
  say(text) {
    this.state.said = text;
    clearTimeout(this.saying);
    this.saying = window.setTimeout(() => this.show({ said: "" }), SAID_MS);
    this.redraw();
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

  play() {
    const playing = !this.state.playing;
    this.show({ playing });
    if (!playing) return;
    const [start, first] = [performance.now(), this.frame];
    const step = (/** @type {number} */ now) => {
      if (!this.state.playing || this.closed) return;
      const frame = (first + Math.floor(((now - start) * 24) / 1000)) % this.frames;
      if (frame !== this.frame) this.goTo(frame);
      requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
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

  timeState() {
    return {
      document: this.document,
      frames: this.frames,
      frame: this.frame,
      layer: this.layer,
      run: this.state.run,
      marked: this.state.marked,
      share: this.statistics.share,
      sound: this.statistics.sound,
      peaks: this.source?.facts?.peaks ?? null,
    };
  }

  #changed() {
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
    if (this.known) this.statistics.start(this.cells);
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
      if (context && this.known) drawTimeline(context, this.timeState(), time.clientWidth, time.clientHeight);
    });
  }

  close() {
    this.closed = true;
    clearTimeout(this.saying);
    this.closing.abort();
    this.resizing.disconnect();
    this.statistics.clear();
    this.source?.close();
    this.result?.close();
  }
}
