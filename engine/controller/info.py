"""The answer of ``GET /v1/info``. Raises nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ..checkpoint import Checkpoint
from ..config import EngineConfig
from ..contract.media_limits import MEDIA_LIMITS
from ..contract.version import ENGINE_VERSION, PROTOCOL_VERSION
from ..planner.capacity import Capacity

_OF_RANKS = (
    "device",
    "dtype",
    "backend",
    "pids",
    "weight_bytes",
    "device_weight_bytes",
    "host_copy_bytes",
)
"""What only the ranks know."""


def describe_engine(
    config: EngineConfig, checkpoint: Checkpoint, capacity: Capacity | None, ranks: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the description of an engine as JSON.

    Args:
        ranks: what they told when they were ready; what is not there is null.
    """
    return {
        "version": ENGINE_VERSION,
        "protocol": PROTOCOL_VERSION,
        "model": {"name": checkpoint.folder.name, "path": str(checkpoint.folder)},
        "partitions": list(checkpoint.partitions),
        "stages": list(config.stages),
        "ranks": config.nproc_per_node,
        "layout": config.layout.to_dict(),
        "offload": config.offload.to_dict(),
        "plan": capacity.describe() if capacity else None,
        **{name: ranks.get(name) for name in _OF_RANKS},
        "facts": checkpoint.facts.to_dict(),
        "limits": config.limits.to_dict(),
        "media": dataclasses.asdict(MEDIA_LIMITS),
        "cache_mb": config.cache_mb,
    }
