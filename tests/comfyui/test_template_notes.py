"""What the nodes of the editing templates say after a run can be read whole where nodes do not grow by themselves."""

from __future__ import annotations

import json

import pytest

from tests.comfyui.test_browser import ARTIFACTS, _queue
from tests.support.browser import comfyui_page
from tests.support.comfyui import ROOT, ComfyUI

pytestmark = [pytest.mark.comfyui, pytest.mark.browser, pytest.mark.ranks]

_NOTES = """() => { const said = app.graph._nodes.flatMap((node) =>
        node.widgets?.filter((one) => one.name === '$$node-text-preview' && one.value).map((one) => one.value) ?? []);
    return [...document.querySelectorAll('.dom-widget')]
        .filter((place) => said.some((text) => place.innerText.trim() && text.startsWith(place.innerText.slice(0, 20))))
        .map((place) => [place.innerText, Math.max(...[...place.querySelectorAll('*')].map(
            (part) => part.clientHeight && part.scrollHeight - part.clientHeight))]); }"""
"""Of each node's text: how many pixels of it are out of sight."""


@pytest.mark.parametrize(("name", "notes"), [("inpaint", 3), ("redo_sound", 3), ("extend", 4)])
def test_what_the_nodes_of_a_template_say_after_a_run_can_be_read_whole(
    comfyui: ComfyUI, name: str, notes: int
) -> None:
    # The tests' clip is of no length and size of the model's, and so has most said of it.
    workflow = json.loads((ROOT / "workflows" / f"{name}.json").read_text())
    sampler = next(node for node in workflow["nodes"] if node["type"] == "H3EngineSampler")
    sampler["widgets_values"][1] = 500  # A seed of its own, so that ComfyUI's cache does not answer.
    with comfyui_page(comfyui, vue_nodes=False) as page:
        _queue(page, workflow)
        page.wait_for_timeout(500)
        ARTIFACTS.mkdir(exist_ok=True)
        page.screenshot(path=ARTIFACTS / f"notes_{name}.png")
        said = page.evaluate(_NOTES)
    assert len(said) >= notes, said
    assert [text for text, hidden in said if hidden > 1] == []
