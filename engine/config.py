"""The options of ``serve``: one table, read from the command line and from a YAML file.

`OPTIONS` drives both readers, so that an option has one name, one type and one default. `build_config` merges them
(the command line wins) and returns a frozen `EngineConfig` whose values agree with each other and with the machine.
Raises `ConfigError` naming the key, the value and the remedy. Imports no torch.
"""

from __future__ import annotations

import difflib
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from . import env
from .checkpoint import peek_facts
from .config_devices import find_devices, memory_to_use, physical_memory
from .config_layout import resolve_layout
from .config_offload import resolve_offload
from .config_presets import preset_file
from .config_vae import TILE_RANGES, resolve_vae
from .config_values import Option, check_value
from .contract.errors import ConfigError
from .contract.limits import MAX_RANK_WEIGHT, MIN_RANK_WEIGHT, PAD_MULTIPLE, Limits
from .contract.requests import STAGES
from .rank_options import COMPONENTS, PARTITIONS, ModelOptions, OffloadOptions, ParallelOptions, VaeOptions
from .stacks import FAMILIES

DEVICES = ("auto", "cpu", "cuda", "xpu", "npu")
DTYPES = ("auto", "fp32", "bf16")
MEDIA_ENCODE = ("patch", "leader")
BLOCK_STORAGE = ("full", "fp8", "int8")
HOST_COPIES = ("shared", "own")
DEFAULT_PORT = 8190


_LIMITS = Limits()
_VAE = VaeOptions()
_OFFLOAD = OffloadOptions()
OPTIONS = (
    Option("model", str, None, "checkpoint folder in diffusers' layout (required)"),
    Option("host", str, "127.0.0.1", "address to listen on; other than loopback needs a token"),
    Option("port", int, DEFAULT_PORT, "port to listen on; 0 picks a free one", high=65535),
    Option("ready_file", str, None, "JSON file written when the port is bound: url, pid, token_needed"),
    Option("device", str, "auto", "device of the ranks", DEVICES),
    Option("dtype", str, "auto", "compute type; auto is bf16 on accelerators and fp32 on CPU", DTYPES),
    Option("nproc_per_node", int, None, "ranks; one per accelerator by default, else 1", low=1, high=1024),
    Option("ulysses_degree", int, None, "ranks that trade rows for heads; by default the rest", low=1, high=1024),
    Option("ring_degree", int, 1, "ranks around which keys and values travel", low=1, high=1024),
    Option("tp_degree", int, 1, "ranks among which the transformer's layers are split", low=1, high=1024),
    Option(
        "text_encoder_tp_degree", int, 1, "ranks among which the text encoder is split: 1, 2, 4 or 8", low=1, high=8
    ),
    Option(
        "rank_weights",
        tuple,
        None,
        "a number for each rank of the sequence: its share of the rows, such as 2,1,1",
        low=MIN_RANK_WEIGHT,
        high=MAX_RANK_WEIGHT,
    ),
    Option("shard_weights", bool, False, "each rank keeps a part of the transformer's weights and gathers the rest"),
    Option("compile", bool, False, "compile the transformer's blocks; see pad_seq_len of a request"),
    Option(
        "vae_tile",
        int,
        _VAE.vae_tile,
        "side of the VAE's tiles, pixels, a multiple of 16; another changes the picture",
        low=TILE_RANGES["vae_tile"][0],
        high=TILE_RANGES["vae_tile"][1],
    ),
    Option(
        "vae_tile_overlap",
        int,
        _VAE.vae_tile_overlap,
        "least overlap of tiles, pixels, a multiple of 16",
        low=TILE_RANGES["vae_tile_overlap"][0],
        high=TILE_RANGES["vae_tile_overlap"][1],
    ),
    Option("vae_resident", bool, False, "keep both VAEs on the device, if they fit; else each only while it is used"),
    Option("vae_on_one_rank", bool, False, "load and run the video VAE on rank 0 alone; else all ranks share its work"),
    Option(
        "media_encode", str, _VAE.media_encode, "encode media tile by tile on all ranks, or on rank 0", MEDIA_ENCODE
    ),
    Option(
        "gather_workspace_mb",
        int,
        _VAE.gather_workspace_mb,
        "buffers for the VAE's tiles that a rank may keep, MB of 1e6 bytes",
        high=10**6,
    ),
    Option("release_gather_workspace", bool, False, "give those buffers back whenever a VAE leaves the device"),
    Option(
        "offload",
        list,
        None,
        f"families whose blocks stream from host memory: {','.join(FAMILIES)}; all when none is named",
        tuple(FAMILIES),
        bare=",".join(FAMILIES),
    ),
    Option(
        "resident_blocks",
        int,
        _OFFLOAD.resident_blocks,
        "blocks of each streamed stack that stay on the device, or auto: as many as fit",
        high=1000,
        word="auto",
    ),
    Option(
        "block_storage",
        str,
        _OFFLOAD.block_storage,
        "how the weights of the block stacks are kept: full, or reduced and computed in the compute type",
        BLOCK_STORAGE,
    ),
    Option(
        "modulation_tables_mb",
        int,
        _OFFLOAD.modulation_tables_mb,
        "host memory for a run's modulation computed once, MB of 1e6 bytes a rank; 0: its weights stay with the blocks",
        high=10**6,
    ),
    Option(
        "host_copies",
        str,
        _OFFLOAD.host_copies,
        "whether ranks of one host share the copy that blocks stream from, or each has its own",
        HOST_COPIES,
    ),
    Option(
        "gpu_memory",
        float,
        None,
        "memory of a rank's device that may be used, GB of 1e9 bytes (default: what is free at the start; of plan all)",
        low=0.001,
        high=10**6,
    ),
    Option(
        "host_memory",
        float,
        None,
        "the host's memory that its ranks may use together, GB of 1e9 bytes (default: what it has; on CPUs unchecked)",
        low=0.001,
        high=10**6,
    ),
    Option("stages", list, list(STAGES), f"stages to serve, separated by commas: {','.join(STAGES)}", STAGES),
    Option("partitions", list, None, f"transformers to load, separated by commas: {','.join(PARTITIONS)}", PARTITIONS),
    Option(
        "component_dir", dict, None, f"another folder for a component, repeatable: {', '.join(COMPONENTS)}", COMPONENTS
    ),
    Option("trust_remote_code", bool, False, "run code that components of the checkpoint bring"),
    Option("token_file", str, None, f"file that holds the bearer token (or set {env.TOKEN})"),
    Option("stop_on_eof", bool, False, "stop when standard input ends"),
    Option("max_prompt_tokens", int, _LIMITS.max_prompt_tokens, "longest prompt, tokens", low=1, high=10**6),
    Option("max_seconds", float, _LIMITS.max_seconds, "longest video, seconds", low=0.25, high=3600),
    Option("max_side", int, _LIMITS.max_side, "largest width and height, pixels", low=32, high=2**16),
    Option(
        "max_body_bytes",
        int,
        _LIMITS.max_body_bytes,
        "largest request with its tensors, bytes",
        low=1024,
        high=10**15,
    ),
    Option(
        "max_pad_seq_len",
        int,
        _LIMITS.max_pad_seq_len,
        "largest pad_seq_len of a request, rows",
        low=PAD_MULTIPLE,
        high=2**24,
    ),
    Option(
        "media_timeout",
        float,
        _LIMITS.media_timeout,
        "longest time to read the pictures and sounds of a request, seconds",
        low=1,
        high=86_400,
    ),
    Option(
        "client_timeout",
        float,
        _LIMITS.client_timeout,
        "longest time that the ranks wait for a client that takes no chunk of frames, seconds",
        low=1,
        high=86_400,
    ),
    Option("max_queue", int, _LIMITS.max_queue, "jobs that may wait", low=1, high=10_000),
    Option(
        "cache_mb",
        int,
        1000,
        "results kept for requests that need the same again, MB of 1e6 bytes in the run folder; 0: none",
        high=10**6,
    ),
    Option("data_timeout", float, 600.0, "seconds until a silent rank counts as lost", low=10, high=86_400),
    Option("run_dir", str, None, "folder for sockets and tensors in flight (default: /dev/shm, else the temp folder)"),
)
_BY_NAME = {option.name: option for option in OPTIONS}


@dataclass(frozen=True)
class EngineConfig:
    """What `build_config` resolved; no field is unset that has a meaning.

    Attributes:
        model: absolute checkpoint folder.
        host: address to listen on. port: 0 picks a free one.
        ready_file: where to announce the bound port, or None.
        device: ``auto``, ``cpu``, ``cuda``, ``xpu`` or ``npu``. dtype: ``auto``, ``fp32`` or ``bf16``.
        nproc_per_node: ranks on this host. layout: how they share the work. vae: the same for the VAEs.
        offload: where the weights live; ``gpu_memory`` is set where the device tells its own.
        accelerator: whether the ranks have devices of their own.
        stages: the stages served, in the contract's order. model_options: what is loaded of the checkpoint.
        token: the bearer token, or None.
        stop_on_eof: stop when standard input ends.
        limits: the operator's limits.
        cache_mb: results that are kept, MB of 1e6 bytes; 0: none.
        data_timeout: seconds until a silent rank counts as lost.
        run_dir: where the run folder is made, or None for the default.
    """

    model: Path
    host: str
    port: int
    ready_file: Path | None
    device: str
    dtype: str
    nproc_per_node: int
    layout: ParallelOptions
    vae: VaeOptions
    offload: OffloadOptions
    accelerator: bool
    stages: tuple[str, ...]
    model_options: ModelOptions
    token: str | None
    stop_on_eof: bool
    limits: Limits
    cache_mb: int
    data_timeout: float
    run_dir: Path | None


class _Loader(yaml.SafeLoader):
    """YAML of plain values; a key that stands twice is an error instead of a surprise."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return the mapping of ``node``."""
        keys = [key.value for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} stands twice", node.start_mark)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read the options of a YAML file.

    Raises:
        ConfigError: the file cannot be read, is no mapping, has an unknown key or a value of a wrong type.
    """
    try:
        data = _Loader(path.read_text(encoding="utf-8")).get_single_data()
    except (OSError, ValueError, OverflowError, RecursionError, yaml.YAMLError) as error:
        raise ConfigError(
            "config_bad_value",
            f"The configuration file cannot be read: {error}",
            field="config",
            value=str(path),
            remedy="Give a YAML file of options.",
        ) from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(
            "config_bad_value",
            "The configuration file is not a mapping of options.",
            field="config",
            value=str(path),
            remedy="Write one 'key: value' a line.",
        )
    return check_options(data)


def check_options(data: Mapping[Any, Any]) -> dict[str, Any]:
    """Return ``data`` with normalised keys (``-`` and ``_`` are one) and checked values.

    Raises:
        ConfigError: ``config_unknown_key`` with close matches, ``config_bad_value``.
    """
    checked: dict[str, Any] = {}
    seen: dict[str, Any] = {}
    for key, value in data.items():
        name = str(key).replace("-", "_")
        option = _BY_NAME.get(name)
        if option is None:
            close = difflib.get_close_matches(name, _BY_NAME, n=3)
            raise ConfigError(
                "config_unknown_key",
                f"There is no option {key!r}.",
                field=str(key),
                value=value,
                remedy=f"Did you mean {' or '.join(close)}?" if close else f"Options: {', '.join(_BY_NAME)}.",
            )
        if name in seen:
            raise ConfigError(
                "config_conflict",
                f"{seen[name]!r} and {key!r} are one option.",
                field=name,
                value=value,
                remedy="Leave one of them out.",
            )
        seen[name] = key
        if value is not None:
            checked[name] = check_value(option, value)
    return checked


def merge_options(
    given: Mapping[str, Any], *, config_file: Path | None = None, preset: str | None = None
) -> dict[str, Any]:
    """Return every option's value: the default, else the preset's, else the file's, else the one ``given``.

    Raises:
        ConfigError: as `read_yaml`, `check_options` and `preset_file`.
    """
    values = {option.name: option.default for option in OPTIONS}
    values |= read_yaml(preset_file(preset)) if preset is not None else {}
    values |= read_yaml(config_file) if config_file is not None else {}
    return values | check_options(given)


def build_config(
    given: Mapping[str, Any], config_file: Path | None = None, *, preset: str | None = None
) -> EngineConfig:
    """Merge the options (`merge_options`) and resolve the rest.

    Args:
        given: only the options that stand on the command line.

    Raises:
        ConfigError: as `merge_options`, or two values contradict each other or the machine.
    """
    values = merge_options(given, config_file=config_file, preset=preset)
    if values["model"] is None:
        raise ConfigError(
            "config_bad_value",
            "No model is given.",
            field="model",
            remedy="Give --model DIR, a checkpoint folder in diffusers' layout (make-tiny makes a small one).",
        )
    token = _read_token(values["token_file"])
    _check_host(values["host"], token)
    model = absolute_path(values["model"], field="model")
    devices = find_devices(values["device"])
    layout = resolve_layout(values, devices, peek_facts(model, values["component_dir"] or {}))
    return EngineConfig(
        model=model,
        host=values["host"],
        port=values["port"],
        ready_file=_path(values, "ready_file"),
        device=values["device"],
        dtype=values["dtype"],
        nproc_per_node=layout.world_size,
        layout=layout,
        vae=resolve_vae(values),
        # On CPUs the weights are pages of the checkpoint's files, which the system may drop.
        offload=resolve_offload(
            values,
            device_memory=memory_to_use(devices, ranks=layout.world_size, given=values["gpu_memory"]),
            host_memory=None if devices.kind == "cpu" else physical_memory(),
        ),
        accelerator=devices.kind != "cpu",
        stages=tuple(values["stages"]),
        model_options=_model_options(values),
        token=token,
        stop_on_eof=values["stop_on_eof"],
        limits=Limits(
            max_prompt_tokens=values["max_prompt_tokens"],
            max_seconds=values["max_seconds"],
            max_side=values["max_side"],
            max_body_bytes=values["max_body_bytes"],
            max_queue=values["max_queue"],
            max_pad_seq_len=values["max_pad_seq_len"],
            media_timeout=values["media_timeout"],
            client_timeout=values["client_timeout"],
        ),
        cache_mb=values["cache_mb"],
        data_timeout=values["data_timeout"],
        run_dir=_path(values, "run_dir"),
    )


def _model_options(values: Mapping[str, Any]) -> ModelOptions:
    partitions, given = values["partitions"], values["component_dir"] or {}
    return ModelOptions(
        partitions=None if partitions is None else tuple(partitions),
        component_dirs={name: str(absolute_path(path, field="component_dir")) for name, path in given.items()},
        own_code=values["trust_remote_code"],
    )


def _path(values: Mapping[str, Any], name: str) -> Path | None:
    return None if values[name] is None else absolute_path(values[name], field=name)


def absolute_path(text: str, *, field: str) -> Path:
    """Return ``text`` as an absolute path, a leading ``~`` resolved; nothing has to be there.

    Raises:
        ConfigError: ``config_bad_value`` when it is no path (a null character, an unknown user's home).
    """
    try:
        return Path(text).expanduser().resolve()
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(
            "config_bad_value",
            f"{field} is not a usable path: {error}",
            field=field,
            value=text,
            remedy="Give the path of a file or folder of this machine.",
        ) from error


def is_loopback(host: str) -> bool:
    """Whether ``host`` (a name or address, without port) is this machine's loopback."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _check_host(host: str, token: str | None) -> None:
    if not is_loopback(host) and token is None:
        raise ConfigError(
            "config_conflict",
            f"Listening on {host} would let anyone on the network use this engine.",
            field="host",
            value=host,
            remedy=f"Give --token-file FILE (or set {env.TOKEN}), or listen on 127.0.0.1.",
        )


def _read_token(file: str | None) -> str | None:
    if file is None:
        return env.read_token()
    try:
        text = absolute_path(file, field="token_file").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            "config_bad_value", f"The token file cannot be read: {error}", field="token_file", value=file
        ) from error
    return env.check_token(text, field="token_file", value=file)
