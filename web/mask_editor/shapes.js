// Values of a mask document's layers at sample points, as engine/contract/mask_shapes.py computes them (formulae in
// docs/mask-document.md). Pixels are those of the document's canvas. No page is touched.

/** @typedef {import("./document.js").Layer} Layer */
/** @typedef {import("./document.js").Shape} Shape */
/** @typedef {import("./document.js").Canvas} Canvas */
/** @typedef {import("./cells.js").Raster} Raster */
/** @typedef {{ top: number, bottom: number, left: number, right: number }} Window samples, ends excluded */

/** Samples of a cell's side. */
export const SAMPLES = 4;
/** Width of the edge of a shape without softness, pixels: what is continuous comes out the same in two languages. */
const SHARPEST = 1e-6;

/** The samples of a latent's canvas, in pixels of the document's canvas. */
export class SampleGrid {
  /**
   * @param {Canvas} canvas the document's
   * @param {number} columns samples
   * @param {number} rows
   */
  constructor(canvas, columns, rows) {
    this.canvas = canvas;
    this.columns = columns;
    this.rows = rows;
    this.stepX = canvas.width / columns;
    this.stepY = canvas.height / rows;
    /** Half the diagonal of a sample's square. */
    this.reach = Math.sqrt((this.stepX / 2) ** 2 + (this.stepY / 2) ** 2);
  }

  /** @param {number} column */
  x(column) {
    return ((column + 0.5) / this.columns) * this.canvas.width;
  }

  /** @param {number} row */
  y(row) {
    return ((row + 0.5) / this.rows) * this.canvas.height;
  }
}

/**
 * Combine a layer with what lies below it: paint by maximum, erase by multiplication with 1 - value.
 * @param {Float32Array} samples rows x columns of the grid, changed in place
 * @param {Layer} layer
 * @param {Shape} shape the layer's at this frame
 * @param {SampleGrid} grid
 * @param {{ feather: number, raster?: Raster, shown?: number }} options shown: frame of the raster
 */
export function combine(samples, layer, shape, grid, { feather, raster, shown = 0 }) {
  const edge = Math.max(layer.softness + feather, SHARPEST);
  const window = layer.kind === "raster" ? everything(grid) : windowOf(layer, shape, grid, edge);
  const width = window.right - window.left;
  const values = new Float32Array(width * (window.bottom - window.top));
  if (layer.kind === "raster") drawRaster(values, raster, shown, shape, grid);
  else if (layer.kind === "stroke") drawLines(values, window, grid, edge, strokeLines(layer, shape, grid));
  else if (layer.kind === "polygon") {
    fillPolygon(values, window, grid, shape);
    drawLines(values, window, grid, edge, polygonLines(shape));
  } else drawBox(values, window, grid, edge, shape, layer.kind === "ellipse");
  const strength = Math.fround(layer.strength);
  for (let row = window.top, i = 0; row < window.bottom; row++) {
    for (let at = row * grid.columns + window.left, end = at + width; at < end; at++, i++) {
      const value = Math.fround(values[i] * strength);
      if (layer.mode === "erase") samples[at] *= 1 - value;
      else if (value > samples[at]) samples[at] = value;
    }
  }
}

/**
 * @param {SampleGrid} grid
 * @returns {Window}
 */
function everything(grid) {
  return { top: 0, bottom: grid.rows, left: 0, right: grid.columns };
}

/**
 * Return the samples at which a drawn layer can be above 0.
 * @param {Layer} layer
 * @param {Shape} shape
 * @param {SampleGrid} grid
 * @param {number} edge
 * @returns {Window}
 */
function windowOf(layer, shape, grid, edge) {
  const pressure = shape.pressure.reduce((most, value) => Math.max(most, value), 0);
  const radius = layer.kind === "stroke" ? (layer.size / 2) * shape.scale * pressure : 0;
  const spread = edge + Math.max(radius, grid.reach);
  const [left, right] = span(...extent(shape.x, spread), grid.stepX, 0, grid.columns);
  const [top, bottom] = span(...extent(shape.y, spread), grid.stepY, 0, grid.rows);
  return { top, bottom, left, right };
}

/**
 * @param {number[]} values
 * @param {number} spread
 * @returns {[number, number]}
 */
function extent(values, spread) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [low - spread, high + spread];
}

/**
 * Return the samples [first, end) within [start, stop) whose middle may lie in [low, high].
 * @param {number} low
 * @param {number} high
 * @param {number} step
 * @param {number} start
 * @param {number} stop
 * @returns {[number, number]}
 */
function span(low, high, step, start, stop) {
  const first = Math.min(Math.max(Math.floor(low / step - 0.5), start), stop);
  return [first, Math.max(Math.min(Math.ceil(high / step + 0.5), stop), first)];
}

/** @typedef {{ x0: number, y0: number, r0: number, x1: number, y1: number, r1: number }} Line */

/**
 * @param {Layer} layer
 * @param {Shape} shape
 * @param {SampleGrid} grid
 * @returns {Line[]}
 */
function strokeLines(layer, { x, y, pressure, scale }, grid) {
  const radius = pressure.map((value) => Math.max((layer.size / 2) * scale * value, grid.reach));
  const starts = x.length > 1 ? x.slice(0, -1) : x;
  return starts.map((x0, i) => {
    const j = Math.min(i + 1, x.length - 1);
    return { x0, y0: y[i], r0: radius[i], x1: x[j], y1: y[j], r1: radius[j] };
  });
}

/**
 * @param {Shape} shape
 * @returns {Line[]}
 */
function polygonLines({ x, y }) {
  return x.map((x0, i) => {
    const j = (i + 1) % x.length;
    return { x0, y0: y[i], r0: 0, x1: x[j], y1: y[j], r1: 0 };
  });
}

/**
 * Raise values to those of lines: 1 within their radius, falling to 0 over the edge. Of each row only the run near the line is
 * looked at.
 * @param {Float32Array} values of the window
 * @param {Window} window
 * @param {SampleGrid} grid
 * @param {number} edge
 * @param {Line[]} lines
 */
function drawLines(values, window, grid, edge, lines) {
  const width = window.right - window.left;
  for (const { x0, y0, r0, x1, y1, r1 } of lines) {
    const [dx, dy, growth] = [x1 - x0, y1 - y0, r1 - r0];
    const length = dx * dx + dy * dy;
    const spread = Math.max(r0, r1) + edge;
    const low = Math.min(y0, y1) - spread;
    const [top, bottom] = span(low, Math.max(y0, y1) + spread, grid.stepY, window.top, window.bottom);
    for (let row = top; row < bottom; row++) {
      const py = grid.y(row) - y0;
      const u0 = dy === 0 ? 0 : clamp((py - spread) / dy);
      const u1 = dy === 0 ? 1 : clamp((py + spread) / dy);
      const [xa, xb] = [x0 + u0 * dx, x0 + u1 * dx];
      const from = Math.min(xa, xb) - spread;
      const [left, right] = span(from, Math.max(xa, xb) + spread, grid.stepX, window.left, window.right);
      const base = (row - window.top) * width - window.left;
      for (let column = left; column < right; column++) {
        if (values[base + column] >= 1) continue;
        const px = grid.x(column) - x0;
        const u = clamp((px * dx + py * dy) / (length > 0 ? length : 1));
        const [qx, qy] = [px - u * dx, py - u * dy];
        const away = Math.sqrt(qx * qx + qy * qy) - (r0 + growth * u);
        const value = 1 - Math.max(away, 0) / edge;
        if (value > values[base + column]) values[base + column] = value;
      }
    }
  }
}

/** @param {number} value */
function clamp(value) {
  return Math.min(Math.max(value, 0), 1);
}

/**
 * Set values within a polygon to 1, by non-zero winding: a sample has crossed the lines left of it.
 * @param {Float32Array} values of the window
 * @param {Window} window
 * @param {SampleGrid} grid
 * @param {Shape} shape
 */
function fillPolygon(values, window, grid, { x, y }) {
  const width = window.right - window.left;
  const turns = new Int32Array((width + 1) * (window.bottom - window.top));
  for (let i = 0; i < x.length; i++) {
    const j = (i + 1) % x.length;
    const low = Math.min(y[i], y[j]);
    const high = Math.max(y[i], y[j]);
    const [top, bottom] = span(low, high, grid.stepY, window.top, window.bottom);
    for (let row = top; row < bottom; row++) {
      const at = grid.y(row);
      if (at < low || at >= high) continue;
      const crossing = x[i] + ((at - y[i]) / (y[j] - y[i])) * (x[j] - x[i]);
      const column = Math.floor(crossing / grid.stepX - 0.5) + 1;
      const place = Math.min(Math.max(column, window.left), window.right) - window.left;
      turns[(row - window.top) * (width + 1) + place] += y[j] > y[i] ? 1 : -1;
    }
  }
  for (let row = 0; row < window.bottom - window.top; row++) {
    for (let column = 0, winding = 0; column < width; column++) {
      winding += turns[row * (width + 1) + column];
      if (winding) values[row * width + column] = 1;
    }
  }
}

/**
 * Draw a rect or an ellipse in the box of two corners.
 * @param {Float32Array} values of the window
 * @param {Window} window
 * @param {SampleGrid} grid
 * @param {number} edge
 * @param {Shape} shape
 * @param {boolean} round an ellipse
 */
function drawBox(values, window, grid, edge, { x, y }, round) {
  const a = Math.max(Math.abs(x[0] - x[1]) / 2, grid.reach);
  const b = Math.max(Math.abs(y[0] - y[1]) / 2, grid.reach);
  const [middleX, middleY] = [(x[0] + x[1]) / 2, (y[0] + y[1]) / 2];
  for (let row = window.top, i = 0; row < window.bottom; row++) {
    const dy = grid.y(row) - middleY;
    for (let column = window.left; column < window.right; column++, i++) {
      const dx = grid.x(column) - middleX;
      const px = Math.max(Math.abs(dx) - a, 0);
      const py = Math.max(Math.abs(dy) - b, 0);
      let away = Math.sqrt(px * px + py * py);
      if (round) {
        const k = Math.sqrt((dx / a) ** 2 + (dy / b) ** 2);
        const slope = Math.sqrt((dx / a / a) ** 2 + (dy / b / b) ** 2);
        away = k > 1 ? Math.max(away, (k * (k - 1)) / slope) : 0;
      }
      values[i] = Math.max(1 - away / edge, 0);
    }
  }
}

/**
 * Draw a raster: the largest pixel under each sample's square, 0 beside it.
 * @param {Float32Array} values of the whole grid
 * @param {Raster | undefined} raster
 * @param {number} shown its frame
 * @param {Shape} shape
 * @param {SampleGrid} grid
 */
function drawRaster(values, raster, shown, { offset, scale }, grid) {
  if (!raster) return;
  const { width, height, data } = raster;
  const share = data instanceof Float32Array ? 1 : 255;
  const columns = pixels(grid.columns, offset[0], scale, width);
  const rows = pixels(grid.rows, offset[1], scale, height);
  for (let row = 0, i = 0; row < grid.rows; row++) {
    for (let column = 0; column < grid.columns; column++, i++) {
      let largest = 0;
      for (let py = rows[2 * row]; py < rows[2 * row + 1]; py++) {
        const line = (shown * height + py) * width;
        for (let px = columns[2 * column]; px < columns[2 * column + 1]; px++) {
          if (data[line + px] > largest) largest = data[line + px];
        }
      }
      values[i] = largest / share;
    }
  }
}

/**
 * Return the pixels [first, end) of one axis under each sample's square, pairs one after the other.
 * @param {number} samples
 * @param {number} offset
 * @param {number} scale
 * @param {number} length
 * @returns {Int32Array}
 */
function pixels(samples, offset, scale, length) {
  /** @param {number} edge */
  const back = (edge) => (0.5 + (edge / samples - 0.5 - offset) / scale) * length;
  const found = new Int32Array(2 * samples);
  for (let i = 0; i < samples; i++) {
    const first = Math.floor(back(i) + 1e-6);
    const end = Math.max(Math.ceil(back(i + 1) - 1e-6), first + 1);
    found[2 * i] = Math.min(Math.max(first, 0), length);
    found[2 * i + 1] = Math.min(Math.max(end, found[2 * i]), length);
  }
  return found;
}
