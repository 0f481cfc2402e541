"""When a device runs out of memory: what counts as that, what is tried, and what the user is told.

`attempt` turns such an error into None once its traceback, which holds the tensors, is gone; the caller frees the
caches and tries once more, as `Room.make` does. `exhausted` is the error when that did not help. Other errors pass.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch

from .contract.errors import JobError
from .contract.words import bytes_in_words

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_HOST_FULL = ("DefaultCPUAllocator", "std::bad_alloc")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether ``error`` says that a device, or the host, has no memory left."""
    # The CPU's allocators have no error type of their own.
    named = isinstance(error, (torch.OutOfMemoryError, MemoryError))
    return named or any(words in str(error) for words in _HOST_FULL)


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


@dataclass(frozen=True)
class Room:
    """The memory of one rank's device, for whoever needs some of it.

    Attributes:
        free: gives back what nobody uses at the moment.
        held: bytes by the name of what holds them.
    """

    rank: int = 0
    free: Callable[[], None] = free_caches
    held: Callable[[], Mapping[str, int]] = dict

    def make(self, call: Callable[[], _T], *, what: str, stage: str) -> _T:
        """Return what ``call`` (never None) returns; when it ran out of memory, `free` and call it once more.

        Args:
            call: leaves nothing half done when it fails.
            what: what it makes, for the message.

        Raises:
            JobError: ``out_of_memory`` in ``stage``.
        """
        made = attempt(call)
        if made is None:
            logger.warning("out of memory for %s; freeing caches, then once more", what)
            self.free()
            made = attempt(call)
        if made is None:
            raise exhausted(f"no room for {what}", stage=stage, rank=self.rank, held=self.held())
        return made
