// Reading and writing of mask documents in the page.

import assert from "node:assert/strict";
import { test } from "node:test";
import { emptyDocument, pointOf, readDocument, resample, shapeAt, stateAt, writeDocument } from "../../web/mask_editor/document.js";
import { keyHere } from "../../web/mask_editor/edits.js";

const CANVAS = { width: 100, height: 100, frames: 22 };
const LAYER = { id: "a", kind: "polygon", keys: [{ frame: 0, points: [[0, 0], [1, 0], [1, 1]], ease: 2 }], glow: 1 };

test("an empty text is an empty document", () => assert.deepEqual(readDocument(" ").edit, emptyDocument()));

test("unknown fields are kept through reading and writing", () => {
  const text = JSON.stringify({ version: 1, canvas: { ...CANVAS, lens: 35 }, layers: [LAYER], mood: "blue" });
  const again = JSON.parse(writeDocument(/** @type {any} */ (readDocument(text).edit)));
  assert.deepEqual([again.mood, again.canvas.lens, again.layers[0].glow, again.layers[0].keys[0].ease], ["blue", 35, 1, 2]);
  assert.deepEqual(again.layers[0].range, [0, 22]);
});

const BAD = {
  "not JSON": "{",
  "another version": '{"version": 2}',
  "no version": "{}",
  "a list": "[]",
  "layers without a canvas": JSON.stringify({ version: 1, layers: [LAYER] }),
  "an unknown kind": JSON.stringify({ version: 1, canvas: CANVAS, layers: [{ ...LAYER, kind: "star" }] }),
  "a canvas of a billion frames": JSON.stringify({ version: 1, canvas: { ...CANVAS, frames: 1e9 } }),
  "more layers than a run takes": JSON.stringify({ version: 1, canvas: CANVAS, layers: Array(1025).fill(LAYER) }),
  "half a pixel": JSON.stringify({ version: 1, canvas: { ...CANVAS, width: 0.5 } }),
  "no points": JSON.stringify({ version: 1, canvas: CANVAS, layers: [{ ...LAYER, keys: [{ frame: 0 }] }] }),
  "a point of words": JSON.stringify({ version: 1, canvas: CANVAS, layers: [{ ...LAYER, keys: [{ frame: 0, points: [["x", 1]] }] }] }),
  "a range without an end": JSON.stringify({ version: 1, canvas: CANVAS, video: { ranges: [{ from: 1, value: 1 }] } }),
};

for (const [name, text] of Object.entries(BAD)) {
  test(`a text that is no document gives a problem: ${name}`, () => {
    const { edit, problem } = readDocument(text);
    assert.equal(edit, null);
    assert.ok(problem && problem.length > 5);
  });
}

test("the version of a newer document is named", () => {
  const { problem, version } = readDocument('{"version": 2}');
  assert.match(problem ?? "", /version 2.*version 1/);
  assert.equal(version, 2);
  assert.equal(readDocument("{").version, null, "what is broken may be put away, what is newer may not");
});

test("points have five digits, and a pressure only when it is not full", () => {
  assert.deepEqual(pointOf(1 / 3, 2 / 3), [0.33333, 0.66667]);
  assert.deepEqual(pointOf(0, 1, 0.123456), [0, 1, 0.12346]);
});

test("resampled paths are evenly spaced", () => {
  const open = resample([[0, 0], [0.5, 0], [1, 0]], 5, { closed: false, canvas: CANVAS });
  assert.deepEqual(open.map(([x]) => x), [0, 0.25, 0.5, 0.75, 1]);
  const square = /** @type {[number, number][]} */ ([[0, 0], [1, 0], [1, 1], [0, 1]]);
  const closed = resample(square, 8, { closed: true, canvas: CANVAS });
  assert.deepEqual(closed, [[0, 0], [0.5, 0], [1, 0], [1, 0.5], [1, 1], [0.5, 1], [0, 1], [0, 0.5]]);
  assert.deepEqual(resample([[0.2, 0.3, 0.5]], 3, { closed: false, canvas: CANVAS }), Array(3).fill([0.2, 0.3, 0.5]));
});

test("a state is the same exactly for frames of the same shape", () => {
  const keys = [{ frame: 2, points: LAYER.keys[0].points }, { frame: 6, scale: 2 }];
  const layer = /** @type {any} */ ({ ...LAYER, keys, interpolate: "linear" });
  const states = [0, 2, 3, 4, 5, 6, 9].map((frame) => stateAt(layer, frame));
  assert.deepEqual(states, [0, 0, 0.25, 0.5, 0.75, 1, 1]);
  assert.deepEqual([1, 5, 6].map((frame) => stateAt({ ...layer, interpolate: "hold" }, frame)), [0, 0, 1]);
});

test("a key that is put between two keys leaves the shape as it is in every frame", () => {
  const points = /** @type {[number, number][]} */ ([[0, 0], [1, 0], [1, 1]]);
  const keys = [{ frame: 0, points }, { frame: 8, points: points.map(([x, y]) => [y / 2, x]), offset: [0.25, 0], scale: 2 }];
  const layer = /** @type {any} */ ({ ...LAYER, keys, interpolate: "linear" });
  const keyed = keyHere(layer, 2, CANVAS);
  assert.deepEqual(keyed.keys.map((key) => key.frame), [0, 2, 8]);
  for (let frame = 0; frame < 10; frame++) {
    const [before, after] = [shapeAt(layer, frame, CANVAS), shapeAt(keyed, frame, CANVAS)];
    before.x.forEach((x, i) => assert.ok(Math.abs(x - after.x[i]) < 1e-6, `frame ${frame}`));
    before.y.forEach((y, i) => assert.ok(Math.abs(y - after.y[i]) < 1e-6, `frame ${frame}`));
  }
  assert.equal(keyHere({ ...layer, keys: [keys[0], { frame: 8, scale: 2 }] }, 2, CANVAS).keys[1].points, undefined);
});

test("one point along a path is its first", () => {
  assert.deepEqual(resample([[0.2, 0.3], [0.5, 0.5]], 1, { closed: false, canvas: CANVAS }), [[0.2, 0.3]]);
});
