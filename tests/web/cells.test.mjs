// The page's reading of mask documents against the golden masks, which hold the engine's too (tests/unit/test_mask_golden.py).

import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { MaskCells } from "../../web/mask_editor/cells.js";
import { audioCount, tokenCount, tokenOfFrame, tokenStart } from "../../web/mask_editor/grid.js";
import { readDocument } from "../../web/mask_editor/document.js";

const FOLDER = new URL("../golden_masks/", import.meta.url);
const FILES = readdirSync(FOLDER);
const TOLERANCE = 1 / 512;

/** @param {string} file */
function load(file) {
  const found = JSON.parse(readFileSync(new URL(file, FOLDER), "utf8"));
  const rasters = new Map(
    Object.entries(found.rasters).map(([name, { bytes, ...size }]) => [name, { ...size, data: Uint8Array.from(bytes) }]),
  );
  const { edit, problem } = readDocument(JSON.stringify(found.document));
  assert.equal(problem, null);
  return { ...found, rasters, edit };
}

/** @param {ArrayLike<number>} found @param {number[]} wanted */
function assertClose(found, wanted) {
  assert.equal(found.length, wanted.length);
  const worst = wanted.reduce((most, value, i) => Math.max(most, Math.abs(value - found[i])), 0);
  assert.ok(worst < TOLERANCE, `off by ${worst}`);
}

test("there are golden masks", () => assert.ok(FILES.length > 10));

for (const file of FILES) {
  test(`a document means the golden cells: ${file}`, () => {
    const { edit, size, rasters, video, audio } = load(file);
    const cells = new MaskCells(size);
    cells.update(edit, rasters);
    assertClose(cells.video(), video);
    assertClose(cells.audio(), audio);
  });
}

test("frames that look alike are computed once, and anew when their layer is replaced", () => {
  const { edit, size } = load("stroke_with_pressure.json");
  const cells = new MaskCells(size);
  cells.update(edit);
  const before = cells.frame(4);
  assert.equal(cells.frame(8), before);
  cells.update({ ...edit, layers: edit.layers.map((layer) => ({ ...layer, strength: 1 })) });
  assert.ok(Math.max(...cells.frame(4)) > Math.max(...before));
  cells.update(edit);
  assert.equal(cells.frame(4), before);
});

test("an edit of another layer leaves a frame as it is", () => {
  const { edit, size } = load("rect_and_erased_ellipse.json");
  const cells = new MaskCells(size);
  const [rect, ellipse] = edit.layers;
  const late = { ...ellipse, range: [10, 22] };
  cells.update({ ...edit, layers: [rect, late] });
  const before = cells.frame(3);
  cells.update({ ...edit, layers: [rect, { ...late, softness: 1 }] });
  assert.equal(cells.frame(3), before);
});

test("the report counts rows and tells frames and latents outward", () => {
  const { edit, size } = load("ranges_at_odd_frames.json");
  const cells = new MaskCells(size);
  cells.update({ ...edit, layers: [], video: { base: 0, ranges: [{ from: 6, to: 7, value: 1 }] } });
  const report = cells.describe();
  assert.deepEqual(report.videoFrames, [5, 9]); // frame 6 lies in the token of frames 5 to 8
  assert.deepEqual(report.videoSeconds, [5 / 24, 9 / 24]);
  assert.equal(report.videoPercent, 100 / 12);
  assert.deepEqual(report.audioLatents, [11, 65]); // frames 7 to 39 are latents 11.67 to 65
  cells.update({ ...edit, layers: [], video: { base: 0, ranges: [] }, audio: { base: 0, linked: true, ranges: [] } });
  assert.deepEqual([cells.describe().videoFrames, cells.describe().audioPercent], [null, 0]);
});

test("tokens and latents of frames", () => {
  assert.deepEqual([5, 22, 124, 362].map(tokenCount), [2, 7, 37, 107]);
  assert.deepEqual([5, 22, 124, 362].map(audioCount), [8, 37, 207, 603]);
  assert.deepEqual([0, 1, 2, 5, 6, 7].map(tokenStart), [0, 1, 5, 17, 18, 22]);
  for (let frame = 0; frame < 362; frame++) {
    const token = tokenOfFrame(frame);
    assert.ok(tokenStart(token) <= frame && frame < tokenStart(token + 1), `frame ${frame}`);
  }
});

test("a moving lasso of 40 points at 1344x768 takes well below a tenth of a second a token", () => {
  const circle = Array.from({ length: 40 }, (_, i) => [0.4 + 0.2 * Math.cos(i / 6.37), 0.5 + 0.3 * Math.sin(i / 6.37)]);
  const layer = { id: "a", kind: "polygon", softness: 12, interpolate: "linear" };
  const keys = [{ frame: 0, points: circle }, { frame: 361, offset: [0.2, 0.1], scale: 0.6 }];
  const text = JSON.stringify({ version: 1, canvas: { width: 1344, height: 768, frames: 362 }, layers: [{ ...layer, keys }] });
  const cells = new MaskCells({ width: 1344, height: 768, frames: 362 });
  cells.update(/** @type {any} */ (readDocument(text).edit));
  cells.token(0);
  const start = process.cpuUsage();
  for (let token = 40; token < 50; token++) cells.token(token);
  const each = process.cpuUsage(start).user / 1000 / 10;
  assert.ok(each < 100, `${each} ms a token`);
});

test("what is drawn over other layers, moved and taken away is what a fresh computation gives", () => {
  const size = { width: 128, height: 64, frames: 22 };
  const layer = (id, x, more = {}) => ({ id, kind: "rect", range: [0, 22], softness: 6, interpolate: "linear",
    keys: [{ frame: 0, points: [[x, 0.2], [x + 0.3, 0.7]] }, { frame: 21, offset: [0.2, 0] }], ...more });
  const under = [layer("a", 0.1), layer("b", 0.3, { mode: "erase", strength: 0.5 })];
  const states = [under, [...under, layer("c", 0.5)], [...under, layer("c", 0.6)], [layer("a", 0.2), under[1], layer("c", 0.6)], under, []];
  const cells = new MaskCells(size);
  for (const layers of states) {
    const edit = readDocument(JSON.stringify({ version: 1, canvas: size, layers })).edit;
    const kept = { ...edit, layers: edit.layers.map((one, at) => (layers[at] === under[at] ? (under[`kept${at}`] ??= one) : one)) };
    const fresh = new MaskCells(size);
    fresh.update(kept);
    cells.update(kept);
    assert.deepEqual(cells.video(), fresh.video());
    assert.deepEqual(cells.describe(), fresh.describe());
  }
});
