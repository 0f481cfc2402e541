// Playing: frames at 24 a second, from the one that is shown, round and round, and the sound that goes with them. The clock
// leads; the sound is set to it when it starts, when somebody goes elsewhere, and where it has drifted. ComfyUI may forbid the page
// media elements of what it has fetched, so the samples are played.

import { query } from "./frames.js";
import { FPS } from "./grid.js";

/** @typedef {import("./editor.js").MaskEditor} MaskEditor */
/** @typedef {import("./frames.js").Source} Source */
/** @typedef {"source" | "result" | "off"} Heard whose sound is played */

const DRIFT = 0.12; // seconds

export class Player {
  /** @param {MaskEditor} editor */
  constructor(editor) {
    this.editor = editor;
    /** @type {AudioContext | null} made with the first press, as browsers ask */
    this.context = null;
    /** @type {AudioBuffer | null} */
    this.sound = null;
    /** @type {AudioBufferSourceNode | null} what is heard now */
    this.voice = null;
    /** What the sound is of, as a query; empty: of nothing yet. */
    this.name = "";
    /** When the context's clock stood at the sound's beginning. */
    this.zero = 0;
    this.waiting = 0;
  }

  /** Seconds of the sound that are heard now; null in silence. */
  get at() {
    return this.voice && this.context ? this.context.currentTime - this.zero : null;
  }

  /** Begin to play, or stop. */
  toggle() {
    const playing = !this.editor.state.playing;
    this.editor.show({ playing });
    this.#rest();
    if (!playing) return;
    void (this.context ??= new AudioContext()).resume();
    this.#begin();
  }

  #begin() {
    const { editor } = this;
    let [start, first] = [performance.now(), editor.frame];
    let shown = first;
    const step = (/** @type {number} */ now) => {
      if (editor.frame !== shown) [start, first] = [now, editor.frame];
      const seconds = (first / FPS + Math.max(0, now - start) / 1000) % (editor.frames / FPS);
      const frame = Math.floor(seconds * FPS + 1e-6);
      if (frame !== editor.frame) editor.goTo(frame);
      shown = editor.frame;
      this.#follow(seconds);
      this.waiting = requestAnimationFrame(step);
    };
    this.waiting = requestAnimationFrame(step);
  }

  #rest() {
    cancelAnimationFrame(this.waiting);
    this.#hush();
  }

  #hush() {
    this.voice?.stop();
    this.voice?.disconnect();
    this.voice = null;
  }

  /** Have the sound at a time. @param {number} seconds */
  #follow(seconds) {
    const { at, context, editor } = this;
    const { heard } = editor.state;
    const store = heard === "result" ? editor.result : editor.source;
    if (heard === "off" || !store?.facts?.peaks?.length) return this.#hush();
    if (query(store.source) !== this.name) return void this.#load(store.source);
    if (!this.sound || context?.state !== "running") return;
    if (seconds >= this.sound.duration) return this.#hush();
    if (at !== null && Math.abs(at - seconds) <= DRIFT) return;
    this.#hush();
    this.voice = new AudioBufferSourceNode(context, { buffer: this.sound });
    this.voice.connect(context.destination);
    this.voice.start(0, seconds);
    this.zero = context.currentTime - seconds;
  }

  /** @param {Source} source */
  async #load(source) {
    this.#hush();
    this.sound = null;
    const name = (this.name = query(source));
    try {
      const answer = await fetch(this.editor.host.url(`/h3_engine/sound?${name}`));
      const sound = answer.ok ? await this.context?.decodeAudioData(await answer.arrayBuffer()) : null;
      if (name === this.name) this.sound = sound ?? null;
    } catch {
      // Silence: the pictures are played all the same.
    }
  }

  close() {
    this.#rest();
    void this.context?.close();
    this.context = this.sound = null;
  }
}
