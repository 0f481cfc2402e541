// What the editor's controls do to a document, its undo, and where the picture lies on the screen.
import assert from "node:assert/strict";
import test from "node:test";

import { emptyDocument } from "../../web/mask_editor/document.js";
import { applyPreset, clearAll, invertPicture, moveToCanvas, putKey, putRange, removeKey, snapEdge, snapSpan, moveWhole, transformLayer } from "../../web/mask_editor/edits.js";
import { History } from "../../web/mask_editor/history.js";
import { pictureBox, toFractions, WHOLE, zoomAt } from "../../web/mask_editor/viewport.js";

const CANVAS = { width: 128, height: 64, frames: 39 };
const LAYER = {
  id: "a", name: "", kind: "rect", mode: "paint", enabled: true, size: 64, softness: 8, strength: 1, range: [0, 39],
  interpolate: "linear", keys: [{ frame: 5, points: [[0, 0], [0.5, 0.5]] }], file: "",
};

test("a run takes what it covers from the others, and of a linked one only its channel", () => {
  const runs = putRange([{ from: 0, to: 20, value: 1 }], { from: 5, to: 9, value: 0 });
  assert.deepEqual(runs, [{ from: 0, to: 5, value: 1 }, { from: 9, to: 20, value: 1 }, { from: 5, to: 9, value: 0 }]);
  const right = putRange([{ from: 0, to: 9, value: 1, channel: null }], { from: 3, to: 6, value: 0, channel: 1 });
  assert.deepEqual(right.map(({ from, to, channel }) => [from, to, channel]), [[0, 3, null], [3, 6, 0], [6, 9, null], [3, 6, 1]]);
});

test("spans go outward to whole tokens and whole latents, edges to the nearest", () => {
  assert.deepEqual(snapSpan("video", 6.2, 7, 39), [5, 9]);
  assert.deepEqual(snapSpan("video", 16.5, 17.5, 39), [13, 18]);
  assert.deepEqual(snapSpan("video", 38, 39, 39), [35, 39]);
  assert.deepEqual(snapSpan("audio", 1, 2, 39), [0.6, 2.4]);
  assert.deepEqual(snapSpan("audio", 38.9, 39, 39), [38.4, 39]);
  assert.equal(snapEdge("video", 6.4, 39), 5);
  assert.equal(snapEdge("video", 7.6, 39), 9);
  assert.equal(snapEdge("audio", 1.6, 39), 1.8);
});

test("presets set both lanes, and leave something to keep and something to make", () => {
  const keep = applyPreset(emptyDocument(CANVAS), "keep-start", { frames: 39, seconds: 1 });
  // All of the second that is to stay stays: 24 frames end within the token of 22 to 25.
  assert.deepEqual(keep.video.ranges.map(({ from, to, value }) => [from, to, value]), [[0, 26, 0], [26, 39, 1]]);
  assert.deepEqual(keep.audio.ranges.map(({ from, to, value }) => [from, to, value]), [[0, 26, 0], [26, 39, 1]]);
  const redo = applyPreset(emptyDocument(CANVAS), "redo-end", { frames: 39, seconds: 1 });
  assert.deepEqual(redo.video.ranges[1], { from: 13, to: 39, value: 1 });
  const own = applyPreset(emptyDocument(CANVAS), "redo-end", { frames: 39, own: 30, seconds: 1 });
  assert.deepEqual(own.video.ranges[1], { from: 5, to: 39, value: 1 }, "a second of 30 frames, the held ones beside it");
  const all = applyPreset(emptyDocument(CANVAS), "keep-start", { frames: 39, seconds: 99 });
  assert.deepEqual(all.video.ranges[1], { from: 35, to: 39, value: 1 });
});

test("inverting twice gives the document back, clearing keeps what is not known", () => {
  const painted = { ...emptyDocument(CANVAS), layers: [LAYER], extra: 7 };
  assert.deepEqual(invertPicture(invertPicture(painted)), painted);
  assert.equal(invertPicture(painted).layers[0].mode, "erase");
  assert.deepEqual(clearAll(painted), { ...emptyDocument(), extra: 7 });
});

test("the first key always has points, moving a layer makes a key there, or moves it at all keys", () => {
  const early = putKey(LAYER, { frame: 0, offset: [0, 0], scale: 1 });
  assert.deepEqual(early.keys[0].points, LAYER.keys[0].points);
  assert.deepEqual(removeKey(LAYER, 5), LAYER);
  const two = putKey(LAYER, { frame: 30, offset: [0.2, 0], scale: 1 });
  assert.deepEqual(removeKey(two, 5).keys[0].points, LAYER.keys[0].points);
  const moved = transformLayer(LAYER, 20, CANVAS, { dx: 0.1 });
  assert.deepEqual(moved.keys.map(({ frame, offset }) => [frame, offset]), [[5, undefined], [20, [0.1, 0]]]);
  assert.equal(transformLayer(LAYER, 5, CANVAS, { dx: 0.1 }).keys.length, 1);
  assert.deepEqual(moveWhole(two, { dx: 0.1, dy: 0 }).keys.map(({ offset }) => offset?.[0].toFixed(2)), ["0.10", "0.30"]);
  assert.deepEqual(transformLayer(two, 20, CANVAS, { dx: 0.1 }).keys.map((key) => key.frame), [5, 20, 30]);
});

test("an edit that moves to another length keeps what was the end at the end", () => {
  const short = { ...LAYER, id: "b", range: [2, 9] };
  const moved = moveToCanvas({ ...emptyDocument(CANVAS), layers: [LAYER, short] }, { width: 256, height: 128, frames: 73 });
  assert.deepEqual(moved.layers.map((layer) => layer.range), [[0, 73], [2, 9]]);
  assert.equal(moved.layers[0].softness, 16);
  assert.deepEqual(moveToCanvas(moved, { ...CANVAS, frames: 5 }).layers.map((layer) => layer.range), [[0, 5], [2, 5]]);
});

test("steps of undo: a dragged slider is one, a new state forgets what was undone", () => {
  const history = new History("a");
  history.push("b", "strength");
  history.push("c", "strength");
  history.push("d");
  assert.deepEqual([history.undo(), history.state, history.undo(), history.state, history.undo()], [true, "c", true, "a", false]);
  history.redo();
  history.push("e");
  assert.equal(history.redo(), false);
});

test("the place under the pointer stays where it is while the picture is zoomed", () => {
  const [screen, picture] = [{ width: 800, height: 500 }, { width: 1344, height: 768 }];
  const at = { x: 500, y: 300, screen, picture };
  const before = toFractions(pictureBox(WHOLE, screen, picture), at.x, at.y);
  const view = zoomAt(WHOLE, 4, at);
  const after = toFractions(pictureBox(view, screen, picture), at.x, at.y);
  after.forEach((value, i) => assert.ok(Math.abs(value - before[i]) < 1e-9));
  assert.deepEqual(zoomAt(view, 1e-3, at), WHOLE);
});
