// What the graph tells of a latent's size before anything has run.
import assert from "node:assert/strict";
import { test } from "node:test";
import { canvasOfClip, framesOfSeconds } from "../../web/mask_editor/grid.js";
import { originOfLatent, sizeInGraph } from "../../web/mask_editor/graph.js";

/** A node of the graph: its widgets' values, and what its inputs are connected to. */
function node(type, values = {}, from = {}) {
  const inputs = Object.keys(from).map((name) => ({ name }));
  return {
    type,
    widgets: Object.entries(values).map(([name, value]) => ({ name, value })),
    inputs,
    getInputNode: (slot) => from[inputs[slot].name],
  };
}

const CLIP = { width: 1280, height: 720, frames: 124, peaks: null };
const known = (files) => (file) => files[file] ?? null;
const masked = (latent) => node("H3EngineLatentMask", {}, { latent });

test("a clip's sides go to the nearest multiple of 32, a half to the even one, its frames up to the next 17n+5", () => {
  assert.deepEqual(canvasOfClip(CLIP), { width: 1280, height: 704, frames: 124 });
  assert.deepEqual(canvasOfClip({ width: 1920, height: 1080, frames: 125 }), { width: 1920, height: 1088, frames: 141 });
  assert.deepEqual(canvasOfClip({ width: 48, height: 20, frames: 1 }), { width: 64, height: 32, frames: 5 });
  assert.equal(canvasOfClip({ width: 2000, height: 100, frames: 24 }), null, "more than 4:1 is refused by the engine");
  assert.equal(canvasOfClip({ width: 640, height: 352, frames: 24 * 600 }), null, "too long to edit in one piece");
  assert.deepEqual([0.1, 0.9, 5, 5.2].map(framesOfSeconds), [5, 22, 124, 141]);
});

test("a clip that is encoded gives its size, through samplers, masks and bent lines", () => {
  const load = node("LoadVideo", { file: "a.mp4" });
  const encode = node("H3EngineEncodeMedia", { width: 0, height: 0, fps: 24 }, { video: node("Reroute", {}, { "": load }) });
  const size = { width: 1280, height: 704, frames: 124 };
  assert.deepEqual(sizeInGraph(masked(encode), known({ "a.mp4": CLIP })), size);
  const far = node("SetLatentNoiseMask", {}, { samples: node("H3EngineSampler", {}, { latent: encode }) });
  assert.deepEqual(sizeInGraph(masked(far), known({ "a.mp4": CLIP })), size);
  assert.equal(originOfLatent(masked(far)), encode);
  assert.equal(sizeInGraph(masked(encode), known({})), null, "until the server has told the facts");
});

test("sizes that are asked for go before the clip's, and what only a run tells is not guessed", () => {
  const load = node("LoadVideo", { file: "a.mp4" });
  const facts = known({ "a.mp4": CLIP });
  const encode = (values, from) => masked(node("H3EngineEncodeMedia", { width: 0, height: 0, fps: 24, ...values }, from));
  assert.deepEqual(sizeInGraph(encode({ width: 640, height: 384 }, { video: load }), facts), { width: 640, height: 384, frames: 124 });
  assert.equal(sizeInGraph(encode({ width: 640 }, { video: load }), facts), null, "the engine refuses one side alone");
  assert.equal(sizeInGraph(encode({}, { video: load, width: node("PrimitiveInt") }), facts), null);
  assert.equal(sizeInGraph(encode({}, { video: node("VideoSlice", {}, { video: load }) }), facts), null);
  const parts = node("GetVideoComponents", {}, { video: load });
  assert.equal(sizeInGraph(encode({}, { images: parts }), facts), null, "at another rate it is of another length");
  assert.deepEqual(sizeInGraph(encode({}, { images: parts, fps: parts }), facts)?.frames, 124);
  assert.equal(sizeInGraph(masked(node("H3EngineLoadLatent", { latent: "x" })), facts), null);
});
