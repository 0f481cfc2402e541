"""What the user is told of an error on a rank. Raises nothing."""

from __future__ import annotations

from .contract.errors import EngineError, JobError
from .devices_memory import is_out_of_memory
from .parallel.agreement import CONSEQUENCE
from .parallel.collectives import DataGroupError

_TEXT_LIMIT = 2000


def job_error(error: Exception, *, stage: str | None, rank: int) -> EngineError:
    """Return what the user is told of ``error``, raised in ``stage`` on ``rank``."""
    if isinstance(error, EngineError):
        return error
    where = {"stage": stage, "rank": rank}
    named = f"[rank {rank}] {type(error).__name__}"
    if is_out_of_memory(error):
        return JobError(
            "out_of_memory",
            f"{named}: out of memory (stage {stage})",
            remedy="Ask for a smaller canvas or a shorter video, or use more ranks.",
            details=where,
        )
    text = f"{named}: {str(error)[:_TEXT_LIMIT]} (stage {stage})"
    if isinstance(error, DataGroupError):
        return JobError("job_failed", text, details={**where, CONSEQUENCE: True})
    return JobError("job_failed", text, remedy="The engine's log has the whole traceback.", details=where)
