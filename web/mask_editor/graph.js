// What the graph around a node tells: the size of its latent, the file of its source, the result behind it. Nothing is run.

import { FPS } from "./cells.js";

/** @typedef {import("../../../scripts/app.js").GraphNode} GraphNode */
/** @typedef {import("./cells.js").Size} Size */
/** @typedef {import("./frames.js").Source} Source */
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
 * Return the node that an input is connected to.
 * @param {GraphNode} node
 * @param {string} name
 */
function before(node, name) {
  const slot = node.inputs?.findIndex((input) => input.name === name) ?? -1;
  return slot < 0 ? null : (node.getInputNode?.(slot) ?? null);
}

/**
 * Return all that comes before an input (or all inputs), the nearest first.
 * @param {GraphNode} node
 * @param {string} [name]
 * @returns {GraphNode[]}
 */
function upstream(node, name) {
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

/**
 * Return the size that the graph gives a node's latent where one node says all of it, else null.
 * @param {GraphNode} node
 * @returns {Size | null}
 */
export function sizeInGraph(node) {
  const first = before(node, "latent");
  if (!first || !["H3EngineEmptyLatent", "H3EngineKeyframes"].includes(first.type ?? "")) return null;
  const [width, height, seconds] = ["width", "height", "seconds"].map((name) => Number(valueOf(first, name)));
  if (!width || !height || !seconds) return null;
  const frames = Math.max(5, Math.ceil((Math.round(seconds * FPS) - 5) / 17) * 17 + 5);
  return { width, height, frames };
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
