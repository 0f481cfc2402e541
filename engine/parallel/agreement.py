"""Ranks agree on success, failure or cancellation before the next collective.

`Agreement.settle` is the one meeting point of a job: every rank calls it at the same boundaries, or once with the
error that took it out of the job. All ranks leave it alike: none raises, or all raise the same `EngineError` (the most
telling one). What a failure poisons is in `Agreement.poisoned`. A peer that died
makes the control group itself fail: RuntimeError, after which this rank must end too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from ..contract.errors import EngineError, JobCancelled, RequestError, error_from_dict
from .collectives import collect_json
from .mesh import Mesh

CONSEQUENCE = "consequence"
"""Key in an error's details: it only says that another rank failed first."""


class Agreement:
    """The meeting point of one job.

    Attributes:
        outcome: the error that all ranks agreed on; None until then.
        poisoned: whether the data group must be replaced, the outcome having left collectives unfinished.
    """

    def __init__(self, mesh: Mesh, cancelled: Callable[[], bool]) -> None:
        """Prepare for one job; ``cancelled`` says whether this rank (rank 0) was asked to cancel it."""
        self.outcome: EngineError | None = None
        self.poisoned = False
        self._mesh = mesh
        self._cancelled = cancelled

    def settle(self, error: EngineError | None = None) -> None:
        """Meet the other ranks.

        Raises:
            EngineError: the same on all ranks, ``error`` or another rank's; `JobCancelled`.
        """
        failed, cancelled, dirty = self._state(error)
        if failed:
            self.poisoned = dirty
            self.outcome = _most_telling(collect_json(error and error.to_dict(), self._mesh))
        elif cancelled:
            self.outcome = JobCancelled()
        if self.outcome is not None:
            raise self.outcome

    def _state(self, error: EngineError | None) -> tuple[bool, bool, bool]:
        """Return whether any rank failed, was asked to cancel, has unfinished data collectives."""
        state = torch.tensor([error is not None, self._cancelled(), self._mesh.dirty], dtype=torch.int32)
        if self._mesh.layout.world_size > 1:
            dist.all_reduce(state, op=dist.ReduceOp.MAX)
        failed, cancelled, dirty = (bool(flag) for flag in state.tolist())
        return failed, cancelled, dirty


def _most_telling(reports: list[dict[str, Any] | None]) -> EngineError:
    """Return a fault of the engine's before the caller's, these before consequences; of equals the lowest rank's."""
    errors = [error_from_dict(report) for report in reports if report is not None]
    return min(errors, key=lambda error: (bool(error.details.get(CONSEQUENCE)), isinstance(error, RequestError)))
