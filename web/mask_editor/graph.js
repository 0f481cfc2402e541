// What the graph around a node tells: the size of its latent, the file of its source, the result behind it. Nothing is run.

import { canvasOfClip, framesOfSeconds } from "./grid.js";

/** @typedef {import("../../../scripts/app.js").GraphNode} GraphNode */
/** @typedef {import("./cells.js").Size} Size */
/** @typedef {import("./frames.js").Source} Source */
/** @typedef {import("./frames.js").Facts} Facts */
/** @typedef {{ filename: string, subfolder?: string, type?: string }} SavedFile */

const FAR = 40; // nodes
const CLIP = /\.(mp4|webm|mov|mkv|avi|m4v|gif|webp|png|jpe?g)$/i;

/**
 * Return a widget's value, undefined when there is none.
 * @param {GraphNode} node
 * @param {string} name
 */
export function valueOf(node, name) {
  return node.widgets?.find((widget) => widget.name === name)?.value;
}

/**
 * Return the node that an input is connected to, through the nodes that only bend a line.
 * @param {GraphNode} node
 * @param {string} name
 */
function before(node, name) {
  const slot = node.inputs?.findIndex((input) => input.name === name) ?? -1;
  let found = slot < 0 ? null : (node.getInputNode?.(slot) ?? null);
  for (let far = 0; found?.type === "Reroute" && far < FAR; far++) found = found.getInputNode?.(0) ?? null;
  return found;
}

/**
 * Return all that comes before an input (or all inputs), the nearest first.
 * @param {GraphNode} node
 * @param {string} [name]
 * @returns {GraphNode[]}
 */
export function upstream(node, name) {
  const found = new Set();
  const names = (/** @type {GraphNode} */ of) => (of.inputs ?? []).map((input) => input.name);
  let edge = (name ? [name] : names(node)).map((input) => before(node, input));
  while (edge.length && found.size < FAR) {
    const fresh = edge.filter((other) => other && !found.has(other));
    for (const other of fresh) found.add(other);
    edge = fresh.flatMap((other) => (other ? names(other).map((input) => before(other, input)) : []));
  }
  return [...found];
}

/**
 * Return all that comes behind a node, the nearest first.
 * @param {GraphNode} node
 * @returns {GraphNode[]}
 */
export function downstream(node) {
  /** @type {Set<GraphNode>} */
  const found = new Set();
  let edge = [node];
  while (edge.length && found.size < FAR) {
    edge = edge.flatMap((other) => (other.outputs ?? []).flatMap((_, slot) => other.getOutputNodes?.(slot) ?? []));
    edge = edge.filter((other) => !found.has(other));
    for (const other of edge) found.add(other);
  }
  return [...found];
}

/** Nodes that hand on a latent of the same size, and their input for it. @type {Record<string, string>} */
const SAME_SIZE = {
  H3EngineLatentMask: "latent",
  H3EngineMaskFromImages: "latent",
  H3EngineSampler: "latent",
  H3EngineSaveLatent: "latent",
  SetLatentNoiseMask: "samples",
};

/**
 * Return the node that decides the size of a node's latent, null when none is connected.
 * @param {GraphNode} node
 */
export function originOfLatent(node) {
  let found = before(node, "latent");
  for (let far = 0; found && far < FAR; far++) {
    const input = SAME_SIZE[found.type ?? ""];
    if (!input) break;
    found = before(found, input);
  }
  return found;
}

/**
 * Return the size that the graph gives a node's latent, as the engine would make it; null where only a run tells.
 * @param {GraphNode} node
 * @param {(file: string) => Facts | null} factsOf a clip's file, null while they are not known
 * @returns {Size | null}
 */
export function sizeInGraph(node, factsOf) {
  const origin = originOfLatent(node);
  if (!origin) return null;
  // What is connected to these is known to a run alone.
  if (["width", "height", "seconds"].some((name) => before(origin, name))) return null;
  const [width, height, seconds] = ["width", "height", "seconds"].map((name) => Number(valueOf(origin, name) ?? 0));
  if (origin.type === "H3EngineEncodeMedia") return sizeOfClip(origin, { width, height }, factsOf);
  if (!["H3EngineEmptyLatent", "H3EngineKeyframes"].includes(origin.type ?? "")) return null;
  return width && height && seconds ? { width, height, frames: framesOfSeconds(seconds) } : null;
}

/**
 * @param {GraphNode} encode
 * @param {{ width: number, height: number }} asked 0: both follow the clip
 * @param {(file: string) => Facts | null} factsOf
 * @returns {Size | null}
 */
function sizeOfClip(encode, asked, factsOf) {
  const file = clipOf(encode);
  const facts = file ? factsOf(file) : null;
  const size = facts && canvasOfClip(facts);
  if (!size || !asked.width !== !asked.height) return null;
  return asked.width ? { ...asked, frames: size.frames } : size;
}

/**
 * Return the file whose whole clip, at its own rate, an Encode Media node is given; "" when that is not so.
 * @param {GraphNode} encode
 */
function clipOf(encode) {
  const images = before(encode, "images");
  let loader = before(encode, "video") ?? images;
  if (loader === images && loader?.type === "GetVideoComponents") {
    loader = before(encode, "fps") === loader ? before(loader, "video") : null;
  }
  const name = loader?.type === "LoadVideo" ? "file" : loader?.type === "LoadImage" ? "image" : "";
  const value = loader && name ? valueOf(loader, name) : "";
  return typeof value === "string" ? value : "";
}

/**
 * Return the node before an editor's latent that has no clip yet, and its file's name ("" where none is chosen); null when
 * there is none such.
 * @param {GraphNode} node
 * @param {(file: string) => boolean} gone whether a file is known not to be there
 * @returns {{ loader: string, file: string } | null}
 */
export function missingClip(node, gone) {
  const loader = upstream(node, "latent").find((other) => other.type === "LoadVideo" || other.type === "LoadImage");
  if (!loader) return null;
  const [name, value] = loader.type === "LoadVideo" ? ["Load Video", valueOf(loader, "file")] : ["Load Image", valueOf(loader, "image")];
  const file = typeof value === "string" ? value : "";
  return !file || gone(file) ? { loader: name, file } : null;
}

/**
 * Return the file that the source's frames are read from, null when there is none (or something changes them on the way).
 * @param {GraphNode} node
 * @returns {Source | null}
 */
export function sourceInGraph(node) {
  const plain = ["LoadVideo", "GetVideoComponents", "LoadImage", "H3EngineEncodeMedia"];
  const nodes = upstream(node, "source_images");
  const found = nodes.length ? nodes : upstream(node, "latent");
  const loader = found.find((other) => other.type === "LoadVideo" || other.type === "LoadImage");
  const known = found.every((other) => plain.includes(other.type ?? "") || other.type === "H3EngineConnect");
  const value = loader && valueOf(loader, loader.type === "LoadVideo" ? "file" : "image");
  return known && typeof value === "string" && value ? { file: value } : null;
}

/**
 * Return the clip in the outputs of the nodes behind a node.
 * @param {GraphNode} node
 * @param {Record<string, Record<string, unknown>>} outputs of the last runs, by the node's id
 * @returns {Source | null}
 */
export function resultInGraph(node, outputs) {
  for (const other of downstream(node)) {
    const shown = outputs[String(other.id)] ?? {};
    const files = /** @type {SavedFile[]} */ ([shown.images, shown.video, shown.videos, shown.gifs].flat().filter(Boolean));
    const file = files.find((found) => found.filename && CLIP.test(found.filename));
    if (file) return { file: `${file.subfolder ? `${file.subfolder}/` : ""}${file.filename} [${file.type ?? "output"}]` };
  }
  return null;
}

/**
 * Return how many steps the sampler behind a node takes.
 * @param {GraphNode} node
 */
export function stepsInGraph(node) {
  const sampler = downstream(node).find((other) => other.type === "H3EngineSampler");
  return sampler ? Number(valueOf(sampler, "steps")) || null : null;
}
