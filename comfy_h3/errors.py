"""What a node shows when something is wrong: the sentence, the input and its value, what to do, and the engine's log.

Errors of the contract (`EngineError`) are turned into `NodeError` at a node's edge by `node_errors`, which names the
node's input instead of the field on the wire. Everything else passes through untouched, ComfyUI's interrupt first of
all. Compare a `NodeError` by ``code``: the codes are the contract's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from ..engine.contract.errors import EngineError

_INPUT_OF_FIELD = {
    "parts.conditioning": "conditioning",
    "parts.latents": "latent",
    "request.": "",
}
"""Start of a field on the wire → the node's input; an empty one is called as what follows."""
_NONE: Mapping[str, str] = MappingProxyType({})
_LOG = "log"


class NodeError(Exception):
    """An error with the contract's ``code``, shown on the node.

    Args:
        error: what happened.
        inputs: start of a field on the wire → the node's input, where the node has another name for it.
    """

    def __init__(self, error: EngineError, inputs: Mapping[str, str] = _NONE) -> None:
        self.code = error.code
        self.field = _input_of(error.field, {**inputs, **_INPUT_OF_FIELD})
        self.log = str(error.details.get(_LOG, ""))
        lines = [error.message]
        if self.field is not None and error.value is not None:
            lines.append(f"{self.field} = {error.value!r}")
        if error.remedy:
            lines.append(error.remedy)
        if self.log:
            lines.append(f"The end of the engine's log:\n{self.log}")
        super().__init__("\n".join(lines))


def _input_of(field: str | None, inputs: Mapping[str, str]) -> str | None:
    if field is None:
        return None
    for start, name in inputs.items():
        if field.startswith(start):
            return name or field.removeprefix(start)
    return field


def with_log(error: EngineError, log: str) -> EngineError:
    """Return ``error`` with the end of the engine's log, for `NodeError` to show."""
    error.details[_LOG] = log
    return error


@contextmanager
def node_errors(inputs: Mapping[str, str] = _NONE) -> Iterator[None]:
    """Turn the contract's errors into `NodeError`, which takes ``inputs``.

    Raises:
        NodeError: for every `EngineError` raised inside.
    """
    try:
        yield
    except EngineError as error:
        raise NodeError(error, inputs) from error
