// Pictures of a clip, fetched small and only when they are shown; the last few stay decoded.

const KEPT = 96;
const AT_ONCE = 4;
const WAITING = 10;
const RETRY_MS = 4000;

/**
 * What a clip is on the server: kept from the node's last run, or a file by ComfyUI's name for it ("folder/name [output]").
 * @typedef {{ key: string } | { file: string }} Source
 */
/** @typedef {{ width: number, height: number, frames: number, peaks: number[][] | null }} Facts peaks: 0..1, per channel */

/**
 * @param {Source} source
 * @param {Record<string, string | number>} [more]
 */
export function query(source, more = {}) {
  return new URLSearchParams(Object.entries({ ...source, ...more }).map(([name, value]) => [name, String(value)])).toString();
}

/** The facts of clips' files, asked for once. */
export class FactsStore {
  /**
   * @param {(route: string) => string} url of a route
   * @param {() => void} changed called when facts have come
   */
  constructor(url, changed) {
    this.url = url;
    this.changed = changed;
    /** @type {Map<string, Facts | null>} */
    this.found = new Map();
    /** @type {Map<string, number>} file that cannot be read → time until which it is not asked for again */
    this.failed = new Map();
  }

  /** Whether a file cannot be read, as far as is known. @param {string} file */
  lacks(file) {
    return this.failed.has(file);
  }

  /**
   * Return a file's facts, or null and ask for them.
   * @param {string} file by ComfyUI's name for it
   */
  of(file) {
    if (!this.found.has(file) && (this.failed.get(file) ?? 0) < Date.now()) {
      this.found.set(file, null);
      void this.#fetch(file);
    }
    return this.found.get(file) ?? null;
  }

  /** @param {string} file */
  async #fetch(file) {
    const answer = await fetch(this.url(`/h3_engine/source?${query({ file })}`)).catch(() => null);
    if (answer?.ok) {
      this.failed.delete(file);
      this.found.set(file, await answer.json());
    } else {
      this.found.delete(file);
      this.failed.set(file, Date.now() + RETRY_MS);
    }
    this.changed();
  }
}

export class FrameStore {
  /**
   * @param {Source} source
   * @param {(route: string) => string} url of a route
   * @param {() => void} changed called when a picture or the facts have come
   */
  constructor(source, url, changed) {
    this.source = source;
    this.url = url;
    this.changed = changed;
    /** @type {Facts | null} */
    this.facts = null;
    this.problem = "";
    /** @type {Map<number, ImageBitmap>} by frame, the last used last */
    this.pictures = new Map();
    /** @type {number[]} wanted, the newest last */
    this.queue = [];
    /** @type {Set<number>} */
    this.running = new Set();
    /** @type {Map<number, number>} frame → time until which it is not asked for again */
    this.failed = new Map();
    this.closed = false;
  }

  /** Ask what the clip is. */
  async open() {
    try {
      const answer = await fetch(this.url(`/h3_engine/source?${query(this.source)}`));
      if (answer.ok) this.facts = await answer.json();
      else this.problem = "not kept any more: run up to this node to see its frames";
    } catch {
      this.problem = "the server did not answer";
    }
    if (!this.closed) this.changed();
  }

  /**
   * Return a frame's picture, or null and ask for it.
   * @param {number} frame
   * @param {boolean} [ask]
   */
  get(frame, ask = true) {
    const count = this.facts?.frames ?? 0;
    const at = Math.min(count - 1, Math.max(0, frame));
    const picture = this.pictures.get(at);
    if (picture) {
      this.pictures.delete(at);
      this.pictures.set(at, picture);
      return picture;
    }
    if (ask && count && !this.running.has(at) && (this.failed.get(at) ?? 0) < Date.now()) this.#want(at);
    return null;
  }

  /** @param {number} frame */
  #want(frame) {
    this.queue = [...this.queue.filter((other) => other !== frame), frame].slice(-WAITING);
    this.#next();
  }

  #next() {
    while (this.running.size < AT_ONCE && this.queue.length) {
      const frame = /** @type {number} */ (this.queue.pop());
      this.running.add(frame);
      void this.#fetch(frame);
    }
  }

  /** @param {number} frame */
  async #fetch(frame) {
    try {
      const answer = await fetch(this.url(`/h3_engine/frame?${query(this.source, { n: frame })}`));
      if (!answer.ok) throw new Error(`${answer.status}`);
      const picture = await createImageBitmap(await answer.blob());
      if (this.closed) picture.close();
      else this.#keep(frame, picture);
    } catch {
      this.failed.set(frame, Date.now() + RETRY_MS);
    }
    this.running.delete(frame);
    if (this.closed) return;
    this.changed();
    this.#next();
  }

  /**
   * @param {number} frame
   * @param {ImageBitmap} picture
   */
  #keep(frame, picture) {
    this.pictures.set(frame, picture);
    for (const [old, gone] of this.pictures) {
      if (this.pictures.size <= KEPT) break;
      this.pictures.delete(old);
      gone.close();
    }
  }

  close() {
    this.closed = true;
    this.queue = [];
    for (const picture of this.pictures.values()) picture.close();
    this.pictures.clear();
  }
}
