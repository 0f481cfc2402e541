// Making elements.

/**
 * Return a new element.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Record<string, string | boolean | number | ((event: any) => void)>} [properties] functions are listeners by their
 *   event's name; `class`, `aria-…` and `data-…` are attributes, the rest properties
 * @param {...(Node | string)} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (name === "class" || name === "role" || name.includes("-")) element.setAttribute(name, String(value));
    else Object.assign(element, { [name]: value });
  }
  element.append(...children);
  return element;
}

/**
 * Return a canvas' drawing context, its pixels matched to its size on the page (before any zoom of the graph, times the
 * screen's density), cleared; null while it has no size.
 * @param {HTMLCanvasElement} canvas
 * @param {number} sharpness pixels of the screen for one of the page
 */
export function prepare(canvas, sharpness) {
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  const context = canvas.getContext("2d");
  if (!width || !height || !context) return null;
  const [w, h] = [Math.round(width * sharpness), Math.round(height * sharpness)];
  if (canvas.width !== w || canvas.height !== h) [canvas.width, canvas.height] = [w, h];
  context.setTransform(w / width, 0, 0, h / height, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

/**
 * Return where a pointer is on an element, in the element's own pixels, whatever zoom the graph has.
 * @param {HTMLElement} element
 * @param {{ clientX: number, clientY: number }} event
 * @returns {[number, number]}
 */
export function pointOn(element, event) {
  const box = element.getBoundingClientRect();
  return [
    ((event.clientX - box.left) * element.clientWidth) / (box.width || 1),
    ((event.clientY - box.top) * element.clientHeight) / (box.height || 1),
  ];
}
