"""Reading a MiniMax-H3 checkpoint folder (diffusers' layout) without torch.

`open_checkpoint` reads JSON files and safetensors headers only, so that a wrong folder stops the engine before any
rank starts. Promise: every tensor a rank will read is there, of a known type, inside its file. Components that the
served stages do not need may be absent, as may files that hold only tensors nobody reads: the text encoder's layers
after the 50th, the half of a VAE that only encodes or only decodes.
Raises `ConfigError` (``checkpoint_missing``, ``checkpoint_invalid``, ``remote_code_refused``, ``config_conflict``)
naming what is wrong and what to do.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from .checkpoint_code import OwnCode, find_own_code
from .checkpoint_facts import TEXT_LAYERS, read_facts
from .checkpoint_files import StoredTensor, invalid, missing, read_json, read_tensors_of
from .contract.errors import ConfigError
from .contract.limits import ModelFacts
from .contract.requests import STAGES
from .rank_options import COMPONENTS, PARTITIONS, ModelOptions

COMPONENTS_OF: dict[str, tuple[str, ...]] = {
    "encode_prompt": ("text_encoder",),
    "encode_media": ("vae", "audio_vae"),
    "denoise": PARTITIONS,
    "decode_video": ("vae",),
    "decode_audio": ("audio_vae",),
}
"""The components with weights that each stage needs."""
_FOLDERS_OF = {"encode_prompt": ("tokenizer",), "denoise": ("scheduler", "audio_scheduler")}
_SMALL_FILES = {"tokenizer": "tokenizer.json"}
_INDEX = "modular_model_index.json"
_HALVES: dict[str, dict[str, tuple[str, ...]]] = {
    "vae": {"encode_media": ("encoder", "quant_conv"), "decode_video": ("decoder", "post_quant_conv")},
    "audio_vae": {
        "encode_media": ("encoder", "pre_block", "mean_proj", "logs_proj"),
        "decode_audio": ("dec_in_proj", "decoder"),
    },
}
"""The children of a VAE that one stage alone needs."""
_UNREAD_TEXT = re.compile(r"lm_head\.|model\.language_model\.norm\.|model\.language_model\.layers\.(\d+)\.")


@dataclass(frozen=True)
class Component:
    """A component with weights.

    Attributes:
        name: one of `rank_options.WEIGHTED`.
        folder: its folder. config: its ``config.json``.
        tensors: what will be read, by name; never the text encoder's unneeded layers, final norm and head.
        left_out: children of the model that no served stage needs; their tensors are not read.
        own_code: code that it brings and that the operator trusts.
    """

    name: str
    folder: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]
    left_out: tuple[str, ...] = ()
    own_code: OwnCode | None = None

    @property
    def bytes(self) -> int:
        """Bytes that will be read."""
        return sum(tensor.bytes for tensor in self.tensors.values())

    def without(self, children: tuple[str, ...]) -> Component:
        """Return the same without these children of the model."""
        tensors = {name: stored for name, stored in self.tensors.items() if name.partition(".")[0] not in children}
        return dataclasses.replace(self, tensors=tensors, left_out=(*self.left_out, *children))


@dataclass(frozen=True)
class SmallComponent:
    """A component without weights: ``tokenizer``, ``processor`` or a scheduler."""

    name: str
    folder: Path
    own_code: OwnCode | None = None


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint.

    Attributes:
        folder: the checkpoint's folder.
        facts: what its configurations say; the released values for components that it lacks.
        partitions: which of `PARTITIONS` are loaded.
        components: the components with weights that the served stages need, by name.
        small: those without weights, by name; ``processor``, which only pictures need, may be absent.
    """

    folder: Path
    facts: ModelFacts
    partitions: tuple[str, ...]
    components: Mapping[str, Component]
    small: Mapping[str, SmallComponent]

    def without(self, stage: str) -> Checkpoint:
        """Return the same without what ``stage`` alone needs of the VAEs, for a rank that takes no part in it."""
        parts = {name: part.without(_HALVES.get(name, {}).get(stage, ())) for name, part in self.components.items()}
        return dataclasses.replace(self, components={name: part for name, part in parts.items() if part.tensors})

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        path = self.small["tokenizer"].folder / "tokenizer.json"
        try:
            return Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception for every fault
            raise invalid("tokenizer/tokenizer.json", str(error), "The tokenizer cannot be read.") from error

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


def open_checkpoint(
    folder: str | Path, *, stages: Iterable[str] = STAGES, options: ModelOptions | None = None
) -> Checkpoint:
    """Open the checkpoint in ``folder`` for ``stages``.

    Raises:
        ConfigError: ``checkpoint_missing``, ``checkpoint_invalid``, ``remote_code_refused``, or ``config_conflict`` for
            options that name a component which these stages do not need.
    """
    folder, options, stages = Path(folder), options or ModelOptions(), tuple(stages)
    if not folder.is_dir():
        raise missing(folder, "The model folder does not exist.")
    folders = {name: Path(options.component_dirs.get(name, folder / name)) for name in COMPONENTS}
    partitions = _pick_partitions(folders, options.partitions) if "denoise" in stages else ()
    needed = [name for name in needed_components(stages) if name not in PARTITIONS or name in partitions]
    small = [name for stage in stages for name in _FOLDERS_OF.get(stage, ())]
    if "encode_prompt" in stages and ("processor" in options.component_dirs or folders["processor"].is_dir()):
        small.append("processor")
    _check_options(options, stages, needed=[*needed, *small])
    index = read_json(folder / _INDEX, _INDEX)
    _check_folders(folder, options, {name: folders[name] for name in [*needed, *small]})
    code = {
        name: find_own_code(name, folders[name], index.get(name), trusted=options.own_code)
        for name in [*needed, *small]
    }
    for name in small:
        if name != "processor":
            file = _SMALL_FILES.get(name, "scheduler_config.json")
            read_json(folders[name] / file, f"{name}/{file}")
    return Checkpoint(
        folder,
        read_facts(index, folders),
        partitions,
        {name: _open_component(name, folders[name], stages, code[name]) for name in needed},
        {name: SmallComponent(name, folders[name], code[name]) for name in small},
    )


def peek_facts(folder: Path, component_dirs: Mapping[str, str]) -> ModelFacts:
    """Return what the checkpoint in ``folder`` says of itself; the released values if `open_checkpoint` refuses it."""
    try:
        folders = {name: Path(component_dirs.get(name, folder / name)) for name in COMPONENTS}
        return read_facts(read_json(folder / _INDEX, _INDEX), folders)
    except ConfigError:
        return ModelFacts()


def needed_components(stages: Iterable[str]) -> tuple[str, ...]:
    """Return the components with weights that ``stages`` need, each once."""
    return tuple(dict.fromkeys(name for stage in stages for name in COMPONENTS_OF[stage]))


def left_out_children(name: str, stages: Iterable[str]) -> tuple[str, ...]:
    """Return the children of the component ``name`` that none of ``stages`` needs."""
    served, halves = tuple(stages), _HALVES.get(name, {})
    return tuple(child for stage, children in halves.items() if stage not in served for child in children)


def _pick_partitions(folders: Mapping[str, Path], asked: tuple[str, ...] | None) -> tuple[str, ...]:
    if asked is not None:
        return asked
    there = tuple(name for name in PARTITIONS if folders[name].is_dir())
    # Without any, the first is what is told to be missing.
    return there if PARTITIONS[0] in there else (PARTITIONS[0], *there)


def _check_options(options: ModelOptions, stages: tuple[str, ...], *, needed: list[str]) -> None:
    served = f"--stages {','.join(stages)}"
    if options.partitions is not None and "denoise" not in stages:
        raise ConfigError(
            "config_conflict",
            f"With {served} no transformer is loaded.",
            field="partitions",
            value=",".join(options.partitions),
            remedy="Leave --partitions out, or serve denoise.",
        )
    for name, path in options.component_dirs.items():
        if name not in needed:
            why = "with these --partitions" if name in PARTITIONS and "denoise" in stages else f"with {served}"
            raise ConfigError(
                "config_conflict",
                f"A folder is given for {name}, which is not loaded {why}.",
                field="component_dir",
                value=f"{name}={path}",
                remedy=f"Leave --component-dir {name}=… out, or serve a stage that needs {name}.",
            )


def _check_folders(folder: Path, options: ModelOptions, folders: Mapping[str, Path]) -> None:
    for name in options.component_dirs:
        if not folders[name].is_dir():
            raise missing(
                folders[name],
                f"The folder given for {name} does not exist.",
                field="component_dir",
                remedy=f"Give the folder of its config.json, or leave --component-dir {name}=… out.",
            )
    absent = [f"{name}/" for name, path in folders.items() if not path.is_dir()]
    if absent:
        raise missing(folder, f"The model folder lacks {', '.join(absent)}.")


def _open_component(name: str, folder: Path, stages: tuple[str, ...], own_code: OwnCode | None) -> Component:
    left_out = left_out_children(name, stages)

    def is_read(tensor: str) -> bool:
        if name == "text_encoder":
            match = _UNREAD_TEXT.match(tensor)
            return match is None or (match[1] is not None and int(match[1]) < TEXT_LAYERS)
        return tensor.partition(".")[0] not in left_out

    config = read_json(folder / "config.json", f"{name}/config.json")
    return Component(name, folder, config, read_tensors_of(name, folder, is_read=is_read), left_out, own_code)
