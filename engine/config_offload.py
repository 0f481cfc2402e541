"""The options that say where the weights live, resolved; what contradicts each other is refused.

Raises `ConfigError` naming option, value and remedy. Imports no torch.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from typing import Any

from .contract.errors import ConfigError
from .packages import is_installed, package_for_option
from .rank_options import OffloadOptions
from .shared_memory import why_not_shared

logger = logging.getLogger(__name__)

_AUTO = "auto"


def resolve_offload(
    values: Mapping[str, Any], *, device_memory: int | None = None, host_memory: int | None = None
) -> OffloadOptions:
    """Return the options of offload among ``values``; copies are each rank's own where memory cannot be shared.

    Args:
        device_memory: bytes of a rank's device that may be used, unless it is given; None: not known.
        host_memory: the same of the host; None: it is not checked.

    Raises:
        ConfigError: ``config_conflict`` for options that cannot work together, ``missing_package``.
    """
    given = {field.name: values[field.name] for field in dataclasses.fields(OffloadOptions)}
    blocks = given["resident_blocks"]
    if given["gpu_memory"] is None and device_memory is not None:
        given["gpu_memory"] = device_memory / 1e9
    if given["host_memory"] is None and host_memory is not None:
        given["host_memory"] = host_memory / 1e9
    options = OffloadOptions(
        **{
            **given,
            "offload": tuple(given["offload"] or ()),
            "resident_blocks": None if blocks == _AUTO else blocks,
        }
    )
    if "vae" in options.offload and values["vae_resident"]:
        raise _conflict(
            "The VAEs cannot both stay on the device and be offloaded.",
            field="offload",
            value=",".join(options.offload),
            remedy="Leave vae out of --offload, or leave --vae-resident out.",
        )
    if "dit" in options.offload and values["shard_weights"]:
        raise _conflict(
            "Weights that are divided among the ranks of the sequence cannot be streamed too; nobody has measured it.",
            field="offload",
            value=",".join(options.offload),
            remedy="Leave --shard-weights out, or dit out of --offload.",
        )
    if options.resident_blocks != 0 and not set(options.offload) - {"vae"}:
        raise _conflict(
            "Blocks are resident among those that stream; nothing streams here.",
            field="resident_blocks",
            value=blocks,
            remedy="Give --offload too, or leave --resident-blocks out: all weights stay on the device.",
        )
    _check_storage(options.block_storage, values)
    reason = why_not_shared() if options.host_copies == "shared" else None
    if reason is not None:
        logger.warning("each rank keeps its own host copy of the weights that stream: %s", reason)
        return dataclasses.replace(options, host_copies="own")
    return options


def _check_storage(storage: str, values: Mapping[str, Any]) -> None:
    """Check what ``storage`` of the blocks' weights cannot work with."""
    if storage == "full":
        return
    if values["shard_weights"]:
        raise _conflict(
            "torch gathers weights that are divided among the ranks of the sequence in the type they are computed in.",
            field="block_storage",
            value=storage,
            remedy="Leave --shard-weights out, or --block-storage.",
        )
    divided = next((name for name in ("tp_degree", "text_encoder_tp_degree") if values[name] > 1), None)
    if storage == "int8" and divided is not None:
        option = divided.replace("_", "-")
        raise _conflict(
            f"Weights that are kept in int8 cannot be divided among ranks (--{option} {values[divided]}).",
            field="block_storage",
            value=storage,
            remedy=f"Leave --{option} out, or use --block-storage fp8.",
        )
    if storage == "int8" and not is_installed("torchao"):
        raise package_for_option("torchao", field="block_storage", value=storage)


def _conflict(message: str, *, field: str, value: object, remedy: str) -> ConfigError:
    return ConfigError("config_conflict", message, field=field, value=value, remedy=remedy)
