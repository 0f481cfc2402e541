// Buttons, sliders and lists; `updates` collects what brings them up to date.

import { make } from "./dom.js";

/** @typedef {() => void} Update */

/**
 * @param {string} text
 * @param {string} title
 * @param {() => void} click
 * @param {Record<string, string>} [attributes]
 */
export function button(text, title, click, attributes = {}) {
  return make("button", { type: "button", title, "aria-label": title, click, ...attributes }, text);
}

/**
 * A button that is pressed while something is on.
 * @param {Update[]} updates
 * @param {HTMLButtonElement} element
 * @param {() => boolean} pressed
 * @param {() => boolean} [enabled]
 */
export function toggle(updates, element, pressed, enabled = () => true) {
  updates.push(() => {
    element.setAttribute("aria-pressed", String(pressed()));
    element.disabled = !enabled();
  });
  return element;
}

/**
 * @param {Update[]} updates
 * @param {{ name: string, unit: string, title: string, max: number, step?: number, get: () => number, set: (value: number) => void }} about
 */
export function slider(updates, { name, unit, title, max, step = 1, get, set }) {
  const shown = make("output", {});
  const input = make("input", {
    type: "range", min: "0", max: String(max), step: String(step), title, "aria-label": `${name} (${unit})`,
    input: () => set(Number(input.value)),
  });
  updates.push(() => {
    input.value = String(get());
    shown.value = unit === "%" ? `${Math.round(get() * 100)}%` : `${Math.round(get())} ${unit}`;
  });
  return make("label", { title }, name, input, shown);
}

/**
 * @template {string} T
 * @param {Update[]} updates
 * @param {{ name: string, title: string, options: [T, string][], get: () => T, set: (value: T) => void, enabled?: () => boolean, told?: T }} about
 *   told: an option that is only shown, not chosen
 */
export function choice(updates, { name, title, options, get, set, enabled = () => true, told }) {
  const select = make("select", { title, "aria-label": name, change: () => set(/** @type {T} */ (select.value)) });
  select.append(...options.map(([value, text]) => make("option", { value, disabled: value === told }, text)));
  updates.push(() => {
    if (select.value !== get()) select.value = get();
    select.disabled = !enabled();
  });
  return make("label", { title }, name, select);
}
