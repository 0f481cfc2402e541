"""What the pages say of options, nodes and packages is what the code has."""

from __future__ import annotations

import re

import tomllib

from engine.config import OPTIONS, Option
from tests.architecture.import_rules import room_of
from tests.architecture.source import ROOT, modules
from tests.architecture.test_pack import OUR_IDS, workflows

README = (ROOT / "README.md").read_text()


def test_the_readme_lists_every_option_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `(--[\w-]+)` \| (.*?) \|", README, re.MULTILINE))
    assert rows == {option.flag: default_text(option) for option in OPTIONS}


def default_text(option: Option) -> str:
    """Return how the table shows the default of ``option``."""
    if option.kind is list:
        return "all" if option.bare is None else "none"
    if option.default is False:
        return "off"
    return "none" if option.default is None else f"`{option.default}`"


def test_the_readme_lists_every_node() -> None:
    rows = re.findall(r"^\| (H3 Engine [\w ]+?) \|", README, re.MULTILINE)
    assert {name.title().replace(" ", "") for name in rows} == OUR_IDS


def test_the_readme_names_every_template() -> None:
    sentence = re.search(r"^The templates (.*?) show them", README, re.MULTILINE | re.DOTALL)
    assert sentence
    assert set(re.findall(r"`(\w+)`", sentence[1])) == {path.stem for path in workflows()}


def test_every_dependency_of_the_engine_is_pinned_for_users() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {re.split(r"[<>=]", line)[0].lower() for line in project["dependencies"]}
    pins = dict(re.findall(r"^([\w-]+)==([\w.]+)", (ROOT / "requirements-engine.txt").read_text(), re.MULTILINE))
    assert wanted <= {name.lower() for name in pins}


def test_the_versions_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    version = re.search(r'^ENGINE_VERSION = "(.*)"', (ROOT / "engine/contract/version.py").read_text(), re.MULTILINE)
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert version
    assert newest
    assert project["version"] == version[1] == newest[1]


def test_the_architecture_page_names_every_room() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text()
    rooms = {room_of(module.name) for module in modules("engine") if module.name not in ("engine", "engine.__main__")}
    files = {module.path.split("/")[1] for module in modules("comfy_h3")} - {"__init__.py", "nodes"}
    assert {"server", "stages", "worker"} <= rooms
    assert [room for room in sorted(rooms) if not re.search(rf"\b{room}(/|\*?\.py)", page)] == []
    assert [file for file in sorted(files) if file not in page] == []
