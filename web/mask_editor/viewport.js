// Where the picture lies on the screen: zoom, pan, and both ways between screen and fractions of the canvas. Pure.

const MOST_ZOOM = 16;
const MARGIN = 8;

/** @typedef {{ zoom: number, x: number, y: number }} View zoom: of the size that fits; x, y: of the middle, in fractions of the canvas */
/** @typedef {{ width: number, height: number }} Size */
/** @typedef {{ left: number, top: number, width: number, height: number }} Box */

/** @type {View} */
export const WHOLE = { zoom: 1, x: 0.5, y: 0.5 };

/**
 * Return where the whole picture lies on a screen, in the screen's pixels; parts may be outside.
 * @param {View} view
 * @param {Size} screen
 * @param {Size} picture
 * @returns {Box}
 */
export function pictureBox(view, screen, picture) {
  const fit = Math.min((screen.width - 2 * MARGIN) / picture.width, (screen.height - 2 * MARGIN) / picture.height);
  const scale = Math.max(fit, 1e-3) * view.zoom;
  const [width, height] = [picture.width * scale, picture.height * scale];
  return { left: screen.width / 2 - view.x * width, top: screen.height / 2 - view.y * height, width, height };
}

/**
 * Return the fractions of the canvas under a point of the screen.
 * @param {Box} box
 * @param {number} x
 * @param {number} y
 * @returns {[number, number]}
 */
export function toFractions(box, x, y) {
  return [(x - box.left) / box.width, (y - box.top) / box.height];
}

/**
 * Return the view after zooming by a factor, with the point under (x, y) staying where it is.
 * @param {View} view
 * @param {number} factor
 * @param {{ x: number, y: number, screen: Size, picture: Size }} at
 * @returns {View}
 */
export function zoomAt(view, factor, { x, y, screen, picture }) {
  const zoom = Math.min(MOST_ZOOM, Math.max(1, view.zoom * factor));
  if (zoom === 1) return WHOLE;
  const [fx, fy] = toFractions(pictureBox(view, screen, picture), x, y);
  const box = pictureBox({ ...view, zoom }, screen, picture);
  return clamp({ zoom, x: fx - (x - screen.width / 2) / box.width, y: fy - (y - screen.height / 2) / box.height });
}

/**
 * Return the view after moving the picture by some pixels of the screen.
 * @param {View} view
 * @param {Box} box
 * @param {number} dx
 * @param {number} dy
 * @returns {View}
 */
export function panBy(view, box, dx, dy) {
  return view.zoom === 1 ? view : clamp({ ...view, x: view.x - dx / box.width, y: view.y - dy / box.height });
}

/**
 * @param {View} view
 * @returns {View}
 */
function clamp(view) {
  return { ...view, x: Math.min(1, Math.max(0, view.x)), y: Math.min(1, Math.max(0, view.y)) };
}
