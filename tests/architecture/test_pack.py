"""The parts of the node pack that have to agree: nodes, help, locales, workflows, web modules."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.architecture.source import ROOT, Module, modules

CORE_NODES = frozenset(
    {"SaveVideo", "CreateVideo", "LoadVideo", "LoadImage", "LoadAudio", "SaveImage", "PreviewImage", "PreviewAudio",
     "SaveAudio", "SaveLatent", "LoadLatent", "GetVideoComponents",
     "PrimitiveInt", "PrimitiveFloat", "PrimitiveString", "MarkdownNote",
     "Note", "PrimitiveNode", "Reroute"}
)  # fmt: skip
"""ComfyUI's own nodes that our workflows may use."""
DOM_WORDS = re.compile(r"\b(document|window|HTMLElement|localStorage|navigator)\b")
WIDGET_TYPES = frozenset({"INT", "FLOAT", "STRING", "BOOLEAN", "COMBO"})
PURE_NAMES = ("geometry", "document", "serialise", "serialize")


def node_ids(found: list[Module]) -> set[str]:
    """Return every ``node_id="…"`` of these modules."""
    return {
        keyword.value.value
        for module in found
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg == "node_id" and isinstance(keyword.value, ast.Constant) and isinstance(keyword.value.value, str)
    }


OUR_IDS = node_ids(modules("comfy_h3"))


def workflow_nodes(workflow: dict[str, Any]) -> set[str]:
    """Return the node types of a workflow, those inside its subgraphs too."""
    subgraphs = workflow.get("definitions", {}).get("subgraphs", [])
    inside = {graph["id"] for graph in subgraphs}
    types = {node["type"] for graph in [workflow, *subgraphs] for node in graph["nodes"]}
    return types - inside


def strangers(workflow: dict[str, Any], ours: set[str]) -> set[str]:
    """Return the node types that are neither ours nor core's."""
    return workflow_nodes(workflow) - ours - CORE_NODES


def workflows() -> list[Path]:
    """Return the workflow files."""
    return sorted((ROOT / "workflows").glob("*.json"))


def test_the_pack_has_the_six_nodes_of_the_main_road() -> None:
    assert {f"H3Engine{name}" for name in
            ("Connect", "TextEncode", "EmptyLatent", "Sampler", "Decode", "DecodeToVideo")} <= OUR_IDS  # fmt: skip


def test_every_node_id_starts_with_our_name() -> None:
    assert [name for name in OUR_IDS if not name.startswith("H3Engine")] == []


def test_workflows_use_our_nodes_and_cores_only() -> None:
    assert workflows()
    assert {path.name: strangers(json.loads(path.read_text()), OUR_IDS) for path in workflows()} == {
        path.name: set() for path in workflows()
    }


def test_a_stranger_in_a_workflow_is_seen() -> None:
    subgraph = {"id": "g", "nodes": [{"type": "SomebodyElsesNode"}]}
    planted = {"nodes": [{"type": "SaveVideo"}, {"type": "g"}], "definitions": {"subgraphs": [subgraph]}}
    assert strangers(planted, OUR_IDS) == {"SomebodyElsesNode"}


def test_every_workflow_has_its_thumbnail() -> None:
    assert [path.name for path in workflows() if not path.with_suffix(".jpg").is_file()] == []


@pytest.mark.parametrize("node_id", sorted(OUR_IDS))
def test_every_node_has_a_help_page_that_says_something(node_id: str) -> None:
    page = ROOT / "web" / "docs" / node_id / "en.md"
    assert page.is_file()
    assert len(page.read_text().split()) >= 30


def test_no_help_page_is_left_over() -> None:
    assert {page.name for page in (ROOT / "web" / "docs").iterdir()} == OUR_IDS


def test_every_node_has_a_locale_entry() -> None:
    names = json.loads((ROOT / "locales" / "en" / "nodeDefs.json").read_text())
    assert set(names) == OUR_IDS
    assert [name for name, entry in names.items() if not entry.get("display_name")] == []


def widgets_of(schema: dict[str, Any]) -> set[str]:
    """Return the inputs that a user sets on the node itself."""
    groups = schema["inputs"].values()
    return {name for group in groups for name, spec in group.items() if spec["type"] in WIDGET_TYPES}


def test_our_nodes_in_workflows_have_every_widget() -> None:
    schemas = json.loads((ROOT / "tests" / "comfyui" / "schemas.json").read_text())
    for path in workflows():
        for node in json.loads(path.read_text())["nodes"]:
            if node["type"] in OUR_IDS:
                shown = {slot["name"] for slot in node["inputs"] if "widget" in slot}
                assert shown == widgets_of(schemas[node["type"]]), (path.name, node["type"])


# Masks as a batch come from trackers and segmenters, which are other packs' nodes.
WITHOUT_TEMPLATE = frozenset({"H3EngineMaskFromImages"})


def test_every_node_appears_in_a_workflow() -> None:
    used = set().union(*(workflow_nodes(json.loads(path.read_text())) for path in workflows()))
    assert OUR_IDS - used == WITHOUT_TEMPLATE


def registrations(sources: dict[str, str]) -> set[str]:
    """Return the scripts that register an extension."""
    return {path for path, text in sources.items() if "registerExtension" in text}


def impure(sources: dict[str, str]) -> set[str]:
    """Return the geometry, document and serialisation modules that touch the page."""
    return {
        path
        for path, text in sources.items()
        if Path(path).stem.startswith(PURE_NAMES) and DOM_WORDS.search(re.sub(r"//.*|/\*[\s\S]*?\*/", "", text))
    }


def scripts() -> dict[str, str]:
    """Return every script of ``web`` by its path."""
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in sorted((ROOT / "web").rglob("*.js"))}


def test_only_main_registers_an_extension() -> None:
    assert registrations(scripts()) == {"web/main.js"}
    assert registrations({"web/panel/x.js": "app.registerExtension({})"}) == {"web/panel/x.js"}


def test_pure_web_modules_touch_no_page() -> None:
    assert impure(scripts()) == set()
    assert impure({"web/lib/geometry.js": "const w = window.innerWidth;"}) == {"web/lib/geometry.js"}
    assert impure({"web/lib/geometry.js": "// the window of frames\nexport const a = 1;"}) == set()
