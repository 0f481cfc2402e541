// Whose run an output is of. ComfyUI gives what a run left to the node of the same id in whatever tab is in front, and tabs that
// were opened from one template share their nodes' ids and the workflow's. So the page remembers from which tab each run was
// queued, and keeps what it left for that tab. Of a run that the page did not queue (it was loaded anew meanwhile) the
// workflow's id decides.

/** @typedef {import("../../../scripts/app.js").App} App */
/** @typedef {Record<string, Record<string, unknown>>} Outputs by the node's id */
/** @typedef {{ node: string | number, display_node?: string | number, output?: Record<string, unknown> | null, prompt_id?: string }} Executed */

const KEPT = 500;
const ONLY = {}; // the tab where ComfyUI tells of none

/** @type {WeakMap<App, Runs>} */
const known = new WeakMap();

/** @param {App} app @returns {Runs} the one of the page */
export function runsOf(app) {
  const found = known.get(app) ?? new Runs(app);
  known.set(app, found);
  return found;
}

export class Runs {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    /** @type {Map<string, object>} tab of each run, by its prompt's id */
    this.tabs = new Map();
    /** @type {Set<Promise<void>>} runs whose ids the server has not told yet */
    this.asked = new Set();
    /** @type {WeakMap<object, string>} prompt's id of each output */
    this.prompts = new WeakMap();
    /** @type {WeakMap<object, Outputs>} what the runs of a tab left */
    this.own = new WeakMap();
    /** @type {WeakMap<object, Set<string>>} nodes for which ComfyUI shows what another tab's run left */
    this.strange = new WeakMap();
    /** @type {Set<(node: string) => void>} */
    this.listeners = new Set();
    /** @type {{ from: object } | null} the graph that is being opened, and the tab that was in front before */
    this.opening = null;
    this.#watchQueue();
    this.#watchOpening();
    app.api.addEventListener("executed", (event) => void this.#executed(/** @type {CustomEvent<Executed>} */ (event).detail));
  }

  /** @returns {object} the tab in front */
  get tab() {
    return this.app.extensionManager?.workflow?.activeWorkflow ?? ONLY;
  }

  /** @returns {boolean} whether the graph on the page may be another tab's: ComfyUI opens a graph before it shows its tab */
  get between() {
    return this.opening?.from === this.tab;
  }

  /** Wait until the tab in front is the one of the graph on the page. */
  async arrived() {
    while (this.between) await new Promise((done) => requestAnimationFrame(done));
  }

  /** @returns {Outputs} what the runs of the tab in front left; nothing between two tabs */
  outputs() {
    if (this.between) return {};
    const strange = this.strange.get(this.tab);
    const shown = Object.entries(this.app.nodeOutputs ?? {}).filter(([node]) => !strange?.has(node));
    return { ...Object.fromEntries(shown), ...this.own.get(this.tab) };
  }

  /**
   * Return whether a run was queued from the tab in front; once `settled` when it was told just now. Of none between two tabs.
   * @param {string | null | undefined} prompt its id
   * @param {string | null | undefined} workflow id of its workflow
   */
  isOfTab(prompt, workflow) {
    if (this.between) return false;
    const tab = prompt ? this.tabs.get(prompt) : undefined;
    if (tab) return tab === this.tab;
    const shown = this.app.rootGraph?.id ?? this.app.graph?.id;
    return !workflow || !shown || workflow === shown;
  }

  /** @param {object} output @returns {string | undefined} id of the prompt that left it, where that is known */
  promptOf(output) {
    return this.prompts.get(output);
  }

  /** Wait until it is known whose the run is that is told of now. */
  async settled() {
    await null; // all that listen to the event have heard it by then
    await Promise.all(this.asked);
  }

  /**
   * Call `listener` with the id of each node that a run of the tab in front has executed.
   * @param {(node: string) => void} listener
   * @returns {() => void} ends it
   */
  listen(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  #watchQueue() {
    const runs = this;
    const { api } = this.app;
    const { queuePrompt } = api;
    if (!queuePrompt) return;
    api.queuePrompt = function (...given) {
      const tab = runs.tab;
      const answer = queuePrompt.apply(this, given);
      const told = answer.then(({ prompt_id: id }) => runs.#remember(id, tab), () => {}).finally(() => runs.asked.delete(told));
      runs.asked.add(told);
      return answer;
    };
  }

  #watchOpening() {
    const runs = this;
    const { loadGraphData } = this.app;
    if (!loadGraphData) return;
    this.app.loadGraphData = async function (...given) {
      const opening = (runs.opening = { from: runs.tab });
      try {
        return await loadGraphData.apply(this, given);
      } finally {
        if (runs.opening === opening) runs.opening = null; // else another was opened meanwhile
      }
    };
  }

  /** @param {string | undefined} prompt @param {object} tab */
  #remember(prompt, tab) {
    if (!prompt) return;
    this.tabs.set(prompt, tab);
    if (this.tabs.size > KEPT) this.tabs.delete(this.tabs.keys().next().value ?? "");
  }

  /** @param {Executed} detail */
  async #executed({ node, display_node: shown, output, prompt_id: prompt }) {
    if (!output) return;
    if (prompt) this.prompts.set(output, prompt);
    const front = this.tab;
    const id = String(shown || node);
    const strange = this.strange.get(front) ?? new Set();
    this.strange.set(front, strange.add(id));
    await this.settled();
    const tab = (prompt && this.tabs.get(prompt)) || front;
    if (tab === front) strange.delete(id);
    this.own.set(tab, { ...this.own.get(tab), [id]: output });
    if (tab === this.tab) for (const listener of this.listeners) listener(id);
  }
}
