// Which values of a node's widgets go into a workflow file, and which of a file's values its widgets take.
// Files hold values by position, and ComfyUI puts the text that a node shows behind them: once a node has grown an input,
// that text would land in it.

/** @typedef {{ name: string, value: unknown }} Widget */

const SHOWN_TEXT = "$$node-text-preview";

/**
 * Return the values to save: those of inputs, not the text that the node shows.
 * @param {Widget[]} widgets
 * @param {unknown[]} values by the position of their widget
 */
export function valuesToSave(widgets, values) {
  return values.filter((_, i) => widgets[i]?.name !== SHOWN_TEXT);
}

/**
 * Return the values of a file up to the first that is no value of its widget (a text for a number or a switch); the
 * widgets after it keep their defaults.
 * @param {Widget[]} widgets with their defaults
 * @param {unknown[]} values by the position of their widget
 */
export function valuesToLoad(widgets, values) {
  const end = values.findIndex((value, i) => {
    const kind = typeof widgets[i]?.value;
    return (kind === "number" || kind === "boolean") && typeof value !== kind;
  });
  return end < 0 ? values : values.slice(0, end);
}
