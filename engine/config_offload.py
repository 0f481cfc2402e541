"""The options that say where the weights live, resolved; what contradicts each other is refused.

Raises `ConfigError` naming option, value and remedy. Imports no torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from .contract.errors import ConfigError
from .rank_options import OffloadOptions

_AUTO = "auto"


def resolve_offload(values: Mapping[str, Any]) -> OffloadOptions:
    """Return the options of offload among ``values``.

    Raises:
        ConfigError: ``config_conflict`` for options that cannot work together.
    """
    given = {field.name: values[field.name] for field in dataclasses.fields(OffloadOptions)}
    blocks = given["resident_blocks"]
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
    return options


def _conflict(message: str, *, field: str, value: object, remedy: str) -> ConfigError:
    return ConfigError("config_conflict", message, field=field, value=value, remedy=remedy)
