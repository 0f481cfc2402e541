"""What the pages say of options, nodes and packages is what the code has."""

from __future__ import annotations

import re

import tomllib

from engine.config import OPTIONS, Option
from tests.architecture.source import ROOT
from tests.architecture.test_pack import OUR_IDS

README = (ROOT / "README.md").read_text()


def test_the_readme_lists_every_option_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `(--[\w-]+)` \| (.*?) \|", README, re.MULTILINE))
    assert rows == {option.flag: default_text(option) for option in OPTIONS}


def default_text(option: Option) -> str:
    """Return how the table shows the default of ``option``."""
    if option.kind is list:
        return "all"
    return {None: "none", False: "off"}.get(option.default, f"`{option.default}`")


def test_the_readme_lists_every_node() -> None:
    rows = re.findall(r"^\| (H3 Engine [\w ]+?) \|", README, re.MULTILINE)
    assert {name.title().replace(" ", "") for name in rows} == OUR_IDS


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
