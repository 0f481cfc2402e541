// The document of a mask edit, version 1: reading, writing, and which shape a layer has at a frame. No page is touched.
// docs/mask-document.md says what every field means; engine/contract/mask_document.py reads the same, and is the one that is
// strict: here a document is checked so far that it can be shown. Documents are never changed in place.

export const VERSION = 1;

/** @typedef {"stroke" | "rect" | "ellipse" | "polygon" | "raster"} LayerKind */
/** @typedef {[number, number] | [number, number, number]} Point x, y as fractions of the canvas, pressure 0..1 */
/** @typedef {{ width: number, height: number, frames: number }} Canvas pixels and pixel frames */
/** @typedef {{ frame: number, points?: Point[], offset?: [number, number], scale?: number }} Key */
/**
 * @typedef {object} Layer
 * @property {string} id
 * @property {LayerKind} kind
 * @property {"paint" | "erase"} mode
 * @property {number} size a stroke's width, pixels of the document's canvas
 * @property {number} softness pixels of the document's canvas
 * @property {number} strength 0..1
 * @property {[number, number]} range pixel frames [from, to)
 * @property {"hold" | "linear"} interpolate
 * @property {Key[]} keys by rising frame
 * @property {boolean} enabled
 * @property {string} name
 * @property {string} file of a raster: its uploaded file
 * @property {string} [group] what layers share that belong together
 */
/** @typedef {{ from: number, to: number, value: number, channel?: number | null }} Range pixel frames [from, to) */
/**
 * @typedef {object} MaskDocument
 * @property {1} version
 * @property {Canvas | null} canvas null: nothing was painted yet
 * @property {Layer[]} layers
 * @property {{ base: number, ranges: Range[] }} video
 * @property {{ base: number, linked: boolean, ranges: Range[] }} audio
 * @property {number} feather pixels of the document's canvas
 */
/**
 * A layer's shape at a frame: its points after keys, offset and scale.
 * @typedef {object} Shape
 * @property {number[]} x pixels of the document's canvas
 * @property {number[]} y
 * @property {number[]} pressure 0..1
 * @property {[number, number]} offset fractions of the canvas
 * @property {number} scale
 */

/** Layers of a document; each stroke is one. */
export const MOST_LAYERS = 1024;
const MOST_SIDE = 8192; // pixels
const MOST_FRAMES = 24 * 120;
const KINDS = ["stroke", "rect", "ellipse", "polygon", "raster"];

/**
 * Return an empty document: everything is kept.
 * @param {Canvas | null} canvas
 * @returns {MaskDocument}
 */
export function emptyDocument(canvas = null) {
  return {
    version: VERSION,
    canvas,
    layers: [],
    video: { base: 0, ranges: [] },
    audio: { base: 0, linked: true, ranges: [] },
    feather: 0,
  };
}

/**
 * Return a point with 5 digits, a hundredth of a pixel: what is painted is what is saved, and a file stays small.
 * @param {number} x fraction of the canvas
 * @param {number} y
 * @param {number} [pressure] 0..1
 * @returns {Point}
 */
export function pointOf(x, y, pressure = 1) {
  return pressure === 1 ? [digits(x), digits(y)] : [digits(x), digits(y), digits(pressure)];
}

/** @param {number} value */
function digits(value) {
  return Math.round(value * 1e5) / 1e5;
}

/**
 * Read a widget's text, with the defaults of what is left out. Unknown fields stay where they are. A text that is no document
 * of this version gives a problem in words and no edit: show it read-only, never write it over. version: the one that it
 * claims, where that is another.
 * @param {string} text empty: an empty document
 * @returns {{ edit: MaskDocument, problem: null } | { edit: null, problem: string, version: number | null }}
 */
export function readDocument(text) {
  if (!text.trim()) return { edit: emptyDocument(), problem: null };
  let data;
  try {
    data = JSON.parse(text);
  } catch {
    return { edit: null, problem: "The text of this node is not JSON.", version: null };
  }
  try {
    return { edit: filled(data), problem: null };
  } catch (error) {
    const version = Number.isInteger(data?.version) && data.version !== VERSION ? data.version : null;
    return { edit: null, problem: error instanceof Error ? error.message : String(error), version };
  }
}

/**
 * Return the widget's text of a document: JSON on one line.
 * @param {MaskDocument} edit
 * @returns {string}
 */
export function writeDocument(edit) {
  return JSON.stringify(edit);
}

/**
 * @param {any} data
 * @returns {MaskDocument}
 */
function filled(data) {
  must(isObject(data), "The edit is not a JSON object.");
  must(data.version === VERSION, `The edit has version ${data.version}, this editor knows version ${VERSION}.`);
  const { canvas = null, layers = [], video = {}, audio = {} } = data;
  if (canvas) must(isSize(canvas), "The canvas is not of a size that can be edited.");
  must(Array.isArray(layers) && isObject(video) && isObject(audio), "Layers or lanes are not what they should be.");
  must(layers.length <= MOST_LAYERS, `The edit has ${layers.length} layers; ${MOST_LAYERS} are the most.`);
  must(canvas || !layers.length, "There are layers without a canvas.");
  return {
    ...emptyDocument(canvas),
    ...data,
    layers: layers.map((/** @type {any} */ layer) => filledLayer(layer, canvas?.frames ?? 0)),
    video: { base: 0, ...video, ranges: ranges(video) },
    audio: { base: 0, linked: true, ...audio, ranges: ranges(audio) },
  };
}

/**
 * @param {any} layer
 * @param {number} frames
 * @returns {Layer}
 */
function filledLayer(layer, frames) {
  must(isObject(layer) && KINDS.includes(layer.kind), `There is a layer of an unknown kind: ${layer?.kind}.`);
  const found = { ...DEFAULTS, range: [0, frames], keys: [], ...layer };
  const name = found.name || found.id;
  must(isNumbers(found.range, 2), `The layer ${name} has no range of frames.`);
  must(Array.isArray(found.keys) && found.keys.every(isKey), `The layer ${name} has a broken key.`);
  must(found.kind === "raster" || found.keys[0]?.points?.length, `The layer ${name} has no points.`);
  return found;
}

const DEFAULTS = {
  mode: "paint",
  size: 64,
  softness: 0,
  strength: 1,
  interpolate: "hold",
  enabled: true,
  name: "",
  file: "",
};

/**
 * @param {any} lane
 * @returns {Range[]}
 */
function ranges(lane) {
  const found = lane.ranges ?? [];
  const good = Array.isArray(found) && found.every((run) => isObject(run) && isNumbers([run.from, run.to, run.value], 3));
  must(good, "A lane has a broken range.");
  return found;
}

/** @param {any} key */
function isKey(key) {
  if (!isObject(key) || !isNumbers([key.frame, key.scale ?? 1, ...(key.offset ?? [0, 0])], 4)) return false;
  const points = key.points ?? [];
  return Array.isArray(points) && points.every((point) => isNumbers(point, 2) || isNumbers(point, 3));
}

/**
 * @param {any} values
 * @param {number} count
 */
function isNumbers(values, count) {
  return Array.isArray(values) && values.length === count && values.every(Number.isFinite);
}

/** @param {any} canvas */
function isSize({ width, height, frames }) {
  const whole = [width, height, frames].every((value) => Number.isInteger(value) && value > 0);
  return whole && Math.max(width, height) <= MOST_SIDE && frames <= MOST_FRAMES;
}

/** @param {any} value */
function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/**
 * @param {any} good
 * @param {string} problem
 */
function must(good, problem) {
  if (!good) throw new Error(problem);
}

/**
 * Return whether a layer acts at a frame.
 * @param {Layer} layer
 * @param {number} frame
 */
export function isActive(layer, frame) {
  return layer.enabled && layer.range[0] <= frame && frame < layer.range[1];
}

/**
 * Return the key that holds at a frame, by number, plus how far the shape is on its way to the next one (0 to below 1): the
 * same for two frames exactly when the layer's shape is.
 * @param {Layer} layer
 * @param {number} frame
 * @returns {number}
 */
export function stateAt(layer, frame) {
  const at = layer.keys.findLastIndex((key) => key.frame <= frame);
  if (layer.interpolate === "hold" || at < 0 || at + 1 === layer.keys.length) return Math.max(at, 0);
  const first = layer.keys[at].frame;
  return at + (frame - first) / (layer.keys[at + 1].frame - first);
}

/**
 * Return a layer's shape at a frame.
 * @param {Layer} layer
 * @param {number} frame
 * @param {Canvas} canvas the document's
 * @returns {Shape}
 */
export function shapeAt(layer, frame, canvas) {
  const at = Math.floor(stateAt(layer, frame));
  const a = layer.keys[at] ?? { frame: 0 };
  const b = layer.keys[at + 1] ?? a;
  const u = shareAt(layer, frame, at);
  /** @param {number} first @param {number} second */
  const between = (first, second) => first + (second - first) * u;
  const [ax, ay] = a.offset ?? [0, 0];
  const [bx, by] = b.offset ?? [0, 0];
  /** @type {[number, number]} */
  const offset = [between(ax, bx), between(ay, by)];
  const scale = between(a.scale ?? 1, b.scale ?? 1);
  const points = drawnAt(layer, frame);
  /** @param {0 | 1} axis @param {number} length */
  const placed = (axis, length) => {
    const values = points.map((point) => point[axis]);
    const middle = middleOf(values);
    return values.map((value) => (middle + (value - middle) * scale + offset[axis]) * length);
  };
  return {
    x: placed(0, canvas.width),
    y: placed(1, canvas.height),
    pressure: points.map((point) => point[2] ?? 1),
    offset,
    scale,
  };
}

/**
 * Return a layer's points at a frame, on their way from one key's to the next one's, before offset and scale: what a key that
 * is put there must hold so that the shape stays as it is.
 * @param {Layer} layer
 * @param {number} frame
 * @returns {Point[]}
 */
export function drawnAt(layer, frame) {
  const at = Math.floor(stateAt(layer, frame));
  const u = shareAt(layer, frame, at);
  const points = pointsOf(layer, at);
  const next = pointsOf(layer, at + 1);
  if (!u || next === points || next.length !== points.length) return points;
  return points.map((point, i) => {
    const [x, y, pressure] = [0, 1, 2].map((axis) => {
      const [first, second] = [point[axis] ?? 1, next[i][axis] ?? 1];
      return first + (second - first) * u;
    });
    return [x, y, pressure];
  });
}

/**
 * Return how far a shape is on its way from key number `at` to the next one, 0 to below 1.
 * @param {Layer} layer
 * @param {number} frame
 * @param {number} at
 */
function shareAt({ keys, interpolate }, frame, at) {
  const moving = interpolate === "linear" && at + 1 < keys.length && frame > keys[at].frame;
  return moving ? (frame - keys[at].frame) / (keys[at + 1].frame - keys[at].frame) : 0;
}

/**
 * Return a key's points: its own, else those of the last key before that has some.
 * @param {Layer} layer
 * @param {number} at
 * @returns {Point[]}
 */
function pointsOf(layer, at) {
  for (let i = at; i >= 0; i--) {
    const points = layer.keys[i]?.points;
    if (points) return points;
  }
  return [];
}

/** @param {number[]} values */
export function middleOf(values) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  return (low + high) / 2;
}

/**
 * Return `count` points along a path, evenly spaced, so that keys of one layer can be interpolated point by point. The first
 * point stays; of an open path the last one too.
 * @param {Point[]} points
 * @param {number} count at least 1
 * @param {{ closed: boolean, canvas: Canvas }} options closed: of a polygon
 * @returns {Point[]}
 */
export function resample(points, count, { closed, canvas }) {
  const path = closed ? [...points, points[0]] : points;
  const lengths = path.slice(1).map(([x, y], i) => {
    const [dx, dy] = [(x - path[i][0]) * canvas.width, (y - path[i][1]) * canvas.height];
    return Math.sqrt(dx * dx + dy * dy);
  });
  const total = lengths.reduce((sum, length) => sum + length, 0);
  let piece = 0;
  let passed = 0;
  return Array.from({ length: count }, (_, i) => {
    const goal = (total * i) / (closed ? count : Math.max(count - 1, 1));
    while (piece < lengths.length - 1 && passed + lengths[piece] < goal) passed += lengths[piece++];
    const [from, to] = [path[piece], path[piece + 1] ?? path[piece]];
    const u = lengths[piece] ? Math.min((goal - passed) / lengths[piece], 1) : 0;
    /** @param {number} a @param {number} b */
    const between = (a, b) => a + (b - a) * u;
    return pointOf(between(from[0], to[0]), between(from[1], to[1]), between(from[2] ?? 1, to[2] ?? 1));
  });
}
