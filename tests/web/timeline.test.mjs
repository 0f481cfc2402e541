// What the lanes show of the sound.
import assert from "node:assert/strict";
import { test } from "node:test";
import { peakAt } from "../../web/mask_editor/timeline.js";

test("linked channels show the louder one, apart each its own, and nothing behind the end", () => {
  const peaks = [[0.1, 0.9], [0.7, 0.2, 0.4]];
  assert.deepEqual([0, 1, 2, 3].map((at) => peakAt(peaks, at, null)), [0.7, 0.9, 0.4, 0]);
  assert.deepEqual([0, 1, 2].map((at) => peakAt(peaks, at, 0)), [0.1, 0.9, 0]);
  assert.equal(peakAt([[0.3]], 0, 1), 0.3, "a sound of one channel is heard on both");
});
