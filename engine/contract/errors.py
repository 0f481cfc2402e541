"""Typed errors that cross the wire: a code, the field, its value, and what to do about it.

Every error that a user can see is an `EngineError`. Its ``code`` is one of `CODES`; the class says whose fault it
is and what survives. On the wire an error is the dictionary of `EngineError.to_dict`; `error_from_dict` is its
inverse. Classes differ between the two sides of the wire (two module names), so compare ``code``.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

_VALUE_LIMIT = 200
_INT_LIMIT = 2**64


def _short(value: object) -> object:
    """Keep scalars; show anything else, or anything long, as a cut string (a value is a hint, not a payload)."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        # Python refuses to print integers of more than 4,300 digits; such a value is told by its size.
        return value if abs(value) <= _INT_LIMIT else f"a whole number of {value.bit_length()} bits"
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _VALUE_LIMIT else text[: _VALUE_LIMIT - 1] + "…"


class EngineError(Exception):
    """Base of all typed errors.

    Args:
        code: one of `CODES`.
        message: one sentence that says what is wrong.
        field: path of the offending field (``request.width``), or None.
        value: the offending value; long ones are cut.
        remedy: one sentence that says what to do.
        details: further facts as JSON (for example the failing rank).
    """

    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        code: str,
        message: str,
        *,
        field: str | None = None,
        value: object = None,
        remedy: str | None = None,
        details: dict[str, Any] | None = None,
    ) -> None:
        assert code in CODES, code
        super().__init__(message)
        self.code = code
        self.message = message
        self.field = field
        self.value = _short(value)
        self.remedy = remedy
        self.details = details or {}

    def __str__(self) -> str:
        """What a person reads: message, field and value, remedy."""
        parts = [self.message]
        if self.field is not None:
            parts.append(f"[{self.field}]" if self.value is None else f"[{self.field} = {self.value!r}]")
        if self.remedy:
            parts.append(self.remedy)
        return " ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: code, kind, message, field, value, remedy, retryable, details."""
        return {
            "code": self.code,
            "kind": type(self).__name__,
            "message": self.message,
            "field": self.field,
            "value": self.value,
            "remedy": self.remedy,
            "retryable": self.retryable,
            "details": self.details,
        }


class ConfigError(EngineError):
    """The operator's options or checkpoint are wrong; nothing was started."""

    status = 500


class RequestError(EngineError):
    """The caller's fault (4xx). No rank was woken, unless only a tensor's values are wrong: the ranks read those."""

    status = 400

    def __init__(self, code: str, message: str, **kwargs: Any) -> None:
        super().__init__(code, message, **kwargs)
        self.status = _REQUEST_STATUS.get(code, 400)  # type: ignore[misc]


class JobError(EngineError):
    """The job failed; the engine serves the next one."""

    status = 500
    retryable = True


class JobCancelled(EngineError):
    """The job was cancelled on request; the engine serves the next one."""

    status = 409

    def __init__(self, code: str = "cancelled", message: str = "The job was cancelled.", **kwargs: Any) -> None:
        super().__init__(code, message, **kwargs)


class EngineBusyError(EngineError):
    """The queue is full."""

    status = 503
    retryable = True


class EngineDeadError(EngineError):
    """The ranks are gone and will not come back by themselves."""

    status = 503


CODES: dict[str, str] = {
    # ConfigError
    "config_unknown_key": "an option or YAML key does not exist",
    "config_bad_value": "an option has a value it cannot have",
    "config_conflict": "two options contradict each other",
    "checkpoint_missing": "the model folder, or one of its components, is missing",
    "checkpoint_invalid": "a component's configuration or weights cannot be used",
    "start_failed": "the engine or its ranks did not start",
    "remote_code_refused": "a component of the checkpoint brings code of its own, which is not trusted",
    # RequestError
    "invalid_json": "the text is not JSON, or not an object",
    "unknown_message": "the message type does not exist",
    "protocol_mismatch": "client and engine speak different protocol versions",
    "missing_field": "a required field is absent",
    "unknown_field": "a field does not exist",
    "wrong_type": "a field has the wrong JSON type",
    "out_of_range": "a number or text is outside its range",
    "bad_canvas": "width or height cannot be made by the model",
    "bad_aspect": "the aspect ratio is outside 1:4 to 4:1",
    "prompt_empty": "the prompt is empty",
    "prompt_too_long": "the prompt has more tokens than the limit",
    "bad_tensor": "a tensor's name, type, shape or bytes are not what the request needs",
    "wrong_model": "a latent or conditioning belongs to another model",
    "bad_checksum": "a part's bytes do not match its sha256",
    "body_too_large": "the request is larger than the operator's limit",
    "bad_media": "a picture, clip or sound cannot be read, or is not what its field needs",
    "media_limit": "pictures, clips or sounds are too many, too short or too long",
    "does_not_fit": "a configuration or a request needs more memory than there is, by the planner's count",
    "bad_mask": "a mask is not one, or belongs to another canvas or length",
    "unsupported_version": "a document was written in a version that this engine does not know",
    "missing_package": "the engine's environment lacks a package that a request or an option needs",
    "stage_not_served": "this engine does not serve the stage",
    "partition_not_loaded": "this engine has not loaded the partition that the request needs",
    "unknown_job": "no job has this id",
    "duplicate_job": "a job with this id exists already",
    "no_result": "the job has no result to give (yet)",
    "unauthorized": "the token is missing or wrong",
    "forbidden_origin": "the page or host that asks is not allowed",
    # JobError and the others
    "job_failed": "a stage raised an error",
    "out_of_memory": "a device ran out of memory",
    "rank_lost": "a rank died or stopped answering; the fleet restarts",
    "cancelled": "the job was cancelled",
    "client_too_slow": "the client did not take its frames, and the ranks waited too long for it",
    "disk_full": "the engine's run folder has no room for what was made",
    "queue_full": "the queue has no place left",
    "engine_dead": "the ranks are gone",
    "connection_lost": "the engine cannot be reached",
}
"""Every error code, with what it means. ``docs/protocol.md`` lists the same."""

_REQUEST_STATUS = {
    "unknown_job": 404,
    "no_result": 404,
    "duplicate_job": 409,
    "body_too_large": 413,
    "unauthorized": 401,
    "forbidden_origin": 403,
    "stage_not_served": 422,
    "partition_not_loaded": 422,
    "missing_package": 422,
}

_KINDS: dict[str, type[EngineError]] = {
    cls.__name__: cls for cls in (ConfigError, RequestError, JobError, JobCancelled, EngineBusyError, EngineDeadError)
}


def error_from_dict(data: dict[str, Any]) -> EngineError:
    """Rebuild an error from `EngineError.to_dict`; an unknown code or kind becomes ``job_failed``."""
    cls = _KINDS.get(str(data.get("kind")), JobError)
    code = str(data.get("code"))
    if code not in CODES:
        cls, code = JobError, "job_failed"
    return cls(
        code,
        str(data.get("message", "")),
        field=data.get("field"),
        value=data.get("value"),
        remedy=data.get("remedy"),
        details=data.get("details") or {},
    )
