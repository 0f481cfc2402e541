"""When a device runs out of memory: what counts as that, what is tried, and what the user is told.

`attempt` turns such an error into None once its traceback, which holds the tensors, is gone; the caller frees the
caches and tries once more. `exhausted` is the error when that did not help. Other errors pass.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch

from .contract.errors import JobError
from .contract.words import bytes_in_words

_T = TypeVar("_T")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether ``error`` says that a device, or the host, has no memory left."""
    # The CPU's allocator has no error type of its own.
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "DefaultCPUAllocator" in str(error)


def attempt(call: Callable[[], _T]) -> _T | None:
    """Return what ``call`` (never None) returns; None when it ran out of memory."""
    try:
        return call()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    return None


def free_caches() -> None:
    """Give back what nobody uses: Python's cycles and the device allocator's blocks."""
    gc.collect()
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()


_REMEDY = (
    "Ask for a smaller canvas, use more ranks, or leave --vae-resident out and lower --gather-workspace-mb. "
    "Latents that were sampled are not lost: decode them again."
)


def exhausted(what: str, *, stage: str, rank: int, held: Mapping[str, int], remedy: str = _REMEDY) -> JobError:
    """Return the error that says what ran out of memory and what holds it.

    Args:
        what: what was tried, for the message. held: bytes by the name of what holds them.
        remedy: what the user may do; by default what helps where the VAEs are used.
    """
    listed = ", ".join(f"{name} {bytes_in_words(size)}" for name, size in held.items() if size) or "nothing of ours"
    return JobError(
        "out_of_memory",
        f"Out of memory in stage {stage} on rank {rank}: {what}, after the caches were freed. "
        f"Its device holds: {listed}.",
        remedy=remedy,
        details={"stage": stage, "rank": rank, "held": dict(held)},
    )
