// The editor's node, as the editor knows it; widget.js makes one.

/** @typedef {import("./cells.js").Size} Size */
/** @typedef {import("./frames.js").Source} Source */
/**
 * What the editor needs of its node.
 * @typedef {object} Host
 * @property {(text: string) => void} save writes the widget's text
 * @property {(route: string) => string} url
 * @property {() => Size | null} size of the latent, as far as the graph tells
 * @property {() => string | null} carried key of the mask that the latent came with
 * @property {() => boolean} edited whether the document is another one than in the last run
 * @property {() => string[]} notes what the last run had to say
 * @property {() => { loader: string, file: string } | null} missing the node that has no clip yet, and its file that is not there
 * @property {() => boolean} connected whether there is a latent
 * @property {(gone: string) => Source | null} source of the frames; gone: key of a clip that is not kept any more
 * @property {() => Source | null} result of the last run
 * @property {() => number | null} seconds that the last run's sampling took
 * @property {() => void} run everything that leads to this node
 * @property {(files: File[]) => Promise<string>} upload returns the name of a raster's file
 * @property {(full: boolean) => void} full
 */

export {};
