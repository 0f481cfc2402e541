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

export interface Widget {
  name: string;
  value: unknown;
  hidden?: boolean;
  callback?(value: unknown): void;
  serialize?: boolean;
  options?: Record<string, unknown>;
}

interface Graph {
  setDirtyCanvas?(foreground: boolean, background: boolean): void;
}

export interface GraphNode {
  id?: string | number;
  type?: string;
  comfyClass?: string;
  size?: [number, number];
  graph?: Graph | null;
  widgets?: Widget[];
  inputs?: { name: string }[];
  outputs?: { name: string }[];
  configure(saved: SavedNode): void;
  serialize(): SavedNode;
  setSize?(size: [number, number]): void;
  getInputNode?(slot: number): GraphNode | null;
  getOutputNodes?(slot: number): GraphNode[] | null;
  addCustomWidget?(widget: Widget): Widget;
  addDOMWidget?(name: string, type: string, element: HTMLElement, options: Record<string, unknown>): Widget;
  onConfigure?(saved: SavedNode): void;
  onExecuted?(output: Record<string, unknown>): void;
  onConnectionsChange?(...change: unknown[]): void;
  onRemoved?(): void;
  onResize?(size: [number, number]): void;
}

interface Extension {
  name: string;
  settings?: Setting[];
  beforeRegisterNodeDef?(nodeType: { prototype: GraphNode }, nodeData: { name: string }): void;
  nodeCreated?(node: GraphNode): void;
  setup?(): void;
}

interface Api extends EventTarget {
  apiURL(route: string): string;
  fetchApi(route: string, options?: RequestInit): Promise<Response>;
  queuePrompt?(...given: unknown[]): Promise<{ prompt_id?: string }>;
}

export interface App {
  graph?: { id?: string; nodes?: GraphNode[] };
  rootGraph?: { id?: string };
  canvas?: { canvas?: HTMLCanvasElement };
  api: Api;
  nodeOutputs?: Record<string, Record<string, unknown>>;
  extensionManager?: { workflow?: { activeWorkflow?: { changeTracker?: { captureCanvasState?(): void; checkState?(): void } } } };
  loadGraphData?(...given: unknown[]): Promise<unknown>;
  queuePrompt(number: number, batchCount: number, nodeIds?: string[]): Promise<unknown>;
  registerExtension(extension: Extension): void;
}

export const app: App;

declare global {
  interface Window {
    LiteGraph?: { vueNodesMode?: boolean };
    /** Set once our extension is set up. */
    h3Engine?: { ready: boolean; maskEditor(node: GraphNode): unknown };
  }
}
