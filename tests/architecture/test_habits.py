"""Habits and sizes of our code, with planted violations."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.architecture import habit_rules
from tests.architecture.source import ROOT, Module, modules

Rule = Callable[[Module], list[str]]
ALL = modules()
DOC = '"""A module that does one thing."""\n'
MAX_FILE, MAX_FUNCTION, P90_FILE, P90_FUNCTION = 500, 80, 400, 40


@pytest.mark.parametrize("rule", habit_rules.RULES, ids=lambda rule: rule.__name__)
def test_no_module_breaks_the_habit(rule: Rule) -> None:
    assert [line for module in ALL for line in rule(module)] == []


PLANTED: list[tuple[Rule, str]] = [
    (habit_rules.no_pickle_on_any_road, "import pickle"),
    (habit_rules.no_pickle_on_any_road, "from torch.distributed import broadcast_object_list"),
    (habit_rules.no_pickle_on_any_road, "dist.all_gather_object(out, value)"),
    (habit_rules.no_pickle_on_any_road, "weights = torch.load(path)"),
    (habit_rules.no_pickle_on_any_road, "AutoModel.from_pretrained(path, trust_remote_code=True)"),
    (habit_rules.no_pickle_on_any_road, "AutoModel.from_pretrained(path, trust_remote_code=flag)"),
    (habit_rules.no_pickle_on_any_road, "options = {'trust_remote_code': True}"),
    (habit_rules.no_pickle_on_any_road, "np.load(path, allow_pickle=True)"),
    (habit_rules.no_pickle_on_any_road, "eval(text)"),
    (habit_rules.no_print, "print('done')"),
    (habit_rules.no_swallowed_exception, "try:\n    f()\nexcept:\n    raise"),
    (habit_rules.no_swallowed_exception, "try:\n    f()\nexcept Exception:\n    pass"),
    (habit_rules.no_swallowed_exception, "try:\n    f()\nexcept BaseException as error:\n    log.info('no')"),
    (habit_rules.every_module_has_a_docstring, "x = 1"),
    (habit_rules.every_module_has_a_docstring, '"""Utils."""'),
    (habit_rules.every_function_has_a_return_type, "def f():\n    return 1"),
    (habit_rules.every_function_has_a_return_type, "def f() -> int:\n    async def g(): ...\n    return 1"),
    (habit_rules.the_environment_is_read_in_few_places, "home = os.environ['HOME']"),
    (habit_rules.the_environment_is_read_in_few_places, "home = os.getenv('HOME')"),
    (habit_rules.a_callers_error_says_where_and_what_to_do, "raise RequestError('bad_tensor', 'No.', field='x')"),
    (habit_rules.a_callers_error_says_where_and_what_to_do, "raise RequestError('bad_tensor', 'No.', remedy='Do.')"),
]

CLEAN = [
    "def f() -> None:\n    AutoModel.from_pretrained(path, trust_remote_code=False)",
    "try:\n    f()\nexcept OSError:\n    pass",
    "try:\n    f()\nexcept Exception:\n    log.exception('f failed')",
    "try:\n    f()\nexcept BaseException:\n    close()\n    raise",
    "try:\n    f()\nexcept Exception as error:\n    post(error)",
    "model.eval()",
    "raise RequestError('bad_tensor', 'No.', field='x', remedy='Do.')",
    "raise RequestError('bad_tensor', 'No.', **facts)",
]


@pytest.mark.parametrize(("rule", "source"), PLANTED)
def test_a_planted_habit_is_seen(rule: Rule, source: str) -> None:
    text = source if rule is habit_rules.every_module_has_a_docstring else DOC + source
    assert len(rule(Module("engine/x.py", text))) == 1


def test_every_habit_has_a_planted_violation() -> None:
    assert {rule for rule, _ in PLANTED} == set(habit_rules.RULES)


@pytest.mark.parametrize("source", CLEAN)
def test_what_is_allowed_passes_every_habit(source: str) -> None:
    module = Module("engine/x.py", DOC + source)
    assert [line for rule in habit_rules.RULES for line in rule(module)] == []


def percentile(values: list[int], share: float) -> int:
    """Return the value that ``share`` of ``values`` do not exceed."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def function_lengths(module: Module) -> list[tuple[int, str]]:
    """Return (lines, where) of every function."""
    return [
        ((node.end_lineno or node.lineno) - node.lineno + 1, f"{module.path}:{node.lineno} {node.name}")
        for node in module.functions
    ]


def script_lengths() -> list[tuple[int, str]]:
    """Return (lines, path) of every file in ``web``."""
    return [
        (file.read_text().count("\n"), file.relative_to(ROOT).as_posix())
        for file in sorted((ROOT / "web").rglob("*.js"))
    ]


def test_files_stay_small() -> None:
    sizes = [*((module.text.count("\n"), module.path) for module in ALL), *script_lengths()]
    assert [found for found in sizes if found[0] > MAX_FILE] == []
    assert percentile([size for size, _ in sizes], 0.9) <= P90_FILE


def test_functions_stay_small() -> None:
    sizes = [found for module in ALL for found in function_lengths(module)]
    assert [found for found in sizes if found[0] > MAX_FUNCTION] == []
    assert percentile([size for size, _ in sizes], 0.9) <= P90_FUNCTION


def test_a_long_function_would_be_seen() -> None:
    module = Module("engine/x.py", "def f() -> None:\n" + "    x = 1\n" * 90)
    assert function_lengths(module) == [(91, "engine/x.py:1 f")]
    assert percentile([1] * 89 + [91] * 11, 0.9) == 91
