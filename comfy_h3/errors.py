"""What a node shows when something is wrong: the sentence, the input and its value, what to do, and the engine's log.

Errors of the contract (`EngineError`) are turned into `NodeError` at a node's edge by `node_errors`, which names the
node's input instead of the field on the wire. Everything else passes through untouched, ComfyUI's interrupt first of
all. Compare a `NodeError` by ``code``: the codes are the contract's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..engine.contract.errors import EngineError

_INPUT_OF_FIELD = {
    "parts.conditioning": "conditioning",
    "parts.latents": "latent",
    "request.": "",
}
"""Start of a field on the wire → the node's input."""
_LOG = "log"


class NodeError(Exception):
    """An error with the contract's ``code``, shown on the node.

    Args:
        error: what happened.
    """

    def __init__(self, error: EngineError) -> None:
        self.code = error.code
        self.field = _input_of(error.field)
        self.log = str(error.details.get(_LOG, ""))
        lines = [error.message]
        if self.field is not None and error.value is not None:
            lines.append(f"{self.field} = {error.value!r}")
        if error.remedy:
            lines.append(error.remedy)
        if self.log:
            lines.append(f"The end of the engine's log:\n{self.log}")
        super().__init__("\n".join(lines))


def _input_of(field: str | None) -> str | None:
    if field is None:
        return None
    for start, name in _INPUT_OF_FIELD.items():
        if field.startswith(start):
            return name or field.removeprefix(start)
    return field


def with_log(error: EngineError, log: str) -> EngineError:
    """Return ``error`` with the end of the engine's log, for `NodeError` to show."""
    error.details[_LOG] = log
    return error


@contextmanager
def node_errors() -> Iterator[None]:
    """Turn the contract's errors into `NodeError`.

    Raises:
        NodeError: for every `EngineError` raised inside.
    """
    try:
        yield
    except EngineError as error:
        raise NodeError(error) from error
