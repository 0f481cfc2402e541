// Draws the picture of the editor: the frame, onion skin, the cells that will be regenerated, the grid, outlines and cursor.
// The cells are those that cells.js computes, one square each; what is shaded is what runs.

import { CELL } from "./grid.js";

/** @typedef {import("./viewport.js").Box} Box */
/** @typedef {import("./document.js").Layer} Layer */
/** @typedef {import("./document.js").Shape} Shape */
/** @typedef {import("./document.js").Canvas} Canvas */
/** @typedef {CanvasRenderingContext2D} Context */

const RED = [255, 64, 96];
const VIOLET = [150, 90, 255];
const HATCH = 7;
const MIN_TOKEN_PIXELS = 5;
const NEAR = 10;
const GHOST = 0.3;

/** @type {HTMLCanvasElement | null} */
let scratch = null;
/** @type {HTMLCanvasElement | null} */
let ghost = null;
/** @type {HTMLCanvasElement | null} */
let stripes = null;
/** @type {HTMLCanvasElement | null} */
let counterStripes = null;

/**
 * Draw a picture so that it covers the box, cut as the engine cuts a clip: in the middle.
 * @param {Context} context
 * @param {ImageBitmap | HTMLCanvasElement} picture
 * @param {Box} box
 * @param {number} [alpha]
 */
export function drawPicture(context, picture, box, alpha = 1) {
  const ratio = box.width / box.height;
  const width = Math.min(picture.width, picture.height * ratio);
  const height = Math.min(picture.height, picture.width / ratio);
  const [x, y] = [(picture.width - width) / 2, (picture.height - height) / 2];
  context.globalAlpha = alpha;
  context.drawImage(picture, x, y, width, height, box.left, box.top, box.width, box.height);
  context.globalAlpha = 1;
}

/**
 * Draw another picture faintly over the one that is there; what differs is tinted, the rest stays as it is.
 * @param {Context} context
 * @param {{ now: ImageBitmap, other: ImageBitmap, colour: string }} pictures
 * @param {Box} box
 */
export function drawGhost(context, { now, other, colour }, box) {
  ghost ??= document.createElement("canvas");
  [ghost.width, ghost.height] = [now.width, now.height];
  const pen = /** @type {Context} */ (ghost.getContext("2d"));
  const whole = { left: 0, top: 0, width: now.width, height: now.height };
  drawPicture(pen, now, whole);
  pen.globalCompositeOperation = "difference";
  drawPicture(pen, other, whole);
  pen.globalCompositeOperation = "multiply";
  pen.fillStyle = colour;
  pen.fillRect(0, 0, now.width, now.height);
  pen.globalCompositeOperation = "source-over";
  drawPicture(context, other, box, GHOST);
  context.globalCompositeOperation = "screen";
  drawPicture(context, ghost, box);
  context.globalCompositeOperation = "source-over";
}

/**
 * Fill the box where there is no frame.
 * @param {Context} context
 * @param {Box} box
 * @param {string} text
 */
export function drawEmpty(context, box, text) {
  context.fillStyle = "#2b2d33";
  context.fillRect(box.left, box.top, box.width, box.height);
  if (!text) return;
  context.fillStyle = "#c9ccd4";
  context.font = "13px sans-serif";
  context.textAlign = "center";
  context.fillText(text, box.left + box.width / 2, box.top + box.height / 2, Math.max(40, box.width - 16));
}

/**
 * Shade cells by their strength, in colour and in stripes.
 * @param {Context} context
 * @param {Float32Array} cells rows x columns, 0..1
 * @param {number} columns
 * @param {Box} box
 * @param {{ carried?: boolean }} [how] carried: of the mask that the latent came with, in another colour and other stripes
 */
export function drawCells(context, cells, columns, box, { carried = false } = {}) {
  const rows = cells.length / columns;
  scratch ??= document.createElement("canvas");
  if (scratch.width !== columns || scratch.height !== rows) [scratch.width, scratch.height] = [columns, rows];
  const small = /** @type {Context} */ (scratch.getContext("2d", { willReadFrequently: true }));
  const image = small.createImageData(columns, rows);
  let any = false;
  for (let i = 0; i < cells.length; i++) {
    if (!cells[i]) continue;
    any = true;
    image.data.set([...(carried ? VIOLET : RED), 30 + 90 * cells[i]], 4 * i);
  }
  if (!any) return;
  small.putImageData(image, 0, 0);
  context.imageSmoothingEnabled = false;
  context.drawImage(scratch, box.left, box.top, box.width, box.height);
  context.imageSmoothingEnabled = true;
  context.save();
  context.clip(cellPath(cells, columns, box));
  context.fillStyle = context.createPattern(carried ? (counterStripes ??= hatch(true)) : (stripes ??= hatch(false)), "repeat") ?? "transparent";
  context.fillRect(box.left, box.top, box.width, box.height);
  context.restore();
}

/**
 * Return the outline of the cells above 0 as a path of squares, runs of a row joined.
 * @param {Float32Array} cells
 * @param {number} columns
 * @param {Box} box
 */
function cellPath(cells, columns, box) {
  const path = new Path2D();
  const rows = cells.length / columns;
  const [w, h] = [box.width / columns, box.height / rows];
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      const first = column;
      while (column < columns && cells[row * columns + column] > 0) column++;
      if (column > first) path.rect(box.left + first * w, box.top + row * h, (column - first) * w, h);
    }
  }
  return path;
}

/** @param {boolean} falling */
function hatch(falling) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = HATCH;
  const pen = /** @type {Context} */ (tile.getContext("2d"));
  pen.strokeStyle = "rgba(255,255,255,0.45)";
  pen.beginPath();
  for (const shift of [-HATCH, 0, HATCH]) {
    pen.moveTo(shift, falling ? 0 : HATCH);
    pen.lineTo(shift + HATCH, falling ? HATCH : 0);
  }
  pen.stroke();
  return tile;
}

/**
 * Draw the border between the cells above 0 and the others.
 * @param {Context} context
 * @param {Float32Array} cells
 * @param {number} columns
 * @param {Box} box
 */
export function drawEdges(context, cells, columns, box) {
  const rows = cells.length / columns;
  const [w, h] = [box.width / columns, box.height / rows];
  /** @param {number} row @param {number} column */
  const on = (row, column) =>
    row >= 0 && column >= 0 && row < rows && column < columns && cells[row * columns + column] > 0;
  context.beginPath();
  for (let row = 0; row <= rows; row++) {
    for (let column = 0; column <= columns; column++) {
      const [x, y] = [box.left + column * w, box.top + row * h];
      if (on(row, column) !== on(row - 1, column)) line(context, x, y, x + w, y);
      if (on(row, column) !== on(row, column - 1)) line(context, x, y, x, y + h);
    }
  }
  twoTone(context, 1);
}

/**
 * Draw the grid of the model's rows, 32 pixels a square, and the border of the canvas.
 * @param {Context} context
 * @param {{ width: number, height: number }} size pixels of the latent's canvas
 * @param {Box} box
 */
export function drawGrid(context, size, box) {
  const [columns, rows] = [size.width / (2 * CELL), size.height / (2 * CELL)];
  const [w, h] = [box.width / columns, box.height / rows];
  context.beginPath();
  if (Math.min(w, h) >= MIN_TOKEN_PIXELS) {
    for (let i = 1; i < columns; i++) line(context, box.left + i * w, box.top, box.left + i * w, box.top + box.height);
    for (let i = 1; i < rows; i++) line(context, box.left, box.top + i * h, box.left + box.width, box.top + i * h);
  }
  context.lineWidth = 1;
  context.strokeStyle = "rgba(160,170,190,0.28)";
  context.stroke();
  context.strokeStyle = "rgba(160,170,190,0.8)";
  context.strokeRect(box.left, box.top, box.width, box.height);
}

/**
 * Draw a layer's shape.
 * @param {Context} context
 * @param {Layer} layer
 * @param {Shape} shape in pixels of the document's canvas
 * @param {{ box: Box, canvas: Canvas, selected: boolean, fill: boolean }} how
 */
export function drawShape(context, layer, shape, { box, canvas, selected, fill }) {
  const scale = box.width / canvas.width;
  const path = shapePath(layer, shape, box, canvas);
  context.lineJoin = context.lineCap = "round";
  if (layer.kind === "stroke") {
    const width = Math.max(1, layer.size * shape.scale * scale);
    if (fill) {
      context.lineWidth = width;
      context.strokeStyle = paintOf(layer);
      context.stroke(path);
    }
    context.lineWidth = 1.5;
  } else if (fill) {
    context.fillStyle = paintOf(layer);
    context.fill(path);
  }
  if (!selected && !fill) return;
  context.setLineDash(selected ? [6, 4] : [2, 3]);
  twoTone(context, selected ? 1.5 : 1, path);
  context.setLineDash([]);
}

/**
 * Return whether a layer's shape is under a place of the canvas, within some pixels of a thin one.
 * @param {Context} context
 * @param {Layer} layer
 * @param {Shape} shape in pixels of the document's canvas
 * @param {{ box: Box, canvas: Canvas, at: [number, number] }} where
 */
export function hitsShape(context, layer, shape, { box, canvas, at }) {
  const path = shapePath(layer, shape, box, canvas);
  context.save();
  context.setTransform(1, 0, 0, 1, 0, 0);
  const stroke = layer.kind === "stroke" ? layer.size * shape.scale * (box.width / canvas.width) : 0;
  context.lineWidth = Math.max(NEAR, stroke);
  context.lineJoin = context.lineCap = "round";
  const hit = context.isPointInStroke(path, ...at) || (layer.kind !== "stroke" && context.isPointInPath(path, ...at));
  context.restore();
  return hit;
}

/** @param {Layer} layer */
function paintOf(layer) {
  const alpha = 0.15 + 0.35 * layer.strength;
  return layer.mode === "paint" ? `rgba(${RED},${alpha})` : `rgba(80,150,255,${alpha})`;
}

/**
 * @param {Layer} layer
 * @param {Shape} shape
 * @param {Box} box
 * @param {Canvas} canvas
 */
function shapePath(layer, shape, box, canvas) {
  const path = new Path2D();
  const xs = shape.x.map((x) => box.left + (x / canvas.width) * box.width);
  const ys = shape.y.map((y) => box.top + (y / canvas.height) * box.height);
  const [left, top, right, bottom] = [Math.min(...xs), Math.min(...ys), Math.max(...xs), Math.max(...ys)];
  if (layer.kind === "rect") path.rect(left, top, right - left, bottom - top);
  else if (layer.kind === "ellipse") {
    path.ellipse((left + right) / 2, (top + bottom) / 2, (right - left) / 2, (bottom - top) / 2, 0, 0, 2 * Math.PI);
  } else {
    xs.forEach((x, i) => (i ? path.lineTo(x, ys[i]) : path.moveTo(x, ys[i])));
    if (layer.kind === "polygon") path.closePath();
    else if (xs.length === 1) path.lineTo(xs[0] + 0.1, ys[0]);
  }
  return path;
}

/**
 * Draw the circle of the brush.
 * @param {Context} context
 * @param {number} x
 * @param {number} y
 * @param {{ radius: number, softness: number }} brush pixels of the screen
 */
export function drawCursor(context, x, y, { radius, softness }) {
  circle(context, x, y, radius);
  twoTone(context, 1);
  if (softness < 1) return;
  circle(context, x, y, radius + softness);
  context.setLineDash([3, 3]);
  twoTone(context, 1);
  context.setLineDash([]);
}

/**
 * Write a word that can be read on anything.
 * @param {Context} context
 * @param {string} text
 * @param {number} x
 * @param {number} y
 * @param {CanvasTextAlign} align
 */
export function drawLabel(context, text, x, y, align) {
  context.font = "11px sans-serif";
  context.textAlign = align;
  context.lineJoin = "round";
  context.lineWidth = 3;
  context.strokeStyle = "rgba(0,0,0,0.7)";
  context.strokeText(text, x, y);
  context.fillStyle = "#fff";
  context.fillText(text, x, y);
}

/**
 * Draw what a line is dragged by.
 * @param {Context} context
 * @param {{ x: number, y: number, radius: number }} where
 */
export function drawKnob(context, { x, y, radius }) {
  circle(context, x, y, radius);
  context.fillStyle = "#ffd65a";
  context.fill();
  context.fillStyle = "#222";
  for (const side of [-1, 1]) {
    context.beginPath();
    for (const [dx, dy] of [[0.7, 0], [0.25, -0.4], [0.25, 0.4]]) context.lineTo(x + side * dx * radius, y + dy * radius);
    context.fill();
  }
}

/** @param {Context} context @param {number} x @param {number} y @param {number} radius */
function circle(context, x, y, radius) {
  context.beginPath();
  context.arc(x, y, Math.max(0.5, radius), 0, 2 * Math.PI);
}

/** @param {Context} context @param {number} x0 @param {number} y0 @param {number} x1 @param {number} y1 */
function line(context, x0, y0, x1, y1) {
  context.moveTo(x0, y0);
  context.lineTo(x1, y1);
}

/**
 * Stroke in black and white, to be seen on any picture.
 * @param {Context} context
 * @param {number} width
 * @param {Path2D} [path]
 */
function twoTone(context, width, path) {
  for (const [style, wide] of /** @type {[string, number][]} */ ([["rgba(0,0,0,0.75)", width + 2], ["#fff", width]])) {
    context.strokeStyle = style;
    context.lineWidth = wide;
    if (path) context.stroke(path);
    else context.stroke();
  }
}
