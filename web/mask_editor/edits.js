// What each control does to a document: pure functions that put new objects in place of those that they change, so that what
// was computed for the others stays valid. Fields that we do not know go along.

import { drawnAt, pointOf, shapeAt } from "./document.js";
import { audioCount, AUDIO_STEP, FPS, tokenCount, tokenOfFrame, tokenStart } from "./grid.js";

/** @typedef {import("./document.js").MaskDocument} MaskDocument */
/** @typedef {import("./document.js").Layer} Layer */
/** @typedef {import("./document.js").Key} Key */
/** @typedef {import("./document.js").Canvas} Canvas */
/** @typedef {import("./document.js").Range} Range */
/** @typedef {"video" | "audio"} Lane */
/** @typedef {"keep-start" | "redo-end" | "only-sound" | "only-picture" | "box"} Preset */

/**
 * Return a name that no layer has.
 * @param {MaskDocument} document
 * @param {string} kind
 */
export function freeId(document, kind) {
  const taken = new Set(document.layers.map((layer) => layer.id));
  let number = document.layers.length + 1;
  while (taken.has(`${kind}-${number}`)) number++;
  return `${kind}-${number}`;
}

/**
 * @param {MaskDocument} document
 * @param {Layer} layer goes on top
 * @returns {MaskDocument}
 */
export function addLayer(document, layer) {
  return { ...document, layers: [...document.layers, layer] };
}

/**
 * @param {MaskDocument} document
 * @param {string} id
 * @param {(layer: Layer) => Layer} change
 * @returns {MaskDocument}
 */
export function changeLayer(document, id, change) {
  return { ...document, layers: document.layers.map((layer) => (layer.id === id ? change(layer) : layer)) };
}

/**
 * Return the layer with a key at its frame, in place of one that is there. The first key always has points, and one without
 * points of its own between two keys whose points differ takes those on the way, so that the shape stays as it is.
 * @param {Layer} layer
 * @param {Key} key
 * @returns {Layer}
 */
export function putKey(layer, key) {
  const first = layer.keys[0];
  const there = layer.keys.find((old) => old.frame === key.frame);
  let put = there ? { ...there, ...key } : key;
  if (first?.points && !put.points && key.frame < first.frame) put = { ...put, points: first.points };
  const drawn = drawnAt(layer, key.frame);
  const onTheWay = !layer.keys.some((old) => old.points === drawn);
  if (drawn.length && onTheWay && !put.points) put = { ...put, points: drawn.map(([x, y, pressure]) => pointOf(x, y, pressure)) };
  const others = layer.keys.filter((old) => old.frame !== key.frame);
  return { ...layer, keys: [...others, put].sort((a, b) => a.frame - b.frame) };
}

/**
 * Return the layer without its key at a frame; the last one stays, and the shape is handed on.
 * @param {Layer} layer
 * @param {number} frame
 * @returns {Layer}
 */
export function removeKey(layer, frame) {
  const at = layer.keys.findIndex((key) => key.frame === frame);
  if (at < 0 || layer.keys.length < 2) return layer;
  const keys = [...layer.keys];
  const [gone] = keys.splice(at, 1);
  const next = keys[at];
  if (gone?.points && next && !next.points) keys[at] = { ...next, points: gone.points };
  return { ...layer, keys };
}

/**
 * Return the layer with a key at a frame that holds the shape's place there.
 * @param {Layer} layer
 * @param {number} frame
 * @param {Canvas} canvas
 * @returns {Layer}
 */
export function keyHere(layer, frame, canvas) {
  const { offset, scale } = shapeAt(layer, frame, canvas);
  return putKey(layer, { frame, offset: [...offset], scale });
}

/**
 * Move and scale a layer's place at a frame; a key is made there if there is none.
 * @param {Layer} layer
 * @param {number} frame
 * @param {Canvas} canvas
 * @param {{ dx?: number, dy?: number, factor?: number }} by dx, dy: fractions of the canvas
 * @returns {Layer}
 */
export function transformLayer(layer, frame, canvas, { dx = 0, dy = 0, factor = 1 }) {
  const { offset, scale } = shapeAt(layer, frame, canvas);
  const at = layer.keys.length ? frame : layer.range[0];
  return putKey(layer, { frame: at, offset: [offset[0] + dx, offset[1] + dy], scale: Math.max(0.01, scale * factor) });
}

/**
 * Move a layer at all of its keys.
 * @param {Layer} layer
 * @param {{ dx: number, dy: number }} by fractions of the canvas
 * @returns {Layer}
 */
export function moveWhole(layer, { dx, dy }) {
  const keys = layer.keys.length ? layer.keys : [{ frame: layer.range[0] }];
  const moved = (/** @type {Key} */ key) => {
    const [x, y] = key.offset ?? [0, 0];
    return { ...key, offset: /** @type {[number, number]} */ ([x + dx, y + dy]) };
  };
  return { ...layer, keys: keys.map(moved) };
}

/**
 * Return [from, to) brought to whole tokens (video) or whole latents (audio), outward.
 * @param {Lane} lane
 * @param {number} from
 * @param {number} to
 * @param {number} frames
 * @returns {[number, number]}
 */
export function snapSpan(lane, from, to, frames) {
  const low = Math.max(0, Math.min(from, to));
  const high = Math.min(frames, Math.max(from, to));
  if (lane === "video") {
    const start = tokenStart(tokenOfFrame(Math.min(frames - 1, Math.floor(low))));
    const end = tokenStart(tokenOfFrame(Math.max(start, Math.ceil(high) - 1)) + 1);
    return [start, Math.min(frames, end)];
  }
  const first = Math.floor(low / AUDIO_STEP + 1e-6);
  const last = Math.max(first + 1, Math.ceil(high / AUDIO_STEP - 1e-6));
  return [round(first * AUDIO_STEP), last >= audioCount(frames) ? frames : round(last * AUDIO_STEP)];
}

/**
 * Return the boundary of a token (video) or a latent (audio) nearest to a time.
 * @param {Lane} lane
 * @param {number} frame
 * @param {number} frames
 */
export function snapEdge(lane, frame, frames) {
  if (frame >= frames) return frames;
  if (lane === "audio") return Math.min(frames, round(Math.max(0, Math.round(frame / AUDIO_STEP)) * AUDIO_STEP));
  const token = tokenOfFrame(Math.max(0, Math.floor(frame)));
  const [before, after] = [tokenStart(token), tokenStart(token + 1)];
  return frame - before < after - frame ? before : Math.min(frames, after);
}

/** @param {number} value */
function round(value) {
  return Math.round(value * 1e4) / 1e4;
}

/**
 * Return the runs with one more; what it covers of the others is taken off, so that a lane shows what it does.
 * @param {Range[]} ranges
 * @param {Range} run
 * @returns {Range[]}
 */
export function putRange(ranges, run) {
  return [...ranges.flatMap((old) => without(old, run)), run];
}

/**
 * @param {Range} old
 * @param {Range} run
 * @returns {Range[]}
 */
function without(old, run) {
  const [mine, its] = [old.channel ?? null, run.channel ?? null];
  const apart = old.to <= run.from || run.to <= old.from || (mine !== null && its !== null && mine !== its);
  if (apart) return [old];
  const rest = [];
  if (old.from < run.from) rest.push({ ...old, to: run.from });
  if (mine === null && its !== null) {
    rest.push({ ...old, from: Math.max(old.from, run.from), to: Math.min(old.to, run.to), channel: 1 - its });
  }
  if (run.to < old.to) rest.push({ ...old, from: run.to });
  return rest;
}

/**
 * @param {MaskDocument} document
 * @param {Lane} lane
 * @param {Range[]} ranges
 * @returns {MaskDocument}
 */
export function withRanges(document, lane, ranges) {
  return lane === "video"
    ? { ...document, video: { ...document.video, ranges } }
    : { ...document, audio: { ...document.audio, ranges } };
}

/**
 * Return the document of the opposite picture: what was kept is regenerated. Of soft edges the fractions may differ a little.
 * @param {MaskDocument} document
 * @returns {MaskDocument}
 */
export function invertPicture(document) {
  return {
    ...document,
    layers: document.layers.map((layer) => ({ ...layer, mode: layer.mode === "paint" ? "erase" : "paint" })),
    video: {
      ...document.video,
      base: 1 - document.video.base,
      ranges: document.video.ranges.map((run) => ({ ...run, value: 1 - run.value })),
    },
  };
}

/**
 * Return the document that keeps everything, of no canvas.
 * @param {MaskDocument} document
 * @returns {MaskDocument}
 */
export function clearAll(document) {
  return {
    ...document,
    canvas: null,
    layers: [],
    video: { ...document.video, base: 0, ranges: [] },
    audio: { ...document.audio, base: 0, ranges: [] },
  };
}

/**
 * Return the runs of both lanes that a preset sets; painted layers stay under them.
 * @param {MaskDocument} document
 * @param {Preset} preset
 * @param {{ frames: number, seconds: number, own?: number }} about seconds: of what is kept, or redone; own: frames of the clip
 *   itself, from whose end is counted; behind it its last picture is held
 * @returns {MaskDocument}
 */
export function applyPreset(document, preset, { frames, seconds, own = frames }) {
  const all = { from: 0, to: frames };
  if (preset === "only-sound") return lanes(document, [{ ...all, value: 0 }], [{ ...all, value: 1 }]);
  if (preset === "only-picture") return lanes(document, [{ ...all, value: 1 }], []);
  if (preset === "box") return lanes(document, [], document.audio.ranges);
  const wanted = Math.min(frames - 1, Math.max(0, Math.round(preset === "keep-start" ? seconds * FPS : own - seconds * FPS)));
  // Outward from what was asked for: all of the seconds are kept, or redone; at least one token is redone and one kept.
  const token = preset === "keep-start" ? tokenOfFrame(Math.max(0, wanted - 1)) + 1 : tokenOfFrame(wanted);
  const edge = tokenStart(Math.min(tokenCount(frames) - 1, Math.max(1, token)));
  const runs = [
    { from: 0, to: edge, value: 0 },
    { from: edge, to: frames, value: 1 },
  ];
  return lanes(document, runs, runs.map((run) => ({ ...run, channel: null })));
}

/**
 * @param {MaskDocument} document
 * @param {Range[]} video
 * @param {Range[]} audio
 * @returns {MaskDocument}
 */
function lanes(document, video, audio) {
  return {
    ...document,
    video: { ...document.video, base: 0, ranges: video },
    audio: { ...document.audio, base: 0, ranges: audio },
  };
}

/**
 * Return the edit moved to another canvas or length: sizes in pixels follow the height, what lies behind the end is cut.
 * @param {MaskDocument} document
 * @param {Canvas} canvas
 * @returns {MaskDocument}
 */
export function moveToCanvas(document, canvas) {
  const ratio = document.canvas ? canvas.height / document.canvas.height : 1;
  const old = document.canvas?.frames ?? canvas.frames;
  /** @param {number} to an end that was the end stays the end */
  const end = (to) => (to >= old ? canvas.frames : Math.min(to, canvas.frames));
  const layers = document.layers
    .map((layer) => /** @type {Layer} */ ({
      ...layer,
      size: layer.size * ratio,
      softness: layer.softness * ratio,
      range: [layer.range[0], end(layer.range[1])],
    }))
    .filter((layer) => layer.range[0] < layer.range[1]);
  /** @param {Range[]} ranges */
  const cut = (ranges) =>
    ranges.map((run) => ({ ...run, to: end(run.to) })).filter((run) => run.from < run.to);
  return {
    ...document,
    canvas: { ...document.canvas, ...canvas },
    layers,
    feather: document.feather * ratio,
    video: { ...document.video, ranges: cut(document.video.ranges) },
    audio: { ...document.audio, ranges: cut(document.audio.ranges) },
  };
}
