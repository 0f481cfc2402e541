// The only file that registers an extension. The nodes work without it.
import { app } from "../../scripts/app.js";

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
  setup() {
    window.h3Engine = { ready: true };
  },
});
