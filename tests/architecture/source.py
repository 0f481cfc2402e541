"""Reading our own source: modules, their imports, their functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("engine", "comfy_h3")


@dataclass(frozen=True)
class Import:
    """One imported module.

    Attributes:
        target: absolute dotted name, ours starting with ``engine`` or ``comfy_h3``.
        relative: whether it was written with dots.
        lazy: inside a function. typing_only: under ``if TYPE_CHECKING``.
        line: where.
    """

    target: str
    relative: bool
    lazy: bool
    typing_only: bool
    line: int


@dataclass(frozen=True)
class Module:
    """A Python file: ``path`` from the repository's root, and its text."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The parsed file."""
        return ast.parse(self.text, self.path)

    @property
    def name(self) -> str:
        """The dotted name from the root, ``engine.server`` for ``engine/server/__init__.py``."""
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @property
    def package(self) -> str:
        """The dotted name that one leading dot means."""
        return self.name if self.path.endswith("__init__.py") else self.name.rpartition(".")[0]

    @cached_property
    def imports(self) -> list[Import]:
        """Every import statement, one entry a name (``from . import a, b`` gives two)."""
        return list(_imports(self, self.tree, lazy=False, typing_only=False))

    @cached_property
    def functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        """Every function and method."""
        return [node for node in ast.walk(self.tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]


def _imports(module: Module, node: ast.AST, *, lazy: bool, typing_only: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(alias.name, False, lazy, typing_only, child.lineno)
        elif isinstance(child, ast.ImportFrom):
            base = _base(module, child)
            for alias in child.names:
                yield Import(f"{base}.{alias.name}".strip("."), child.level > 0, lazy, typing_only, child.lineno)
        else:
            inside = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            checking = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            yield from _imports(module, child, lazy=lazy or inside, typing_only=typing_only or checking)


def _base(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = module.package.split(".") if module.package else []
    parts = parts[: len(parts) - (node.level - 1)]
    return ".".join([*parts, *([node.module] if node.module else [])])


def modules(*folders: str) -> list[Module]:
    """Return the Python files of these folders (both packages by default)."""
    files = [file for folder in folders or PACKAGES for file in sorted((ROOT / folder).rglob("*.py"))]
    return [Module(file.relative_to(ROOT).as_posix(), file.read_text()) for file in files]


def starts(target: str, *names: str) -> bool:
    """Return whether ``target`` is one of the dotted ``names`` or lies inside one."""
    return any(target == name or target.startswith(name + ".") for name in names)
