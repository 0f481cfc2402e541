"""Reading a MiniMax-H3 checkpoint folder (diffusers' layout) without torch.

`open_checkpoint` reads JSON files and safetensors headers only, so that a wrong folder stops the engine before any
rank starts. Promise: every tensor a rank will read is there, of a known type, inside its file. Files that hold only
tensors nobody reads (the text encoder's layers after the 50th) are not opened and may be absent.
Raises `ConfigError` (``checkpoint_missing``, ``checkpoint_invalid``) naming what is wrong and what to do.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from .contract import geometry
from .contract.errors import ConfigError, RequestError
from .contract.framing import TensorInfo, read_header
from .contract.limits import ModelFacts
from .contract.messages import STAGES

TEXT_LAYERS = 50
"""Decoder layers of the text encoder that are run: its hidden state 50 is the conditioning."""
COMPONENTS_OF: dict[str, tuple[str, ...]] = {
    "encode_prompt": ("text_encoder",),
    "denoise": ("transformer",),
    "decode_video": ("vae",),
    "decode_audio": ("audio_vae",),
}
"""The components with weights that each stage needs."""
PARTITIONS = ("transformer", "transformer_ref")
_FOLDERS_OF = {"encode_prompt": ("tokenizer",), "denoise": ("scheduler", "audio_scheduler")}
_INDEX = "modular_model_index.json"
_WEIGHTS = ("diffusion_pytorch_model.safetensors", "model.safetensors")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_DTYPES = ("F32", "BF16", "F16", "F64", "I64", "I32")
_UNREAD = re.compile(r"lm_head\.|model\.language_model\.norm\.|model\.language_model\.layers\.(\d+)\.")


@dataclass(frozen=True)
class StoredTensor:
    """A tensor that will be read: its header entry and the file that holds it."""

    info: TensorInfo
    file: Path

    @property
    def bytes(self) -> int:
        """Bytes in the file."""
        return self.info.end - self.info.start


@dataclass(frozen=True)
class Component:
    """A component with weights.

    Attributes:
        name: ``transformer``, ``vae``, ``audio_vae`` or ``text_encoder``.
        folder: its folder. config: its ``config.json``.
        tensors: what will be read, by name; never the text encoder's unneeded layers, final norm and head.
    """

    name: str
    folder: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]

    @property
    def bytes(self) -> int:
        """Bytes that will be read."""
        return sum(tensor.bytes for tensor in self.tensors.values())


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint.

    Attributes:
        folder: the checkpoint's folder.
        facts: what its configurations say; the released values for components that it lacks.
        partitions: which of `PARTITIONS` are there.
        components: the components with weights that the served stages need, by name.
    """

    folder: Path
    facts: ModelFacts
    partitions: tuple[str, ...]
    components: Mapping[str, Component]

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        path = self.folder / "tokenizer" / "tokenizer.json"
        try:
            return Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception for every fault
            raise _invalid("tokenizer/tokenizer.json", str(error), "The tokenizer cannot be read.") from error

    @cached_property
    def _longest_token(self) -> int:
        """Bytes of the longest entry of the vocabulary, as it is written there: none stands for more of a prompt."""
        return max(len(token.encode()) for token in self._tokenizer.get_vocab(with_added_tokens=True))

    def count_tokens(self, prompt: str, *, limit: int) -> int:
        """Return the text rows that ``prompt`` becomes; more than ``limit`` may be a lower bound of them.

        A prompt that is too long by its bytes alone is not tokenized: that would take seconds and gigabytes.

        Raises:
            ConfigError: ``checkpoint_invalid`` when the tokenizer cannot be read.
        """
        fewest = -(-len(prompt.encode()) // self._longest_token)
        if fewest > limit:
            return fewest
        # Of the library's calls only those for batches let other threads run meanwhile.
        return len(self._tokenizer.encode_batch_fast([prompt], add_special_tokens=False)[0].ids)


def open_checkpoint(folder: str | Path, *, stages: Iterable[str] = STAGES) -> Checkpoint:
    """Open the checkpoint in ``folder`` for ``stages``.

    Raises:
        ConfigError: ``checkpoint_missing`` or ``checkpoint_invalid``.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise _missing("model", folder, "The model folder does not exist.")
    stages = tuple(stages)
    needed = [name for stage in stages for name in COMPONENTS_OF[stage]]
    plain = [name for stage in stages for name in _FOLDERS_OF.get(stage, ())]
    index = _read_json(folder, _INDEX)
    _check_folders(folder, [*needed, *plain])
    for name in plain:
        _read_json(folder, f"{name}/{'tokenizer.json' if name == 'tokenizer' else 'scheduler_config.json'}")
    facts = _read_facts(folder, index)
    components = {name: _open_component(folder, name) for name in needed}
    partitions = tuple(name for name in PARTITIONS if (folder / name / "config.json").is_file())
    return Checkpoint(folder, facts, partitions, components)


def peek_facts(folder: Path) -> ModelFacts:
    """Return what the checkpoint in ``folder`` says of itself; the released values if `open_checkpoint` refuses it."""
    try:
        return _read_facts(folder, _read_json(folder, _INDEX))
    except ConfigError:
        return ModelFacts()


def _check_folders(folder: Path, names: list[str]) -> None:
    absent = [f"{name}/" for name in names if not (folder / name).is_dir()]
    if absent:
        raise _missing("model", folder, f"The model folder lacks {', '.join(absent)}.")


def _read_json(folder: Path, name: str) -> dict[str, Any]:
    try:
        data = json.loads((folder / name).read_bytes())
    except FileNotFoundError as error:
        raise _missing("model", folder, f"The model folder lacks {name}.") from error
    except (OSError, ValueError, RecursionError) as error:
        raise _invalid(name, str(error), f"{name} is not readable JSON.") from error
    if not isinstance(data, dict):
        raise _invalid(name, type(data).__name__, f"{name} is not a JSON object.")
    return data


def _read_facts(folder: Path, index: dict[str, Any]) -> ModelFacts:
    """Gather the facts, and check that the components present fit each other and the geometry of H3."""
    facts: dict[str, Any] = {key: index[key] for key in ("canvas_short_edge", "canvas_max_pixels") if key in index}
    for name, reader in _FACTS_OF.items():
        if not (folder / name / "config.json").is_file():
            continue
        config = _read_json(folder, f"{name}/config.json")
        try:
            found = reader(config)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise _invalid(
                f"{name}/config.json", repr(error), f"{name}/config.json lacks a value or has one of a wrong type."
            ) from error
        for key, value in found.items():
            if type(value) is not int or value < 1:
                raise _invalid(f"{name}/config.json", value, f"{key} of {name} is a whole number above 0.")
            if facts.setdefault(key, value) != value:
                raise _invalid(
                    f"{name}/config.json", value, f"{name} has {key} {value}, another component {facts[key]}."
                )
    return ModelFacts(**facts)


def _transformer_facts(config: dict[str, Any]) -> dict[str, Any]:
    patch = config["patch_size"]
    _expect("transformer", "patch_size", list(patch), [1, patch[1], patch[1]])
    return {
        "latent_channels": config["in_channels"],
        "audio_latent_channels": config["audio_in_channels"],
        "text_dim": config["text_dim"],
        "patch": patch[1],
        "heads": config["num_attention_heads"],
        "ffn_dim": config["ffn_dim"],
    }


def _vae_facts(config: dict[str, Any]) -> dict[str, Any]:
    _expect("vae", "clip_length", config.get("clip_length", geometry.FRAMES_PER_CHUNK), geometry.FRAMES_PER_CHUNK)
    _expect("vae", "token_drop", config.get("token_drop", 3), 3)
    _expect("vae", "temporal_downsample_factors", math.prod(config["temporal_downsample_factors"]), 4)
    return {
        "latent_channels": config["latent_channels"],
        "spatial_ratio": math.prod(config["spatial_downsample_factors"]),
    }


def _audio_vae_facts(config: dict[str, Any]) -> dict[str, Any]:
    _expect("audio_vae", "encoder_rates", math.prod(config["encoder_rates"]), geometry.SAMPLES_PER_AUDIO_LATENT)
    _expect("audio_vae", "sampling_rate", config["sampling_rate"], geometry.SAMPLE_RATE)
    return {"audio_latent_channels": config["latent_channels"], "sample_rate": config["sampling_rate"]}


def _text_encoder_facts(config: dict[str, Any]) -> dict[str, Any]:
    layers = config["text_config"]["num_hidden_layers"]
    if layers <= TEXT_LAYERS:
        raise _invalid(
            "text_encoder/config.json",
            layers,
            f"The text encoder has {layers} layers; the conditioning is its state {TEXT_LAYERS} before the final norm.",
        )
    text = config["text_config"]
    return {
        "text_dim": text["hidden_size"],
        "text_kv_heads": text["num_key_value_heads"],
        "text_ffn_dim": text["intermediate_size"],
    }


_FACTS_OF = {
    "transformer": _transformer_facts,
    "vae": _vae_facts,
    "audio_vae": _audio_vae_facts,
    "text_encoder": _text_encoder_facts,
}


def _expect(component: str, key: str, value: object, wanted: object) -> None:
    if value != wanted:
        raise _invalid(f"{component}/config.json", value, f"{key} of a MiniMax-H3 {component} comes to {wanted}.")


def _open_component(folder: Path, name: str) -> Component:
    config = _read_json(folder, f"{name}/config.json")
    tensors: dict[str, StoredTensor] = {}
    for file, wanted in _weight_files(folder, name).items():
        infos = _read_tensors(file, f"{name}/{file.name}")
        for tensor in infos if wanted is None else wanted:
            if not _is_read(name, tensor):
                continue
            if tensor not in infos:
                raise _invalid(
                    f"{name}/{file.name}", tensor, f"The index puts {tensor} into {file.name}, which lacks it."
                )
            if infos[tensor].dtype not in _DTYPES:
                raise _invalid(
                    f"{name}/{file.name}",
                    tensor,
                    f"{tensor} has the type {infos[tensor].dtype}; quantised checkpoints are not supported.",
                )
            tensors[tensor] = StoredTensor(infos[tensor], file)
    return Component(name, folder / name, config, tensors)


def _weight_files(folder: Path, name: str) -> dict[Path, list[str] | None]:
    """Return the files to open, each with the tensors that the index puts there (None without an index)."""
    for stem in _WEIGHTS:
        index_name = f"{name}/{stem}.index.json"
        if (folder / index_name).is_file():
            return _indexed_files(folder, name, index_name)
        if (folder / name / stem).is_file():
            return {folder / name / stem: None}
    pickles = [file.name for file in (folder / name).iterdir() if file.suffix in _PICKLES]
    if pickles:
        raise _invalid(
            f"{name}/{pickles[0]}",
            pickles[0],
            f"{name} has its weights only in pickled files, which can run code when read.",
            remedy="Convert them to safetensors, or download the safetensors files.",
        )
    raise _missing("model", folder, f"{name}/ holds no {' or '.join(_WEIGHTS)}.")


def _indexed_files(folder: Path, name: str, index_name: str) -> dict[Path, list[str] | None]:
    table = _read_json(folder, index_name).get("weight_map")
    if not isinstance(table, dict) or not all(isinstance(file, str) for file in table.values()):
        raise _invalid(index_name, None, f"{index_name} has no weight_map.")
    files: dict[Path, list[str] | None] = {}
    by_file: dict[str, list[str]] = {}
    for tensor, file in table.items():
        if _is_read(name, tensor):
            by_file.setdefault(file, []).append(tensor)
    for file, tensors in by_file.items():
        path = folder / name / file
        if Path(file).name != file or not path.is_file():
            raise _missing("model", folder, f"{index_name} names {file}, which is not in {name}/.")
        files[path] = tensors
    return files


def _read_tensors(file: Path, shown: str) -> dict[str, TensorInfo]:
    try:
        with file.open("rb") as stream:
            return read_header(stream, file.stat().st_size, field=shown)
    except (OSError, RequestError) as error:
        raise _invalid(shown, None, f"{shown} is not a whole safetensors file: {error}") from error


def _is_read(component: str, tensor: str) -> bool:
    """Whether a rank ever reads ``tensor``."""
    if component != "text_encoder":
        return True
    match = _UNREAD.match(tensor)
    return match is None or (match[1] is not None and int(match[1]) < TEXT_LAYERS)


def _missing(field: str, value: object, message: str) -> ConfigError:
    return ConfigError(
        "checkpoint_missing",
        message,
        field=field,
        value=str(value),
        remedy="Point --model at a whole MiniMax-H3 checkpoint in diffusers' layout, or make one with make-tiny.",
    )


def _invalid(field: str, value: object, message: str, *, remedy: str | None = None) -> ConfigError:
    return ConfigError(
        "checkpoint_invalid",
        message,
        field=field,
        value=value,
        remedy=remedy or "Download the file again, or use a MiniMax-H3 checkpoint in diffusers' layout.",
    )
