// Which tab's run an output is of, where two tabs share their nodes' ids and the workflow's.
import assert from "node:assert/strict";
import { test } from "node:test";
import { runsOf } from "../../web/mask_editor/runs.js";

/** A page of ComfyUI with two tabs of one template. The server answers when `answer` is called. */
function page() {
  const [first, second] = [{}, {}];
  const api = new EventTarget();
  const app = { api, graph: { id: "template" }, nodeOutputs: {}, extensionManager: { workflow: { activeWorkflow: first } } };
  const waiting = [];
  const opened = [];
  app.loadGraphData = () => new Promise((done, fail) => opened.push({ done, fail }));
  api.queuePrompt = () => new Promise((done, fail) => waiting.push({ done, fail }));
  // As ComfyUI does it: what a run left goes to the node of that id, whatever tab is in front.
  api.addEventListener("executed", ({ detail }) => (app.nodeOutputs[detail.node] = detail.output));
  const runs = runsOf(app);
  return {
    app, api, runs, opened,
    show: (tab) => (app.extensionManager.workflow.activeWorkflow = tab === 1 ? first : second),
    answer: (id) => waiting.shift().done({ prompt_id: id }),
    refuse: () => waiting.shift().fail(new Error("refused")),
    async tell(node, output, prompt) {
      api.dispatchEvent(Object.assign(new Event("executed"), { detail: { node, output, prompt_id: prompt } }));
      await new Promise((done) => setTimeout(done));
    },
  };
}

test("what a run left goes to the tab that queued it, while another is in front and when it is back", async () => {
  const { app, api, runs, show, answer, tell } = page();
  void api.queuePrompt(0, {});
  answer("p1");
  show(2);
  const heard = [];
  runs.listen((node) => heard.push(node));
  const output = { h3_mask: [{ key: "a" }] };
  await tell("5", output, "p1");
  assert.equal(app.nodeOutputs["5"], output, "ComfyUI gives it to the wrong tab");
  assert.deepEqual([runs.outputs()["5"], heard], [undefined, []]);
  assert.ok(!runs.isOfTab("p1", "template"));
  show(1);
  app.nodeOutputs = {};
  assert.equal(runs.outputs()["5"], output);
  assert.ok(runs.isOfTab(runs.promptOf(output), "another workflow"), "a copy's answer may come from the cache");
});

test("a tab's own run takes the place of a strange one's", async () => {
  const { api, runs, show, answer, tell } = page();
  void api.queuePrompt(0, {});
  answer("p1");
  show(2);
  await tell("5", { of: 1 }, "p1");
  void api.queuePrompt(0, {});
  answer("p2");
  await tell("5", { of: 2 }, "p2");
  assert.deepEqual(runs.outputs(), { 5: { of: 2 } });
  show(1);
  assert.deepEqual(runs.outputs(), { 5: { of: 1 } });
});

test("a run that tells of itself before the server has named it is not given to the wrong tab", async () => {
  const { api, runs, show, answer, tell } = page();
  void api.queuePrompt(0, {});
  show(2);
  await tell("5", { of: 1 }, "p1");
  assert.deepEqual(runs.outputs(), {});
  answer("p1");
  await runs.settled();
  await runs.settled();
  assert.equal(runs.outputs()["5"], undefined);
  show(1);
  assert.deepEqual(runs.outputs()["5"], { of: 1 });
});

test("of a run that this page did not queue the workflow's id decides, and a refused one leaves nothing waiting", async () => {
  const { api, runs, refuse } = page();
  const asked = api.queuePrompt(0, {});
  refuse();
  await assert.rejects(asked, /refused/);
  await runs.settled();
  assert.equal(runs.asked.size, 0);
  assert.ok(runs.isOfTab("unknown", "template"));
  assert.ok(runs.isOfTab(undefined, null));
  assert.ok(!runs.isOfTab("unknown", "another workflow"));
});

test("while a graph is opened whose tab is not in front yet, nothing of the tab before is given to it", async () => {
  globalThis.requestAnimationFrame = (done) => setTimeout(done);
  const { app, api, runs, opened, show, answer, tell } = page();
  void api.queuePrompt(0, {});
  answer("p1");
  await tell("5", { of: 1 }, "p1");
  const asked = app.loadGraphData({}, true, true);
  app.nodeOutputs = {}; // ComfyUI has cleared the page, and opens the graph
  let arrived = false;
  const arriving = runs.arrived().then(() => (arrived = true));
  await new Promise((done) => setTimeout(done, 10));
  assert.deepEqual([runs.outputs(), runs.isOfTab("p1", "template"), arrived], [{}, false, false]);
  show(2);
  await arriving;
  assert.deepEqual(runs.outputs(), {});
  opened.shift().done("opened");
  assert.equal(await asked, "opened");

  // The tab that was in front is opened again, as ComfyUI's undo does it, and then a file that cannot be read.
  show(1);
  for (const end of ["done", "fail"]) {
    const again = app.loadGraphData({}, true, true).catch(() => {});
    assert.deepEqual(runs.outputs(), {});
    opened.shift()[end](new Error("cannot be read"));
    await again;
    await runs.arrived();
    assert.deepEqual(runs.outputs(), { 5: { of: 1 } });
  }
});
