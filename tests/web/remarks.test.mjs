// What the editor says of an edit, and of a shape that changes nothing.
import assert from "node:assert/strict";
import { test } from "node:test";
import { MaskCells } from "../../web/mask_editor/cells.js";
import { emptyDocument } from "../../web/mask_editor/document.js";
import { addLayer, applyPreset, withRanges } from "../../web/mask_editor/edits.js";
import { whyNothing } from "../../web/mask_editor/effect.js";
import { lengthOf, middleOfCells, mismatchOf, overruled, ownFrames, presetRemark } from "../../web/mask_editor/remarks.js";

const SIZE = { width: 128, height: 64, frames: 39 };
const shape = (more) => ({
  id: "a", name: "", kind: "stroke", mode: "paint", enabled: true, size: 16, softness: 0, strength: 1, range: [0, 39],
  interpolate: "linear", keys: [{ frame: 0, points: [[0.3, 0.5], [0.6, 0.5]] }], file: "", ...more,
});
const BOX = shape({ id: "box", kind: "rect", keys: [{ frame: 0, points: [[0, 0], [0.75, 1]] }] });
const boxed = addLayer(emptyDocument(SIZE), BOX);
/** Why a layer more changes nothing of a document. */
function why(before, layer, carried = null) {
  const cells = new MaskCells(SIZE);
  cells.carried = carried;
  return whyNothing(cells, { before, after: addLayer(before, layer), rasters: new Map() });
}

test("a clip that is held up to the model's next length is told as both numbers", () => {
  assert.equal(lengthOf(56, 48).text, " (clip 48 + 8 held)");
  assert.match(lengthOf(56, 48).title, /last picture is held for 8 more/);
  assert.equal(lengthOf(56, 56).text, "");
  assert.equal(lengthOf(56, 0).text, "");
  assert.equal(lengthOf(124, 52).text, " (clip 52)", "an extended clip is not one that is held");
  assert.equal(lengthOf(39, 52).text, " (clip 52)");
  assert.doesNotMatch(lengthOf(124, 52).title, /held/);
});

test("an erasing stroke that is too fine for a cell is told what would do", async () => {
  const fine = shape({ mode: "erase", size: 3 });
  assert.match(await why(boxed, fine), /only once all of it is erased.*Size 40 px/);
  assert.equal(await why(boxed, { ...fine, size: 40 }), "");
  const halved = { ...boxed, canvas: { ...SIZE, width: 64, height: 32 } };
  assert.match(await why(halved, fine), /Size 20 px/, "sizes are of the document's canvas");
});

test("a dot of the size that is told changes a cell wherever it is", async () => {
  for (let x = 0.2; x < 0.55; x += 0.013) {
    for (const y of [0.4, 0.44, 0.5, 0.53, 0.6]) {
      assert.equal(await why(boxed, shape({ mode: "erase", size: 40, keys: [{ frame: 0, points: [[x, y]] }] })), "", `${x}, ${y}`);
    }
  }
});

test("a shape that changes nothing for another reason is told that one", async () => {
  const far = [{ frame: 0, points: [[0.95, 0.5]] }];
  assert.match(await why(boxed, shape({ mode: "erase", size: 8, keys: far })), /is kept already/);
  assert.match(await why(boxed, shape({})), /is regenerated already/);
  assert.match(await why(boxed, shape({ strength: 0, keys: far })), /strength of the shape is 0%/);
  assert.equal(await why(boxed, shape({ keys: far })), "");
  const kept = withRanges(boxed, "video", [{ from: 0, to: 39, value: 0 }]);
  assert.match(await why(kept, shape({ keys: far })), /ranges of the “picture” lane decide/);
  const half = withRanges(boxed, "video", [{ from: 0, to: 22, value: 0 }]);
  assert.equal(await why(half, shape({ keys: far })), "", "it counts in the other half");
  const carried = { video: new Float32Array(12 * 8 * 4).fill(1), audio: new Float32Array(2 * 65) };
  assert.match(await why(boxed, shape({ mode: "erase", size: 8, keys: far }), carried), /violet mask came with the latent/);
});

test("nobody waits for the reason: it is worked out a little at a time, and no farther than it is wanted", async () => {
  const size = { width: 1344, height: 768, frames: 243 };
  const moving = [{ frame: 0, points: BOX.keys[0].points }, { frame: 242, offset: [0.2, 0] }];
  const before = addLayer(emptyDocument(size), { ...BOX, range: [0, 243], keys: moving });
  const after = addLayer(before, shape({ mode: "erase", size: 2, range: [0, 243], keys: [{ frame: 0, points: [[0.98, 0.98]] }] }));
  let [asked, rests] = [0, 0];
  const timer = setInterval(() => rests++, 1);
  const edit = { before, after, rasters: new Map() };
  const said = await whyNothing(new MaskCells(size), edit);
  clearInterval(timer);
  assert.match(said, /is kept already/);
  assert.ok(rests > 3, `${rests}`);
  await whyNothing(new MaskCells(size), edit, () => ++asked < 5);
  assert.equal(asked, 5);
});

test("that a range decides is told to who is about to paint, not only once something is painted", () => {
  const kept = withRanges(emptyDocument(SIZE), "video", [{ from: 5, to: 22, value: 0 }]);
  assert.equal(overruled(kept, 7, false), "");
  assert.match(overruled(kept, 7, true), /keeps all of this frame.*Delete the range/);
  assert.equal(overruled(kept, 30, true), "");
  assert.match(overruled({ ...kept, layers: [BOX] }, 7, false), /keeps all of this frame/);
});

test("a preset says how many ranges it replaced, and nothing where there were none to replace", () => {
  const edit = withRanges(withRanges(emptyDocument(SIZE), "video", [{ from: 0, to: 5, value: 1 }, { from: 9, to: 13, value: 1 }]),
    "audio", [{ from: 0, to: 39, value: 1 }]);
  const about = { frames: 39, seconds: 1 };
  assert.match(presetRemark(edit, applyPreset(edit, "redo-end", about)), /^Replaced 3 ranges\. Kept: frames 0–12 /);
  assert.equal(presetRemark(edit, applyPreset(edit, "box", about)), "Replaced 2 ranges.");
  assert.equal(presetRemark(edit, applyPreset(edit, "only-sound", about)), "Replaced 2 ranges.", "the sound's is as it was");
  assert.equal(presetRemark(emptyDocument(SIZE), applyPreset(emptyDocument(SIZE), "only-sound", about)), "");
  const loud = { ...edit, audio: { ...edit.audio, base: 1 } };
  assert.match(presetRemark(loud, applyPreset(loud, "only-picture", about)), /sound elsewhere is kept again/);
});

test("an edit of another aspect or length is told, of another size of the same shot not, nor an empty one", () => {
  assert.match(mismatchOf(boxed, { ...SIZE, frames: 56 }), /painted on 128x64, 39 frames; the latent is 128x64, 56 frames/);
  assert.match(mismatchOf(boxed, { ...SIZE, height: 96 }), /128x96/);
  assert.equal(mismatchOf(boxed, { ...SIZE, width: 256, height: 128 }), "");
  assert.equal(mismatchOf(emptyDocument(SIZE), { ...SIZE, frames: 56 }), "");
});

test("a clip's own frames end where its last picture is held, unless it is another clip or a longer shot", () => {
  assert.deepEqual([30, 39, 0, 22, 60].map((clip) => ownFrames(39, clip)), [30, 39, 39, 39, 39]);
});

test("the middle of cells is counted from the left edge to the right one", () => {
  const cells = new Float32Array(16);
  assert.equal(middleOfCells(cells, 8), null);
  cells[1] = cells[8 + 2] = 0.5;
  assert.equal(middleOfCells(cells, 8), 0.25);
  assert.equal(middleOfCells(cells.fill(1), 8), 0.5);
});
