"""The files of a checkpoint: JSON, safetensors headers, and the errors that name them. No torch.

`read_tensors_of` promises that every tensor it returns lies inside a file of a known type. Raises `ConfigError`
(``checkpoint_missing``, ``checkpoint_invalid``) naming what is wrong and what to do.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .contract.errors import ConfigError, RequestError
from .contract.framing import TensorInfo, read_header

_WEIGHTS = ("diffusion_pytorch_model.safetensors", "model.safetensors")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_DTYPES = ("F32", "BF16", "F16", "F64", "I64", "I32")


@dataclass(frozen=True)
class StoredTensor:
    """A tensor that will be read: its header entry and the file that holds it."""

    info: TensorInfo
    file: Path

    @property
    def bytes(self) -> int:
        """Bytes in the file."""
        return self.info.end - self.info.start


def read_json(path: Path, shown: str) -> dict[str, Any]:
    """Read a JSON object.

    Args:
        shown: the file's name in errors.

    Raises:
        ConfigError: ``checkpoint_missing`` or ``checkpoint_invalid``.
    """
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise missing(path.parent, f"The model folder lacks {shown}.") from error
    except (OSError, ValueError, RecursionError) as error:
        raise invalid(shown, str(error), f"{shown} is not readable JSON.") from error
    if not isinstance(data, dict):
        raise invalid(shown, type(data).__name__, f"{shown} is not a JSON object.")
    return data


def read_tensors_of(name: str, folder: Path, *, is_read: Callable[[str], bool]) -> dict[str, StoredTensor]:
    """Return the tensors of the component ``name`` in ``folder`` for which ``is_read`` holds, from headers alone.

    Files that hold none of them are not opened and may be absent.

    Raises:
        ConfigError: ``checkpoint_missing`` or ``checkpoint_invalid``.
    """
    tensors: dict[str, StoredTensor] = {}
    for file, wanted in _weight_files(name, folder, is_read).items():
        infos = _read_headers(file, f"{name}/{file.name}")
        for tensor in infos if wanted is None else wanted:
            if not is_read(tensor):
                continue
            if tensor not in infos:
                raise invalid(
                    f"{name}/{file.name}", tensor, f"The index puts {tensor} into {file.name}, which lacks it."
                )
            if infos[tensor].dtype not in _DTYPES:
                raise invalid(
                    f"{name}/{file.name}",
                    tensor,
                    f"{tensor} has the type {infos[tensor].dtype}; quantised checkpoints are not supported.",
                )
            tensors[tensor] = StoredTensor(infos[tensor], file)
    return tensors


def _weight_files(name: str, folder: Path, is_read: Callable[[str], bool]) -> dict[Path, list[str] | None]:
    """Return the files to open, each with the tensors that the index puts there (None without an index)."""
    for stem in _WEIGHTS:
        if (folder / f"{stem}.index.json").is_file():
            return _indexed_files(name, folder, f"{stem}.index.json", is_read)
        if (folder / stem).is_file():
            return {folder / stem: None}
    pickles = [file.name for file in folder.iterdir() if file.suffix in _PICKLES]
    if pickles:
        raise invalid(
            f"{name}/{pickles[0]}",
            pickles[0],
            f"{name} has its weights only in pickled files, which can run code when read.",
            remedy="Convert them to safetensors, or download the safetensors files.",
        )
    raise missing(folder, f"{name}/ holds no {' or '.join(_WEIGHTS)}.")


def _indexed_files(
    name: str, folder: Path, index_name: str, is_read: Callable[[str], bool]
) -> dict[Path, list[str] | None]:
    shown = f"{name}/{index_name}"
    table = read_json(folder / index_name, shown).get("weight_map")
    if not isinstance(table, dict) or not all(isinstance(file, str) for file in table.values()):
        raise invalid(shown, None, f"{shown} has no weight_map.")
    files: dict[Path, list[str] | None] = {}
    by_file: dict[str, list[str]] = {}
    for tensor, file in table.items():
        if is_read(tensor):
            by_file.setdefault(file, []).append(tensor)
    for file, tensors in by_file.items():
        path = folder / file
        if Path(file).name != file or not path.is_file():
            raise missing(folder, f"{shown} names {file}, which is not in {name}/.")
        files[path] = tensors
    return files


def _read_headers(file: Path, shown: str) -> dict[str, TensorInfo]:
    try:
        with file.open("rb") as stream:
            return read_header(stream, file.stat().st_size, field=shown)
    except (OSError, RequestError) as error:
        raise invalid(shown, None, f"{shown} is not a whole safetensors file: {error}") from error


def missing(where: Path, message: str, *, field: str = "model", remedy: str | None = None) -> ConfigError:
    """Return the error for something that is not there; ``field``: the option that says where to look."""
    return ConfigError(
        "checkpoint_missing",
        message,
        field=field,
        value=str(where),
        remedy=remedy
        or "Point --model at a whole MiniMax-H3 checkpoint in diffusers' layout, serve with --stages only what a part "
        "of one is enough for, or make one with make-tiny.",
    )


def invalid(field: str, value: object, message: str, *, remedy: str | None = None) -> ConfigError:
    """Return the error for a file that cannot be used; ``field``: the file."""
    return ConfigError(
        "checkpoint_invalid",
        message,
        field=field,
        value=value,
        remedy=remedy or "Download the file again, or use a MiniMax-H3 checkpoint in diffusers' layout.",
    )
