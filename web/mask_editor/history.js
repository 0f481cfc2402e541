// Undo and redo of one editor. Documents are never changed in place, so a state is a reference. No page is touched.

const MOST = 200;

/** @template T */
export class History {
  /** @param {T} state */
  constructor(state) {
    /** @type {T[]} */
    this.past = [];
    /** @type {T[]} */
    this.future = [];
    this.state = state;
    this.tag = "";
  }

  /**
   * Take a new state. States with the same tag one after the other are one step (a slider that is dragged); an empty tag
   * always makes its own.
   * @param {T} state
   * @param {string} tag
   */
  push(state, tag = "") {
    if (state === this.state) return;
    if (!tag || tag !== this.tag) this.past.push(this.state);
    if (this.past.length > MOST) this.past.shift();
    this.future = [];
    this.state = state;
    this.tag = tag;
  }

  /** Go back one step; return whether there was one. */
  undo() {
    return this.#step(this.past, this.future);
  }

  /** Go forward again; return whether there was a step. */
  redo() {
    return this.#step(this.future, this.past);
  }

  /**
   * @param {T[]} from
   * @param {T[]} to
   */
  #step(from, to) {
    const state = from.pop();
    if (state === undefined) return false;
    to.push(this.state);
    this.state = state;
    this.tag = "";
    return true;
  }
}
