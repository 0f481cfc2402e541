// The lanes under the picture: keys of the chosen layer, picture, sound with its waveform, and the bands of tokens in time.
// Drawing and hit testing; what a drag does is in timeline_drag.js.

import { drawLabel } from "./overlay.js";
import { modeOf } from "./groups.js";
import { audioCount, AUDIO_STEP, FPS, FRAMES_PER_TOKEN, tokenCount, tokenStart } from "./grid.js";

/** @typedef {import("./document.js").MaskDocument} MaskDocument */
/** @typedef {import("./document.js").Layer} Layer */
/** @typedef {import("./document.js").Range} Range */
/** @typedef {CanvasRenderingContext2D} Context */
/** @typedef {"keys" | "video" | "audio0" | "audio1" | "bands"} RowName */
/** @typedef {{ name: RowName, label: string, top: number, height: number }} Row */
/**
 * @typedef {object} TimeState
 * @property {MaskDocument} document
 * @property {number} frames
 * @property {number} frame
 * @property {Layer | null} layer the chosen one
 * @property {import("./groups.js").GroupMode} mode of the chosen layer
 * @property {{ lane: "video" | "audio", index: number } | null} run the chosen run
 * @property {[number, number] | null} marked frames
 * @property {Float32Array | null} share of each token's cells that are regenerated, 0..1
 * @property {Float32Array | null} sound mask, 2 x latents
 * @property {number[][] | null} peaks
 * @property {number} clip frames of the clip that is shown, 0 when there is none
 */
/**
 * What is under the pointer: a key, an edge of a run or of the layer's span, its inside, or a row.
 * @typedef {object} Hit
 * @property {RowName} row
 * @property {"key" | "from" | "to" | "inside" | "row"} part
 * @property {number} [index] of the run
 * @property {number} [key] the key's frame
 */

const LEFT = 52;
const RIGHT = 8;
const EDGE = 5;
const COLOURS = { keep: "#3f7fd0", redo: "#e0406a", ink: "#d5d8de", dim: "#4a4e58", band: "#2a2d34" };

/**
 * Return what the lanes show of an editor.
 * @param {import("./editor.js").MaskEditor} editor
 * @returns {TimeState}
 */
export function timeStateOf({ document, frames, frame, layer, state, statistics, source, clip }) {
  const { share, sound } = statistics;
  const [mode, peaks] = [layer ? modeOf(document, layer) : "paint", source?.facts?.peaks ?? null];
  return { document, frames, frame, layer, mode, run: state.run, marked: state.marked, share, sound, peaks, clip };
}

/**
 * Return the rows, from the top; the sound has one while both channels are linked.
 * @param {number} height
 * @param {boolean} linked
 * @returns {Row[]}
 */
export function rowsOf(height, linked) {
  /** @type {[RowName, string, number][]} */
  const parts = [["keys", "layer", 2], ["video", "picture", 3], ["audio0", linked ? "sound" : "left", linked ? 3 : 2]];
  if (!linked) parts.push(["audio1", "right", 2]);
  parts.push(["bands", "blocks", 2]);
  const unit = (height - 4 * parts.length) / parts.reduce((sum, part) => sum + part[2], 0);
  let top = 2;
  return parts.map(([name, label, share]) => {
    const row = { name, label, top, height: share * unit };
    top += row.height + 4;
    return row;
  });
}

/**
 * @param {number} frame @param {number} width @param {number} frames
 */
export function xOf(frame, width, frames) {
  return LEFT + (frame / frames) * (width - LEFT - RIGHT);
}

/**
 * Return the time under a place, in frames, cut to the clip.
 * @param {number} x @param {number} width @param {number} frames
 */
export function timeAt(x, width, frames) {
  return Math.min(frames, Math.max(0, ((x - LEFT) / (width - LEFT - RIGHT)) * frames));
}

/** @param {RowName} row @param {Range} run @param {boolean} linked */
function runIsOn(row, run, linked) {
  const channel = linked ? null : (run.channel ?? null);
  return row === "video" || channel === null || (row === "audio0" ? 0 : 1) === channel;
}

/**
 * Return what is under a place.
 * @param {TimeState} state
 * @param {{ x: number, y: number, width: number, height: number }} at
 * @returns {Hit | null}
 */
export function hitTest(state, { x, y, width, height }) {
  const { document, frames, layer } = state;
  const row = rowsOf(height, document.audio.linked).find((found) => y >= found.top - 2 && y < found.top + found.height + 2);
  if (!row) return null;
  /** @param {number} from @param {number} to @returns {"from" | "to" | "inside" | null} */
  const part = (from, to) => {
    const [left, right] = [xOf(from, width, frames), xOf(to, width, frames)];
    const reach = Math.min(EDGE, Math.max(2, (right - left) / 3));
    if (Math.abs(x - right) <= reach) return "to";
    if (Math.abs(x - left) <= reach) return "from";
    return x > left && x < right ? "inside" : null;
  };
  if (row.name === "keys" && layer) {
    const key = layer.keys.find((found) => Math.abs(xOf(found.frame + 0.5, width, frames) - x) <= EDGE + 1);
    if (key) return { row: "keys", part: "key", key: key.frame };
    return { row: "keys", part: part(...layer.range) ?? "row" };
  }
  const runs = row.name === "video" ? document.video.ranges : row.name.startsWith("audio") ? document.audio.ranges : [];
  for (let index = runs.length - 1; index >= 0; index--) {
    const hit = runIsOn(row.name, runs[index], document.audio.linked) ? part(runs[index].from, runs[index].to) : null;
    if (hit) return { row: row.name, part: hit, index };
  }
  return { row: row.name, part: "row" };
}

/**
 * Draw the lanes.
 * @param {Context} context
 * @param {TimeState} state
 * @param {number} width
 * @param {number} height
 */
export function drawTimeline(context, state, width, height) {
  context.font = "11px sans-serif";
  context.textBaseline = "middle";
  for (const row of rowsOf(height, state.document.audio.linked)) {
    context.textAlign = "left";
    context.fillStyle = COLOURS.ink;
    context.fillText(row.label, 4, row.top + row.height / 2, LEFT - 8);
    context.fillStyle = COLOURS.band;
    context.fillRect(LEFT, row.top, width - LEFT - RIGHT, row.height);
    if (row.name === "keys") drawLayer(context, state, row, width);
    else if (row.name === "bands") drawBands(context, state, row, width);
    else if (row.name === "video") drawVideo(context, state, row, width);
    else drawSound(context, state, row, width);
    drawNames(context, state, row, width);
  }
  drawHeld(context, state, width, height);
  drawMarked(context, state, width, height);
  const x = xOf(state.frame + 0.5, width, state.frames);
  context.fillStyle = "#fff";
  context.fillRect(x - 0.75, 0, 1.5, height);
}

/** @param {Context} context @param {TimeState} state @param {Row} row @param {number} width */
function drawLayer(context, { layer, mode, frames }, row, width) {
  if (!layer) return;
  const [left, right] = layer.range.map((frame) => xOf(frame, width, frames));
  const [tall, middle] = [row.height * 0.4, row.top + row.height / 2];
  context.globalAlpha = 0.55;
  context.fillStyle = mode === "erase" ? COLOURS.keep : COLOURS.redo;
  context.fillRect(left, middle - tall / 2, right - left, tall);
  context.globalAlpha = 1;
  context.fillStyle = COLOURS.keep;
  // Both colours where some strokes paint and some erase.
  if (mode === "mixed") context.fillRect(left, middle, right - left, tall / 2);
  context.fillStyle = "#fff";
  const size = Math.min(6, row.height / 2 - 1);
  for (const key of layer.keys) {
    const [x, y] = [xOf(key.frame + 0.5, width, frames), row.top + row.height / 2];
    context.beginPath();
    for (const [dx, dy] of [[0, -size], [size, 0], [0, size], [-size, 0]]) context.lineTo(x + dx, y + dy);
    context.fill();
  }
}

/** @param {Context} context @param {TimeState} state @param {Row} row @param {number} width */
function drawVideo(context, { document, frames, share, run }, row, width) {
  drawRuns(context, document.video.ranges, { row, width, frames, linked: true, chosen: run?.lane === "video" ? run.index : -1 });
  if (!share) return;
  // What is regenerated in the end, as the height of a bar for each token.
  context.fillStyle = "rgba(255,255,255,0.85)";
  for (let token = 0; token < share.length; token++) {
    if (!share[token]) continue;
    const [left, right] = [xOf(tokenStart(token), width, frames), xOf(tokenStart(token + 1), width, frames)];
    const tall = Math.max(2, share[token] * (row.height - 4));
    context.globalAlpha = 0.35;
    context.fillRect(left, row.top + row.height - tall, Math.max(1, right - left - 0.5), tall);
    context.globalAlpha = 1;
    context.fillRect(left, row.top + row.height - tall, Math.max(1, right - left - 0.5), 1.5);
  }
}

/**
 * Return how loud a sound is in a latent's time, 0..1; 0 behind its end.
 * @param {number[][]} peaks by channel, at least one
 * @param {number} at
 * @param {number | null} channel null: of all, the loudest; one that the sound has not is its last
 */
export function peakAt(peaks, at, channel) {
  const heard = channel === null ? peaks : [peaks[Math.min(channel, peaks.length - 1)]];
  return Math.max(...heard.map((wave) => wave[at] ?? 0));
}

/** @param {Context} context @param {TimeState} state @param {Row} row @param {number} width */
function drawSound(context, { document, frames, sound, peaks, run }, row, width) {
  const channel = row.name === "audio1" ? 1 : 0;
  const { linked, base } = document.audio;
  if (base) fillRun(context, { row, left: LEFT, right: width - RIGHT, value: 1 });
  drawRuns(context, document.audio.ranges, { row, width, frames, linked, chosen: run?.lane === "audio" ? run.index : -1 });
  if (peaks?.length) {
    context.fillStyle = "rgba(230,235,245,0.8)";
    const middle = row.top + row.height / 2;
    for (let x = LEFT; x < width - RIGHT; x++) {
      // A peak lasts as long as a latent; a sound that ends early is silent from there on.
      const at = Math.floor(((x - LEFT) / (width - LEFT - RIGHT)) * frames / AUDIO_STEP);
      const tall = Math.max(0.5, peakAt(peaks, at, linked ? null : channel) * row.height * 0.45);
      context.fillRect(x, middle - tall, 1, 2 * tall);
    }
  }
  if (!sound) return;
  context.fillStyle = "#fff";
  const count = audioCount(frames);
  for (let latent = 0; latent < count; latent++) {
    const strong = linked ? Math.max(sound[latent], sound[count + latent]) : sound[channel * count + latent];
    if (!strong) continue;
    const left = xOf(latent * AUDIO_STEP, width, frames);
    context.fillRect(left, row.top + row.height - 2, Math.max(0.5, xOf((latent + 1) * AUDIO_STEP, width, frames) - left), 2);
  }
}

/**
 * @param {Context} context
 * @param {Range[]} runs
 * @param {{ row: Row, width: number, frames: number, linked: boolean, chosen: number }} how
 */
function drawRuns(context, runs, { row, width, frames, linked, chosen }) {
  runs.forEach((run, index) => {
    if (!runIsOn(row.name, run, linked)) return;
    const [left, right] = [xOf(run.from, width, frames), xOf(run.to, width, frames)];
    fillRun(context, { row, left, right, value: run.value });
    context.strokeStyle = chosen === index ? "#fff" : "rgba(255,255,255,0.35)";
    context.lineWidth = chosen === index ? 2 : 1;
    context.strokeRect(left + 0.5, row.top + 0.5, Math.max(1, right - left - 1), row.height - 1);
  });
}

/**
 * Fill a run, whatever is under it: keep is plain, regenerate has stripes.
 * @param {Context} context
 * @param {{ row: Row, left: number, right: number, value: number }} run
 */
function fillRun(context, { row, left, right, value }) {
  context.save();
  context.beginPath();
  context.rect(left, row.top, right - left, row.height);
  context.clip();
  context.fillStyle = COLOURS.band;
  context.fillRect(left, row.top, right - left, row.height);
  context.fillStyle = value ? COLOURS.redo : COLOURS.keep;
  context.globalAlpha = value ? 0.35 + 0.45 * value : 0.5;
  context.fillRect(left, row.top, right - left, row.height);
  context.globalAlpha = 0.5;
  context.strokeStyle = "#fff";
  context.lineWidth = 1;
  context.beginPath();
  for (let x = left - row.height; value && x < right; x += 8) {
    context.moveTo(x, row.top + row.height);
    context.lineTo(x + row.height, row.top);
  }
  context.stroke();
  context.restore();
}

/**
 * Write on each run what it does, over all that is drawn there.
 * @param {Context} context
 * @param {TimeState} state
 * @param {Row} row
 * @param {number} width
 */
function drawNames(context, { document, frames }, row, width) {
  const { linked } = document.audio;
  const runs = row.name === "video" ? document.video.ranges : row.name.startsWith("audio") ? document.audio.ranges : [];
  for (const run of runs) {
    const [left, right] = [xOf(run.from, width, frames), xOf(run.to, width, frames)];
    if (!runIsOn(row.name, run, linked) || right - left < 34) continue;
    const name = run.value === 0 ? "keep" : run.value === 1 ? "regenerate" : `${Math.round(run.value * 100)}%`;
    context.save();
    context.beginPath();
    context.rect(left, row.top, right - left, row.height);
    context.clip();
    drawLabel(context, name, (left + right) / 2, row.top + row.height / 2, "center");
    context.restore();
  }
}

/** @param {Context} context @param {TimeState} state @param {Row} row @param {number} width */
function drawBands(context, { frames }, row, width) {
  const wide = (width - LEFT - RIGHT) / frames > 3;
  context.textAlign = "center";
  for (let token = 0; token < tokenCount(frames); token++) {
    const [left, right] = [xOf(tokenStart(token), width, frames), xOf(tokenStart(token + 1), width, frames)];
    context.fillStyle = token % 5 === 0 ? "#5c6270" : token % 2 ? "#3a3e48" : "#444955";
    context.fillRect(left, row.top, Math.max(1, right - left - 1), row.height);
    context.fillStyle = COLOURS.ink;
    if (wide && right - left > 9) context.fillText(`${FRAMES_PER_TOKEN[token % 5]}`, (left + right) / 2, row.top + row.height / 2);
  }
  context.fillStyle = "#fff";
  for (let second = 1; second * FPS < frames; second++) {
    context.fillRect(xOf(second * FPS, width, frames) - 0.5, row.top - 3, 1, 5);
  }
}

/**
 * Darken what lies behind the clip's end, where its last picture is held.
 * @param {Context} context @param {TimeState} state @param {number} width @param {number} height
 */
function drawHeld(context, { clip, frames }, width, height) {
  if (!clip || clip >= frames) return;
  const [left, right] = [xOf(clip, width, frames), xOf(frames, width, frames)];
  context.fillStyle = "rgba(0,0,0,0.45)";
  context.fillRect(left, 0, right - left, height);
  context.fillStyle = "rgba(255,255,255,0.7)";
  for (let y = 0; y < height; y += 6) context.fillRect(left - 0.5, y, 1, 3);
}

/** @param {Context} context @param {TimeState} state @param {number} width @param {number} height */
function drawMarked(context, { marked, frames }, width, height) {
  if (!marked) return;
  const [left, right] = marked.map((frame) => xOf(frame, width, frames));
  context.fillStyle = "rgba(255,214,90,0.16)";
  context.fillRect(left, 0, right - left, height);
  context.strokeStyle = "#ffd65a";
  context.lineWidth = 1.5;
  context.strokeRect(left, 1, right - left, height - 2);
}
