// The part of ComfyUI's frontend that our code uses, as it is served at /scripts/app.js.

interface Setting {
  id: string;
  category: string[];
  name: string;
  tooltip: string;
  type: "text";
  defaultValue: string;
  attrs: Record<string, string>;
}

interface SavedNode {
  widgets_values?: unknown[];
}

interface GraphNode {
  widgets?: { name: string; value: unknown }[];
  configure(saved: SavedNode): void;
  serialize(): SavedNode;
}

interface Extension {
  name: string;
  settings?: Setting[];
  beforeRegisterNodeDef?(nodeType: { prototype: GraphNode }, nodeData: { name: string }): void;
  setup?(): void;
}

export const app: { registerExtension(extension: Extension): void };

declare global {
  interface Window {
    /** Set once our extension is set up. */
    h3Engine?: { ready: boolean };
  }
}
