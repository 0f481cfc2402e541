"""``plan``: what a configuration would take, before anything is loaded, and which configuration to use.

With a layout given (an option that says how the ranks share the work or where weights live, or a preset) that one is
planned; without, the fastest that fits is looked for. Exit status 0 when it fits, 2 when nothing does or an option is
wrong. Raises `ConfigError`. Imports no torch; a plot needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from ..config import absolute_path, merge_options
from ..config_devices import Devices, find_devices
from ..config_layout import check_layout, resolve_layout
from ..config_offload import resolve_offload
from ..config_vae import check_tiles, resolve_vae
from ..contract import geometry
from ..contract.errors import ConfigError
from ..contract.limits import DEFAULT_STEPS, Limits, ModelFacts
from ..planner.model import read_model, released_model
from ..planner.plan import Hardware, Plan, describe, make_plan
from ..planner.plot import draw_plan
from ..planner.report import compare, report
from ..planner.request import MediumSize, RequestSize, vision_grid, vision_rows
from ..planner.search import MOST_RANKS, Choice, longest, options_of, search, settings_of, way_out
from ..planner.time import Speeds
from ..planner.weights import ServedModel, Setup
from ..rank_options import PARTITIONS, ModelOptions
from .options import add_options, config_file, given_options
from .output import say
from .plan_measured import ask, table

_FITS, _DOES_NOT = 0, 2
_MEANT = ("ulysses_degree", "ring_degree", "tp_degree", "text_encoder_tp_degree", "offload", "shard_weights")
"""Options that say which configuration is meant."""
_PLANNED = (
    *_MEANT,
    "nproc_per_node",
    "device",
    "dtype",
    "rank_weights",
    "resident_blocks",
    "block_storage",
    "modulation_tables_mb",
    "host_copies",
    "gpu_memory",
    "host_memory",
    "vae_tile",
    "vae_tile_overlap",
    "vae_resident",
    "vae_on_one_rank",
    "media_encode",
    "gather_workspace_mb",
    "stages",
    "partitions",
    "component_dir",
    "model",
)
"""Options of ``serve`` that matter to a plan."""
_DEFAULTS: Mapping[str, float] = {
    "seconds": 15.0,
    "steps": DEFAULT_STEPS,
    "text_rows": 512,
    "references": 0,
    "keyframes": 0,
    "tflops": Speeds.tflops,
    "host_gbs": Speeds.host_gbs,
    "link_gbs": Speeds.link_gbs,
}
"""What is planned for unless something else is given."""
_OF_A_RUNNING_ENGINE = ("url", "job", "json", "plot")
"""Options that go with ``--url``; what it asks is not planned here."""
_BOUNDS = {
    "seconds": (0.25, 3600),
    "steps": (1, 1000),
    "text_rows": (1, 10**6),
    "references": (0, 9),
    "keyframes": (0, 2),
}
"""What a request may ask for, from and to."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the request, the machine, and the options of ``serve`` that matter; no model is the released one."""
    parser.add_argument("--gpus", type=int, help="ranks, each with a device of its own (as --nproc-per-node)")
    _add(parser, "seconds", float, "of the video")
    parser.add_argument("--width", type=int, help="pixels (default: the model's canvas)")
    parser.add_argument("--height", type=int, help="pixels")
    _add(parser, "steps", int, "forwards")
    _add(parser, "text_rows", int, "of the prompt")
    _add(parser, "references", int, "reference images of the canvas' size")
    _add(parser, "keyframes", int, "first and last picture: 0, 1 or 2")
    _add(parser, "tflops", float, "1e12 operations a second of a device")
    _add(parser, "host_gbs", float, "1e9 bytes a second, host to device")
    _add(parser, "link_gbs", float, "the same from device to device")
    parser.add_argument("--url", help="a running engine: show its own plan, beside what a job took; plans nothing here")
    parser.add_argument("--job", metavar="ID", help="the job, with --url (default: the last that is done)")
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    parser.add_argument("--plot", metavar="FILE.png", help="draw memory over the stages of a run")
    add_options(parser, _PLANNED)


def _add(parser: argparse.ArgumentParser, name: str, kind: type[float], words: str) -> None:
    """Add an option that has a default; whether it was given shows in its being None."""
    flag = f"--{name.replace('_', '-')}"
    parser.add_argument(flag, type=kind, help=f"{words} (default: {_DEFAULTS[name]:g})")


def run(arguments: argparse.Namespace) -> int:
    """Print the plan; return the exit status.

    Raises:
        ConfigError: an option is wrong.
    """
    if arguments.url is not None:
        _check_running(arguments)
        return _show_running(arguments)
    if arguments.job is not None:
        raise _bad("job", arguments.job, "A job is one of a running engine.", "Give --url too, or leave --job out.")
    for name, value in _DEFAULTS.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)
    given = given_options(arguments)
    if arguments.gpus is not None:
        given["nproc_per_node"] = arguments.gpus
    values = merge_options(given, config_file=config_file(arguments), preset=arguments.preset)
    model = _model(values)
    hardware, devices = _hardware(values, arguments)
    meant = arguments.preset or arguments.config or any(name in given for name in _MEANT)
    setup = _setup(values, devices, model)
    request = _request(arguments, model.facts)
    _check_partition(request, model)
    choices: list[Choice] = []
    if meant:
        plan = make_plan(model, setup, request, hardware)
    elif setup.parallel.world_size > MOST_RANKS:
        raise _bad(
            "gpus",
            setup.parallel.world_size,
            f"Layouts are looked for on up to {MOST_RANKS} ranks.",
            "Give one: --ulysses-degree, --ring-degree, --tp-degree, --offload.",
        )
    else:
        choices = search(model, setup, request, hardware, gpus=setup.parallel.world_size)
        plan = choices[0].plan
    _show(plan, choices, as_json=arguments.json)
    if arguments.plot:
        draw_plan(describe(plan), absolute_path(arguments.plot, field="plot"))
    return _FITS if plan.fits else _DOES_NOT


def _check_running(arguments: argparse.Namespace) -> None:
    """Refuse options that say what to plan: a running engine has its plan.

    Raises:
        ConfigError: ``config_conflict``.
    """
    known = {"command", *_OF_A_RUNNING_ENGINE}
    others = [name for name, value in vars(arguments).items() if value is not None and name not in known]
    if others:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in others)
        raise ConfigError(
            "config_conflict",
            f"A running engine shows the plan that it has; {flags} cannot change that.",
            field=others[0],
            value=getattr(arguments, others[0]),
            remedy=f"Leave --url out to plan anew, or {flags} to see the engine's plan.",
        )


def _show_running(arguments: argparse.Namespace) -> int:
    """Show the plan of a running engine, and what a job on it took."""
    described, memory = ask(arguments.url, arguments.job)
    say(json.dumps({**described, "memory": memory}, indent=2) if arguments.json else table(described, memory))
    if arguments.plot:
        draw_plan(described, absolute_path(arguments.plot, field="plot"), memory=memory)
    return _FITS


def _show(plan: Plan, choices: list[Choice], *, as_json: bool) -> None:
    other = None if plan.fits else way_out(plan)
    frames = None if plan.fits else longest(plan)
    if as_json:
        found = {
            **describe(plan),
            "options": options_of(plan),
            "longest_frames": frames,
            "nearest": other and other.options,
            "nearest_settings": other and settings_of(other),
            "losses": list(other.losses) if other else [],
        }
        say(json.dumps(found, indent=2))
        return
    say(report(plan, nearest=other, longest=frames))
    if choices:
        say("\n" + compare(choices))


def _model(values: Mapping[str, Any]) -> ServedModel:
    if values["model"] is None:
        return released_model(values["stages"], values["partitions"] or PARTITIONS)
    given = values["component_dir"] or {}
    options = ModelOptions(
        partitions=None if values["partitions"] is None else tuple(values["partitions"]),
        component_dirs={name: str(absolute_path(path, field="component_dir")) for name, path in given.items()},
    )
    return read_model(absolute_path(values["model"], field="model"), stages=values["stages"], options=options)


def _hardware(values: Mapping[str, Any], arguments: argparse.Namespace) -> tuple[Hardware, Devices]:
    """Return what is planned for: what was given, else this machine's devices."""
    devices = Devices("cpu", 1)
    if values["gpu_memory"] is None or values["nproc_per_node"] is None:
        devices = find_devices("auto")
    memory, ranks = values["gpu_memory"], values["nproc_per_node"] or devices.count
    # All of it: what is there now may be the engine that the planned one replaces.
    budget = devices.smallest if memory is None else round(memory * 1e9)
    if budget is None:
        raise ConfigError(
            "config_bad_value",
            "There is no accelerator on this machine whose memory could be planned for.",
            field="gpu_memory",
            remedy="Give --gpus and --gpu-memory, the memory of each in GB of 1e9 bytes.",
        )
    for name in ("tflops", "host_gbs", "link_gbs"):
        if not 0 < getattr(arguments, name) < 1e9:
            raise _bad(name, getattr(arguments, name), f"{name} is a speed.", "Use a number above 0.")
    speeds = Speeds(tflops=arguments.tflops, host_gbs=arguments.host_gbs, link_gbs=arguments.link_gbs)
    host = values["host_memory"]
    hardware = Hardware(device_bytes=budget, host_bytes=None if host is None else round(host * 1e9), speeds=speeds)
    return hardware, Devices("planned", ranks)


def _setup(values: dict[str, Any], devices: Devices, model: ServedModel) -> Setup:
    parallel = resolve_layout({**values, "nproc_per_node": devices.count}, devices, model.facts)
    check_layout(parallel, model.facts)
    vae = resolve_vae(values)
    check_tiles(vae, model.facts)
    accelerator = values["device"] != "cpu"
    return Setup(
        parallel=parallel,
        vae=vae,
        offload=resolve_offload(values),
        dtype=("bf16" if accelerator else "fp32") if values["dtype"] == "auto" else values["dtype"],
        accelerator=accelerator,
        stages=tuple(values["stages"]),
    )


def _request(arguments: argparse.Namespace, facts: ModelFacts) -> RequestSize:
    width, height = _canvas(arguments, facts)
    for name, (low, high) in _BOUNDS.items():
        if not low <= getattr(arguments, name) <= high:
            raise _bad(name, getattr(arguments, name), f"{name} is {low:g} to {high:g}.", f"Use {low:g} to {high:g}.")
    if arguments.keyframes and arguments.references:
        raise _bad(
            "keyframes", arguments.keyframes, "Keyframes and references do not go together.", "Leave one of them out."
        )
    frames = geometry.snap_frames(max(geometry.MIN_FRAMES, geometry.frames_of_seconds(arguments.seconds)))
    shown = arguments.keyframes + arguments.references
    vision = (vision_grid(width, height),) * shown
    cells = (1, height // facts.spatial_ratio, width // facts.spatial_ratio)
    media = (MediumSize(cells),) * arguments.keyframes + (MediumSize(cells, reference=True),) * arguments.references
    return RequestSize(
        width=width,
        height=height,
        frames=frames,
        text_rows=arguments.text_rows + vision_rows(vision),
        media=media,
        vision=vision,
        steps=arguments.steps,
    )


def _check_partition(request: RequestSize, model: ServedModel) -> None:
    """Refuse what the engine would: a request for a transformer that is not loaded.

    Without media nobody says which of both is meant: that is planned with the one there is.
    """
    loaded = [name for name in PARTITIONS if name in model.configs]
    wanted = "transformer_ref" if request.with_references else "transformer"
    if loaded and request.media and wanted not in loaded:
        given = "references" if request.with_references else "keyframes"
        raise _bad(
            given,
            len(request.media),
            f"Videos with {given} are made by {wanted}, which is not loaded.",
            f"Leave --{given} out, or have --partitions name {wanted}.",
        )


def _canvas(arguments: argparse.Namespace, facts: ModelFacts) -> tuple[int, int]:
    if (arguments.width is None) != (arguments.height is None):
        missing = "width" if arguments.width is None else "height"
        raise _bad(missing, None, "Give --width and --height together, or neither.", f"Add --{missing}.")
    if arguments.width is None:
        return geometry.default_canvas(
            short_edge=facts.canvas_short_edge, max_pixels=facts.canvas_max_pixels, multiple=facts.canvas_multiple
        )
    for name, side in (("width", arguments.width), ("height", arguments.height)):
        if side > Limits.max_side:
            raise _bad(name, side, f"{name} is at most {Limits.max_side} pixels.", f"Use {Limits.max_side} or less.")
    geometry.check_canvas(arguments.width, arguments.height, multiple=facts.canvas_multiple, path="")
    return arguments.width, arguments.height


def _bad(field: str, value: object, message: str, remedy: str) -> ConfigError:
    return ConfigError("config_bad_value", message, field=field, value=value, remedy=remedy)
