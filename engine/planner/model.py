"""The model that is planned for: what a checkpoint's configurations say, whether its weight files are there or not.

Reads JSON alone. Raises `ConfigError` as `checkpoint.open_checkpoint` for a folder or configuration that cannot be
used; a component whose folder is missing is planned with the released configuration.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ..checkpoint import left_out_children, needed_components
from ..checkpoint_facts import read_facts
from ..checkpoint_files import invalid, missing, read_json
from ..contract.limits import ModelFacts
from ..contract.requests import STAGES
from ..rank_options import COMPONENTS, PARTITIONS, ModelOptions
from .shapes import component_shapes
from .sizes import RELEASED, check_counts
from .weights import ServedModel

_INDEX = "modular_model_index.json"


def released_model(stages: Iterable[str] = STAGES, partitions: Iterable[str] = PARTITIONS) -> ServedModel:
    """Return the released model, of which nothing needs to be on this machine."""
    return _served({}, ModelFacts(), tuple(stages), tuple(partitions))


def read_model(folder: Path, *, stages: Iterable[str] = STAGES, options: ModelOptions | None = None) -> ServedModel:
    """Return the model in ``folder``, of which only the JSON files need to be there.

    Raises:
        ConfigError: ``checkpoint_missing``, ``checkpoint_invalid``.
    """
    options = options or ModelOptions()
    if not folder.is_dir():
        raise missing(folder, "The model folder does not exist.")
    folders = {name: Path(options.component_dirs.get(name, folder / name)) for name in COMPONENTS}
    index = folder / _INDEX
    facts = read_facts(read_json(index, _INDEX) if index.is_file() else {}, folders)
    there = [name for name in PARTITIONS if (folders[name] / "config.json").is_file()]
    partitions = options.partitions or tuple(there) or PARTITIONS
    configs = {
        name: read_json(folders[name] / "config.json", f"{name}/config.json")
        for name in RELEASED
        if (folders[name] / "config.json").is_file()
    }
    return _served(configs, facts, tuple(stages), tuple(partitions))


def checked_model(model: ServedModel) -> ServedModel:
    """Return ``model`` if its configurations describe one.

    Raises:
        ConfigError: ``checkpoint_invalid`` naming the component.
    """
    for name, config in model.configs.items():
        shown = f"{name}/config.json"
        try:
            check_counts(config)
            shapes = component_shapes(name, config)
            wrong = next((tensor for tensor, shape in shapes.items() if any(size < 1 for size in shape)), None)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise invalid(shown, repr(error), f"{shown} lacks a value or has one of a wrong type.") from error
        if wrong is not None:
            raise invalid(shown, str(shapes[wrong]), f"{shown} gives {wrong} a size that is none.")
    return model


def _served(
    configs: dict[str, dict[str, object]], facts: ModelFacts, stages: tuple[str, ...], partitions: tuple[str, ...]
) -> ServedModel:
    needed = [name for name in needed_components(stages) if name not in PARTITIONS or name in partitions]
    return checked_model(
        ServedModel(
            {name: configs.get(name, RELEASED[name]) for name in needed},
            {name: left_out_children(name, stages) for name in needed},
            facts,
        )
    )
