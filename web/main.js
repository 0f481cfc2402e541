// The only file that registers an extension. The nodes work without it.
import { app } from "../../scripts/app.js";
import { valuesToLoad, valuesToSave } from "./lib/serialise.js";
import { attachEditor, editorOf, NODE } from "./mask_editor/widget.js";

app.registerExtension({
  name: "MiniMaxH3.Engine",
  settings: [
    {
      id: "H3Engine.Token",
      category: ["MiniMax H3 Engine", "Engine", "Token"],
      name: "Token of the engine",
      tooltip: "Sent to engines that are attached by their URL. Not used while the variable H3_ENGINE_TOKEN is set.",
      type: "text",
      defaultValue: "",
      attrs: { type: "password", autocomplete: "off" },
    },
  ],
  beforeRegisterNodeDef(nodeType, nodeData) {
    if (!nodeData.name.startsWith("H3Engine")) return;
    const { configure, serialize } = nodeType.prototype;
    /** @param {{ widgets_values?: unknown[] }} saved */
    nodeType.prototype.configure = function (saved) {
      const values = saved.widgets_values;
      const known = values && { ...saved, widgets_values: valuesToLoad(this.widgets ?? [], values) };
      return configure.call(this, known ?? saved);
    };
    nodeType.prototype.serialize = function () {
      const saved = serialize.call(this);
      if (saved.widgets_values) saved.widgets_values = valuesToSave(this.widgets ?? [], saved.widgets_values);
      return saved;
    };
  },
  nodeCreated(node) {
    if (node.comfyClass === NODE) attachEditor(node, app);
  },
  setup() {
    window.h3Engine = { ready: true, maskEditor: editorOf };
  },
});
