"""What the fleet tells each of its ranks, as JSON on their command line."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

CANNOT_START = "cannot_start"
"""Key in the fleet's store that a rank sets when starting again would fail again (the controller was told why)."""


@dataclass(frozen=True)
class RankOptions:
    """Options of every rank; checked by the server before.

    Attributes:
        model: checkpoint folder.
        ulysses_degree: ranks among which the packed sequence is split.
        device: ``auto`` or a device type. dtype: ``auto``, ``fp32`` or ``bf16``.
        stages: the stages served.
        link: path of the controller's Unix socket.
        data_timeout: seconds that a collective of a job may wait for a peer.
        launch: 0, 1, …: counts the fleet's launches of its ranks (each has its own restarts).
        fleet: process id of the fleet that launches them.
    """

    model: str
    ulysses_degree: int
    device: str
    dtype: str
    stages: tuple[str, ...]
    link: str
    data_timeout: float
    launch: int = 0
    fleet: int = 0

    def to_json(self) -> str:
        """Return one JSON argument."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RankOptions:
        """Read what `to_json` wrote."""
        data = json.loads(text)
        return cls(**{**data, "stages": tuple(data["stages"])})
