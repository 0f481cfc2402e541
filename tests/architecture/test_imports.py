"""The import rules of ARCHITECTURE.md, and for each a planted violation that it must see."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.architecture import import_rules
from tests.architecture.source import ROOT, Module, modules

Rule = Callable[[Module], list[str]]
ALL = [*modules(), *modules("benchmarks", "scripts")]


@pytest.mark.parametrize("rule", import_rules.RULES, ids=lambda rule: rule.__name__)
def test_no_module_breaks_the_rule(rule: Rule) -> None:
    assert [line for module in ALL for line in rule(module)] == []


PLANTED: list[tuple[Rule, str, str]] = [
    (import_rules.contract_is_standard_library_only, "engine/contract/x.py", "import numpy"),
    (import_rules.contract_is_standard_library_only, "engine/contract/x.py", "from ..link import RankLink"),
    (import_rules.contract_is_standard_library_only, "engine/contract/x.py", "def f():\n    import aiohttp"),
    (import_rules.nodes_know_only_the_contract, "comfy_h3/nodes/x.py", "from ...engine.models import bundle"),
    (import_rules.nodes_know_only_the_contract, "comfy_h3/x.py", "from ..engine import link"),
    (import_rules.nodes_know_only_the_contract, "comfy_h3/x.py", "def f():\n    import diffusers"),
    (import_rules.engine_never_imports_comfyui, "engine/x.py", "import comfy.model_management"),
    (import_rules.engine_never_imports_comfyui, "engine/x.py", "from comfy_api.latest import io"),
    (import_rules.engine_never_imports_comfyui, "engine/x.py", "from ..comfy_h3 import client"),
    (import_rules.engine_never_imports_comfyui, "engine/x.py", "import folder_paths"),
    (import_rules.the_servers_process_has_no_torch, "engine/controller.py", "import torch"),
    (import_rules.the_servers_process_has_no_torch, "engine/controller_jobs.py", "from torch import Tensor"),
    (import_rules.the_servers_process_has_no_torch, "engine/server/app.py", "def f():\n    import transformers"),
    (import_rules.the_servers_process_has_no_torch, "engine/cli.py", "import torch"),
    (import_rules.imports_go_downward, "engine/models/x.py", "from ..stages import base"),
    (import_rules.imports_go_downward, "engine/stages/x.py", "from .. import runner"),
    (import_rules.imports_go_downward, "engine/runner.py", "from .worker import main"),
    (import_rules.imports_go_downward, "engine/worker.py", "def f():\n    from . import fleet"),
    (import_rules.imports_go_downward, "engine/controller.py", "from . import fleet"),
    (import_rules.imports_go_downward, "engine/server/app.py", "from ..models.bundle import Models"),
    (import_rules.imports_go_downward, "engine/controller.py", "from .server import app"),
    (import_rules.imports_go_downward, "engine/models/x.py", "from ..parallel import mesh"),
    (import_rules.imports_go_downward, "engine/cupboard.py", "import json"),
    (import_rules.distributed_stays_in_its_rooms, "engine/stages/x.py", "import torch.distributed as dist"),
    (import_rules.distributed_stays_in_its_rooms, "engine/runner.py", "from torch import distributed"),
    (import_rules.distributed_stays_in_its_rooms, "engine/runner.py", "from torch.distributed import nn"),
    (import_rules.distributed_stays_in_its_rooms, "engine/vae/x.py", "import torch\ntorch.distributed.barrier()"),
    (import_rules.nothing_imports_tests, "engine/x.py", "from tests.support import ranks"),
    (import_rules.nothing_imports_tests, "comfy_h3/x.py", "import tests"),
    (import_rules.imports_inside_are_relative, "engine/x.py", "from engine.contract import errors"),
    (import_rules.imports_inside_are_relative, "comfy_h3/x.py", "import engine.contract"),
]

CLEAN: list[tuple[str, str]] = [
    ("engine/contract/x.py", "import json\nfrom . import errors\nfrom .errors import RequestError"),
    ("engine/contract/mask_cells.py", "import numpy as np"),
    ("comfy_h3/nodes/x.py", "import torch\nfrom comfy_api.latest import io\nfrom ...engine.contract import messages"),
    ("engine/server/app.py", "from ..controller import Controller\nfrom ..contract import errors"),
    ("engine/controller.py", "from .link import encode_line\nfrom .contract.messages import Event"),
    ("engine/cli.py", "def f():\n    from .tiny import make_tiny\n    from .server import app"),
    ("engine/models/x.py", "if TYPE_CHECKING:\n    from ..stages.base import Latents"),
    ("engine/stages/x.py", "import torch\nfrom ..parallel import collectives\nfrom ..vae import chunks"),
    ("engine/worker.py", "import torch.distributed as dist\nfrom .runner import run"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "path", "source"), PLANTED, ids=lambda value: getattr(value, "__name__", None))
def test_a_planted_violation_is_seen(rule: Rule, path: str, source: str) -> None:
    lines = rule(Module(path, source))
    assert len(lines) == 1
    assert lines[0].startswith(path)


def test_every_rule_has_a_planted_violation() -> None:
    assert {rule for rule, _, _ in PLANTED} == set(import_rules.RULES)


@pytest.mark.parametrize(("path", "source"), CLEAN)
def test_what_is_allowed_passes_every_rule(path: str, source: str) -> None:
    assert [line for rule in import_rules.RULES for line in rule(Module(path, source))] == []


def test_the_torch_free_rooms_import_without_torch() -> None:
    names = [
        module.name
        for module in modules("engine")
        if import_rules.in_room(module.name, *import_rules.TORCH_FREE) and module.name != "engine.__main__"
    ]
    assert "engine.contract.checks" in names
    heavy = ", ".join(map(repr, import_rules.HEAVY))
    code = (
        f"import importlib, sys\nfor name in {names!r}:\n    importlib.import_module(name)\n"
        f"    bad = [m for m in ({heavy},) if m in sys.modules]\n    assert not bad, (name, bad)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
