"""Code of its own that a component of a checkpoint names: found and, unless it is trusted, refused. No torch.

A component names code by ``auto_map`` in one of its configurations, or by a library in ``modular_model_index.json``
that is a file of its own. Nothing here imports such code; `models.own_code` does.
Raises `ConfigError` ``remote_code_refused``, or ``checkpoint_invalid`` for a class that nobody has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .checkpoint_files import invalid, read_json
from .contract.errors import ConfigError

_LIBRARIES = ("diffusers", "transformers")
_CLASSES = {
    "transformer": "MiniMaxH3Transformer3DModel",
    "transformer_ref": "MiniMaxH3Transformer3DModel",
    "vae": "AutoencoderKLMiniMaxH3",
    "audio_vae": "AutoencoderKLMiniMaxH3Audio",
    "text_encoder": "Qwen3VLForConditionalGeneration",
}


@dataclass(frozen=True)
class OwnCode:
    """The code that a component names.

    Attributes:
        folder: the component's folder.
        classes: ``module.Class`` by what it stands for: an auto class (``AutoModel``), or "" for the component itself.
    """

    folder: Path
    classes: Mapping[str, str]

    def reference(self, role: str | None = None) -> str | None:
        """Return the ``module.Class`` for ``role``, or for the component itself; None when it names none."""
        if role is not None:
            return self.classes.get(role)
        return self.classes.get("") or self.classes.get("AutoModel") or next(iter(self.classes.values()))


def find_own_code(name: str, folder: Path, index_entry: object, *, trusted: bool) -> OwnCode | None:
    """Return the code that the component ``name`` names, None when it names none.

    Args:
        index_entry: what ``modular_model_index.json`` says of it: [library, class, …], or something else.

    Raises:
        ConfigError: ``remote_code_refused`` when it names some and is not ``trusted``; ``checkpoint_invalid`` for a
            class that neither the libraries nor the component have.
    """
    classes = dict(_mapped_classes(name, folder))
    if isinstance(index_entry, list) and len(index_entry) > 1 and index_entry[0] not in (*_LIBRARIES, None):
        classes.setdefault("", f"{index_entry[0]}.{index_entry[1]}")
    if not classes:
        _check_class(name, folder)
        return None
    if not trusted:
        raise _refused(name, folder, next(iter(classes.values())))
    return OwnCode(folder, classes)


def _mapped_classes(name: str, folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the entries of every ``auto_map`` in the component's configurations, nested ones included."""
    waiting: list[Any] = [read_json(file, f"{name}/{file.name}") for file in sorted(folder.glob("*config*.json"))]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            found = item.get("auto_map")
            for role, value in found.items() if isinstance(found, dict) else ():
                # A tokenizer names a slow and a fast class; either may be null.
                references = value if isinstance(value, list) else [value]
                yield from ((role, text) for text in references[-1:] + references[:-1] if isinstance(text, str))
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item


def _check_class(name: str, folder: Path) -> None:
    """Check the class that a component without own code names: it decides nothing, but says whose weights these are."""
    if name not in _CLASSES:
        return
    config = read_json(folder / "config.json", f"{name}/config.json")
    named = config.get("_class_name") or next(iter(config.get("architectures") or ()), None)
    if named not in (None, _CLASSES[name]):
        raise invalid(
            f"{name}/config.json",
            named,
            f"{name} is of the class {named}, a MiniMax-H3 {name} of {_CLASSES[name]}; no auto_map names code for it.",
        )


def _refused(name: str, folder: Path, reference: str) -> ConfigError:
    module, _, cls = reference.rpartition(".")
    file = f"{module.replace('.', '/')}.py"
    return ConfigError(
        "remote_code_refused",
        f"{name}/ brings code of its own: the class {cls} in {folder / file}.",
        field=name,
        value=reference,
        remedy="Read that code; if you trust it, start the engine with --trust-remote-code. "
        "Else use a checkpoint without code.",
        details={"component": name, "path": str(folder / file), "class": cls},
    )
