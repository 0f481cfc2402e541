"""What ComfyUI shows of the pack: its nodes, their schemas, web files, help and templates."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.comfyui import PACK_NAME, ComfyUI

pytestmark = pytest.mark.comfyui

SNAPSHOT = Path(__file__).with_name("schemas.json")
TEMPLATES = (
    "extend",
    "fl2va",
    "guides",
    "inpaint",
    "keep_latent",
    "low_memory",
    "redo_sound",
    "ref2va",
    "t2va",
    "t2va_parallel",
    "two_engines",
)
NODE_IDS = (
    "H3EngineConnect",
    "H3EngineTextEncode",
    "H3EngineEmptyLatent",
    "H3EngineSampler",
    "H3EngineDecode",
    "H3EngineDecodeToVideo",
    "H3EngineKeyframes",
    "H3EngineReferenceImage",
    "H3EngineReferenceVideo",
    "H3EngineReferenceAudio",
    "H3EngineGuide",
    "H3EngineEncodeMedia",
    "H3EngineSaveLatent",
    "H3EngineLoadLatent",
    "H3EngineLatentMask",
    "H3EngineMaskFromImages",
    "H3EngineExtend",
    "H3EngineComposite",
    "H3EngineMemory",
)


def _schema(info: dict[str, Any]) -> dict[str, Any]:
    """Return what saved workflows depend on: inputs and outputs in their order, with types and defaults."""
    inputs = {
        group: {
            name: {
                "type": spec[0] if isinstance(spec[0], str) else "COMBO",
                "default": spec[1].get("default"),
            }
            for name, spec in info["input"].get(group, {}).items()
        }
        for group in ("required", "optional")
    }
    return {
        "inputs": inputs,
        "order": info["input_order"],
        "outputs": [list(pair) for pair in zip(info["output"], info["output_name"], strict=True)],
        "category": info["category"],
    }


@pytest.fixture(scope="session")
def object_info(comfyui: ComfyUI) -> dict[str, Any]:
    info = comfyui.get("/object_info")
    return {name: info[name] for name in info if name.startswith("H3Engine")}


def test_all_nodes_are_there(object_info: dict[str, Any]) -> None:
    assert set(object_info) == set(NODE_IDS)


def test_schemas_only_ever_grow(object_info: dict[str, Any]) -> None:
    schemas = {name: _schema(object_info[name]) for name in NODE_IDS}
    if os.environ.get("H3_UPDATE_SNAPSHOTS"):
        SNAPSHOT.write_text(json.dumps(schemas, indent=1) + "\n")
    kept = json.loads(SNAPSHOT.read_text())
    for name, old in kept.items():
        new = schemas[name]
        for group, names in old["order"].items():
            assert new["order"][group][: len(names)] == names, f"{name}: inputs may only be appended"
        assert new["outputs"][: len(old["outputs"])] == old["outputs"], f"{name}: outputs may only be appended"
        for group, inputs in old["inputs"].items():
            for key, spec in inputs.items():
                assert new["inputs"][group][key] == spec, f"{name}.{key} changed"
    assert schemas == kept, "run with H3_UPDATE_SNAPSHOTS=1, and add a line to CHANGELOG.md"


def test_every_input_and_output_says_what_it_is(object_info: dict[str, Any]) -> None:
    for name, info in object_info.items():
        assert info["description"], name
        assert info["category"] == "MiniMax H3/Engine"
        for group in ("required", "optional"):
            for key, spec in info["input"].get(group, {}).items():
                assert spec[1].get("tooltip"), f"{name}.{key}"
        assert all(info["output_name"]), name


def test_the_demo_is_the_first_choice_of_model(object_info: dict[str, Any]) -> None:
    spec = object_info["H3EngineConnect"]["input"]["required"]["model"]
    assert spec[1]["options"][0] == "demo"
    assert spec[1]["default"] == "demo"


def test_every_node_has_a_help_page_and_locale(comfyui: ComfyUI) -> None:
    names = comfyui.get("/i18n")["en"]["nodeDefs"]
    for node_id in NODE_IDS:
        page = comfyui.get_bytes(f"/extensions/{PACK_NAME}/docs/{node_id}/en.md").decode()
        assert page.startswith("# "), node_id
        assert names[node_id]["display_name"]


def test_main_js_is_loaded_as_an_extension_and_otherwise_libraries_alone(comfyui: ComfyUI) -> None:
    # ComfyUI loads every script; that only main.js registers something is tested in tests/architecture.
    ours = {path.removeprefix(f"/extensions/{PACK_NAME}/") for path in comfyui.get("/extensions") if PACK_NAME in path}
    assert "main.js" in ours
    assert {path for path in ours if not path.startswith(("lib/", "mask_editor/"))} == {"main.js"}


def test_the_template_browser_lists_the_workflows_with_their_thumbnails(comfyui: ComfyUI) -> None:
    assert sorted(comfyui.get("/workflow_templates")[PACK_NAME]) == list(TEMPLATES)
    for name in TEMPLATES:
        workflow = comfyui.get(f"/api/workflow_templates/{PACK_NAME}/{name}.json")
        assert workflow["version"] == 0.4
        picture = comfyui.get_bytes(f"/api/workflow_templates/{PACK_NAME}/{name}.jpg")
        assert picture[:3] == b"\xff\xd8\xff"


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_workflow_uses_our_nodes_and_cores_only(comfyui: ComfyUI, name: str) -> None:
    known = comfyui.get("/object_info")
    workflow = comfyui.get(f"/api/workflow_templates/{PACK_NAME}/{name}.json")
    types = [node["type"] for node in workflow["nodes"]]
    assert {"H3EngineConnect", "SaveVideo"} <= set(types)
    for kind in types:
        assert kind in known or kind in ("Note", "MarkdownNote"), kind
