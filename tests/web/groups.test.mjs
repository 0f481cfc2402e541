// Strokes that belong together are one thing to move, key, order and delete.
import assert from "node:assert/strict";
import { test } from "node:test";
import { emptyDocument, shapeAt } from "../../web/mask_editor/document.js";
import { keyHere } from "../../web/mask_editor/edits.js";
import { addToGroup, changeGroup, membersOf, modeOf, removeGroup, reorderGroup, takesStroke, transformGroup } from "../../web/mask_editor/groups.js";

const CANVAS = { width: 200, height: 100, frames: 39 };
const stroke = (id, x, more = {}) => ({
  id, name: "", kind: "stroke", mode: "paint", enabled: true, size: 8, softness: 0, strength: 1, range: [0, 39],
  interpolate: "linear", keys: [{ frame: 0, points: [[x, 0.5], [x + 0.1, 0.5]] }], file: "", ...more,
});
const other = stroke("other", 0.8);
const start = { ...emptyDocument(CANVAS), layers: [other, stroke("a", 0.2)] };
const middles = (document, frame) => document.layers.map((layer) => {
  const { x } = shapeAt(layer, frame, CANVAS);
  return Number(((Math.min(...x) + Math.max(...x)) / 2 / CANVAS.width).toFixed(4));
});
const two = addToGroup(start, start.layers[1], stroke("b", 0.4), CANVAS);

test("a stroke joins the chosen layer only where that is on top and lives as long", () => {
  const [below, top] = start.layers;
  assert.ok(takesStroke(start, top, { frame: 3, range: null }));
  assert.ok(takesStroke(start, top, { frame: 3, range: [0, 39] }));
  assert.ok(!takesStroke(start, top, { frame: 3, range: [1, 5] }));
  assert.ok(!takesStroke(start, below, { frame: 3, range: null }), "what is erased would stay under the others");
  assert.ok(!takesStroke(start, null, { frame: 3, range: null }));
  const short = { ...start, layers: [stroke("a", 0.2, { range: [0, 5] })] };
  assert.ok(!takesStroke(short, short.layers[0], { frame: 7, range: null }));
});

test("a group moves, scales about one middle, is ordered and deleted as one", () => {
  assert.deepEqual(membersOf(two, two.layers[1]).map((layer) => layer.id), ["a", "b"]);
  const moved = transformGroup(two, two.layers[1], { frame: 0, canvas: CANVAS, dx: 0.05 });
  assert.deepEqual(middles(moved, 0), [0.85, 0.3, 0.5]);
  const grown = transformGroup(two, two.layers[1], { frame: 0, canvas: CANVAS, factor: 2 });
  assert.deepEqual(middles(grown, 0), [0.85, 0.25, 0.65]);
  assert.deepEqual(reorderGroup(two, two.layers[2], -1).layers.map((layer) => layer.id), ["a", "b", "other"]);
  assert.deepEqual(reorderGroup(two, two.layers[0], 1).layers.map((layer) => layer.id), ["a", "b", "other"]);
  assert.deepEqual(removeGroup(two, two.layers[2]).layers, [other]);
});

test("a stroke that joins a moving layer lies where it was drawn, and moves along", () => {
  let keyed = changeGroup(two, two.layers[1], (layer) => keyHere(layer, 0, CANVAS));
  keyed = transformGroup(keyed, keyed.layers[1], { frame: 38, canvas: CANVAS, dx: 0.2, factor: 2 });
  const drawn = stroke("c", 0.6);
  drawn.keys[0].frame = 19;
  const joined = addToGroup(keyed, keyed.layers[1], drawn, CANVAS);
  assert.equal(middles(joined, 19)[3], 0.65);
  const [, a0] = middles(joined, 19);
  const [, a1, , c1] = middles(joined, 38);
  // Twice as large at the end, one and a half times in the middle: distances grow by a third.
  assert.ok(Math.abs(c1 - a1 - ((0.65 - a0) * 2) / 1.5) < 1e-3);
  assert.deepEqual(joined.layers[3].keys.map((key) => key.frame), [0, 38]);
});

test("a layer of which some strokes erase is mixed, and of one kind once all do the same", () => {
  const [a, b] = membersOf(two, two.layers[1]);
  assert.equal(modeOf(two, a), "paint");
  const some = { ...two, layers: two.layers.map((layer) => (layer.id === b.id ? { ...layer, mode: "erase" } : layer)) };
  assert.deepEqual(membersOf(some, a).map((layer) => modeOf(some, layer)), ["mixed", "mixed"]);
  assert.equal(modeOf(some, some.layers[0]), "paint", "of another layer");
  const all = changeGroup(some, a, (layer) => ({ ...layer, mode: "erase" }));
  assert.equal(modeOf(all, all.layers[1]), "erase");
});
