"""Habits of our code: no pickle, no print, no blind except, everything typed and documented."""

from __future__ import annotations

import ast
from collections.abc import Callable

from tests.architecture.source import Module, starts

PICKLE_MODULES = ("pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib")
PICKLE_CALLS = frozenset(
    {"broadcast_object_list", "all_gather_object", "gather_object", "scatter_object_list", "send_object_list",
     "recv_object_list", "torch.load", "torch.save", "eval", "exec"}
)  # fmt: skip
UNSAFE_KEYWORDS = frozenset({"trust_remote_code", "allow_pickle"})
ADMITS_CODE = "engine/models/own_code.py"
"""The one module that runs a checkpoint's code, when the operator said so."""
MIN_DOCSTRING = 20
ENVIRONMENT_READERS = frozenset(
    {
        "engine/env.py",
        "engine/fleet.py",
        "engine/worker.py",
        "engine/devices.py",
        "comfy_h3/host.py",
        "comfy_h3/environment.py",
    }
)
"""``env.py`` reads what users set; the fleet and the workers hand variables down to what they start and load."""


def no_pickle_on_any_road(module: Module) -> list[str]:
    """No pickle modules, no collectives that pickle, no ``torch.load``, no remote code but what one module admits."""
    bad = [
        f"{module.path}:{found.line}: imports {found.target}, which runs what it reads"
        for found in module.imports
        if starts(found.target, *PICKLE_MODULES) or found.target.rpartition(".")[2] in PICKLE_CALLS
    ]
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Dict) and module.path != ADMITS_CODE:
            bad += [
                f"{module.path}:{node.lineno}: {key.value} admits code that arrives"
                for key in node.keys
                if isinstance(key, ast.Constant) and key.value in UNSAFE_KEYWORDS
            ]
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        if called in PICKLE_CALLS or called.rpartition(".")[2] in {name for name in PICKLE_CALLS if "_" in name}:
            bad.append(f"{module.path}:{node.lineno}: {called} runs what it reads")
        bad += [
            f"{module.path}:{node.lineno}: {keyword.arg}=True runs what it reads"
            for keyword in node.keywords
            if keyword.arg in UNSAFE_KEYWORDS and not _is_false(keyword.value)
        ]
    return bad


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def no_print(module: Module) -> list[str]:
    """Logging tells, the command line's results go through one function."""
    return [
        f"{module.path}:{node.lineno}: print"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "pprint", "pprint.pprint")
    ]


def no_swallowed_exception(module: Module) -> list[str]:
    """No bare except; a handler of everything raises again, logs the traceback, or uses the exception."""
    bad = []
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.ExceptHandler):
            continue
        caught = ast.unparse(node.type) if node.type else None
        if caught is None:
            bad.append(f"{module.path}:{node.lineno}: bare except")
        elif caught in ("Exception", "BaseException") and not _accounts_for(node):
            bad.append(f"{module.path}:{node.lineno}: except {caught} drops the error")
    return bad


def _accounts_for(handler: ast.ExceptHandler) -> bool:
    for node in ast.walk(handler):
        if isinstance(node, ast.Raise):
            return True
        if isinstance(node, ast.Attribute) and node.attr == "exception":
            return True
        if isinstance(node, ast.Name) and handler.name is not None and node.id == handler.name:
            return True
    return False


def every_module_has_a_docstring(module: Module) -> list[str]:
    """It says what the module promises; a package file may be short, not silent."""
    text = ast.get_docstring(module.tree) or ""
    return [] if len(text) >= MIN_DOCSTRING else [f"{module.path}:1: no module docstring that says anything"]


def every_function_has_a_return_type(module: Module) -> list[str]:
    """All of them, private and nested ones too."""
    return [
        f"{module.path}:{node.lineno}: {node.name} has no return type"
        for node in module.functions
        if node.returns is None
    ]


def the_environment_is_read_in_few_places(module: Module) -> list[str]:
    """A variable that steers the program is found in one place."""
    if module.path in ENVIRONMENT_READERS:
        return []
    return [
        f"{module.path}:{node.lineno}: reads the environment"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("os.environ", "os.environb", "os.getenv")
    ]


def a_callers_error_says_where_and_what_to_do(module: Module) -> list[str]:
    """A `RequestError` names the field and the remedy (``**facts`` may hold them)."""
    bad = []
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "RequestError":
            given = {keyword.arg for keyword in node.keywords}
            if None not in given and not {"field", "remedy"} <= given:
                bad.append(f"{module.path}:{node.lineno}: a RequestError without field or remedy")
    return bad


RULES: tuple[Callable[[Module], list[str]], ...] = (
    no_pickle_on_any_road,
    no_print,
    no_swallowed_exception,
    every_module_has_a_docstring,
    every_function_has_a_return_type,
    the_environment_is_read_in_few_places,
    a_callers_error_says_where_and_what_to_do,
)
