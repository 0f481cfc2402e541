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

interface Extension {
  name: string;
  settings?: Setting[];
  setup?(): void;
}

export const app: { registerExtension(extension: Extension): void };

declare global {
  interface Window {
    /** Set once our extension is set up. */
    h3Engine?: { ready: boolean };
  }
}
