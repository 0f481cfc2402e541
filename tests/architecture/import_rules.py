"""Who may import whom: each rule is a function from a module to its violations, as readable lines."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable

from tests.architecture.source import Import, Module, starts

COMFYUI = ("comfy", "comfy_api", "comfy_api_nodes", "comfy_execution", "comfy_extras", "folder_paths", "nodes",
           "server", "execution", "app", "api_server")  # fmt: skip
COMFYUI_SHIPS = ("torch", "numpy", "PIL", "av", "aiohttp", "safetensors", "yaml")
"""What ComfyUI's own environment holds, and so what ``comfy_h3`` may use besides ``websockets``."""
HEAVY = ("torch", "diffusers", "transformers", "accelerate", "torchvision", "torchaudio")
TORCH_FREE = ("engine.contract", "engine.server", "engine.controller", "engine.cache", "engine.planner",
              "engine.config", "engine.env", "engine.checkpoint", "engine.link", "engine.cli", "engine.client",
              "engine.wire", "engine.layout", "engine.packages", "engine.mux", "engine.stacks", "engine.placement",
              "engine.shared_memory", "engine.__main__")  # fmt: skip
"""Rooms without torch. A suffix belongs to its room: ``engine.cli_demo`` to ``engine.cli``."""
CONTRACT_WITH_NUMPY = tuple(f"engine.contract.mask_{name}" for name in ("cells", "files", "paint", "shapes"))
"""Masks are computed on both sides of the wire; who needs only their document does without numpy."""
DISTRIBUTED = ("engine.parallel", "engine.fleet", "engine.worker")

LAYERS: dict[str, int] = {
    "contract": 0,
    "env": 1, "lifeline": 1, "link": 1, "checkpoint": 1, "wire": 1, "rank_options": 1, "layout": 1, "packages": 1,
    "stacks": 1, "placement": 1, "shared_memory": 1,
    "config": 2, "client": 2,
    "models": 3, "packing": 3, "conditioning": 3, "masking": 3, "noise": 3, "sampling": 3, "vae": 3, "media": 3,
    "mux": 3, "tiny": 3, "devices": 3, "parallel": 3, "offload": 3,
    "stages": 4, "backlog": 4, "outputs": 4, "progress": 4, "health": 4, "frames": 4,
    "runner": 5,
    "worker": 6,
    "fleet": 7,
    "cache": 8, "planner": 8,
    "controller": 9,
    "server": 10,
    "cli": 11,
    "__main__": 12,
}  # fmt: skip
"""Rooms from the cellar up: an import goes to the same or a lower number."""
BEYOND_THE_BORDER = frozenset(
    room for room, layer in LAYERS.items() if 3 <= layer <= LAYERS["fleet"] and room not in ("tiny",)
)
"""Rooms that live in the ranks' process; the server's process reaches them over the link only."""


def in_room(module: str, *rooms: str) -> bool:
    """Return whether ``module`` is one of the rooms, inside one, or a suffixed file of one."""
    return any(starts(module, room) or module.startswith(room + "_") for room in rooms)


def room_of(name: str) -> str:
    """Return the room of a module of ``engine``: ``server`` for ``engine.server.app``, ``cli`` for ``engine.cli_x``."""
    first = [*name.split("."), ""][1]
    return next((room for room in LAYERS if first == room or first.startswith(room + "_")), first)


def _line(module: Module, found: Import, why: str) -> str:
    return f"{module.path}:{found.line}: imports {found.target}: {why}"


def contract_is_standard_library_only(module: Module) -> list[str]:
    """Rule 1."""
    if not in_room(module.name, "engine.contract"):
        return []
    allowed = {*sys.stdlib_module_names, *(["numpy"] if in_room(module.name, *CONTRACT_WITH_NUMPY) else [])}
    return [
        _line(module, found, "the contract uses the standard library and itself")
        for found in module.imports
        if not starts(found.target, "engine.contract") and found.target.split(".")[0] not in allowed
    ]


def nodes_know_only_the_contract(module: Module) -> list[str]:
    """Rule 2."""
    if not starts(module.name, "comfy_h3"):
        return []
    allowed = {*sys.stdlib_module_names, *COMFYUI, *COMFYUI_SHIPS, "websockets", "comfy_h3"}
    bad = []
    for found in module.imports:
        if starts(found.target, "engine") and not starts(found.target, "engine.contract"):
            bad.append(_line(module, found, "of the engine, nodes know the contract only"))
        elif not starts(found.target, "engine") and found.target.split(".")[0] not in allowed:
            bad.append(_line(module, found, "ComfyUI's environment does not ship it"))
    return bad


def engine_never_imports_comfyui(module: Module) -> list[str]:
    """Rule 3, first half."""
    if not starts(module.name, "engine"):
        return []
    return [
        _line(module, found, "the engine knows neither ComfyUI nor the nodes")
        for found in module.imports
        if starts(found.target, "comfy_h3") or (not found.relative and starts(found.target, *COMFYUI))
    ]


def the_servers_process_has_no_torch(module: Module) -> list[str]:
    """Rule 3, second half (what they import in turn is tested by importing them)."""
    if not in_room(module.name, *TORCH_FREE):
        return []
    may_be_lazy = in_room(module.name, "engine.cli")
    return [
        _line(module, found, "this room runs without torch")
        for found in module.imports
        if starts(found.target, *HEAVY) and not (may_be_lazy and found.lazy) and not found.typing_only
    ]


def imports_go_downward(module: Module) -> list[str]:
    """Rule 4."""
    if not starts(module.name, "engine") or module.name == "engine":
        return []
    room, bad = room_of(module.name), []
    if room not in LAYERS:
        return [f"{module.path}: the room {room!r} is not in the plan; give it a layer"]
    for found in module.imports:
        if not starts(found.target, "engine") or found.target == "engine":
            continue
        other = room_of(found.target)
        if other not in LAYERS:
            bad.append(_line(module, found, f"the room {other!r} is not in the plan"))
        elif LAYERS[other] > LAYERS[room] and not found.typing_only:
            bad.append(_line(module, found, f"upward, from {room} to {other}"))
        elif other in BEYOND_THE_BORDER and LAYERS[room] > LAYERS["fleet"]:
            bad.append(_line(module, found, "the ranks are another process"))
        elif room == "models" and other in ("parallel", "offload"):
            bad.append(_line(module, found, "models know nothing of what wraps them"))
        elif room == "contract" and other != "contract":
            bad.append(_line(module, found, "the contract stands on nothing"))
    return bad


def distributed_stays_in_its_rooms(module: Module) -> list[str]:
    """Rule 5; ``torch.distributed`` as an attribute counts too. A benchmark measures it against the library's own."""
    if in_room(module.name, *DISTRIBUTED, "benchmarks"):
        return []
    why = "torch.distributed belongs to parallel/, fleet.py and worker.py"
    bad = [_line(module, found, why) for found in module.imports if starts(found.target, "torch.distributed")]
    uses = [
        f"{module.path}:{node.lineno}: uses torch.distributed: {why}"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.distributed"
    ]
    return bad + uses


def nothing_imports_tests(module: Module) -> list[str]:
    """Rule 7, first half."""
    if starts(module.name, "tests"):
        return []
    return [_line(module, found, "tests are not part of the product") for found in module.imports
            if starts(found.target, "tests")]  # fmt: skip


def imports_inside_are_relative(module: Module) -> list[str]:
    """Both packages are also imported under another name, so they name their own modules with dots."""
    if not starts(module.name, "engine", "comfy_h3"):
        return []
    return [
        _line(module, found, "write it with dots")
        for found in module.imports
        if not found.relative and starts(found.target, "engine", "comfy_h3", "h3pack")
    ]


RULES: tuple[Callable[[Module], list[str]], ...] = (
    contract_is_standard_library_only,
    nodes_know_only_the_contract,
    engine_never_imports_comfyui,
    the_servers_process_has_no_torch,
    imports_go_downward,
    distributed_stays_in_its_rooms,
    nothing_imports_tests,
    imports_inside_are_relative,
)
