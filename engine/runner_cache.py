"""What of a job's stages is known already, and what of them is kept for later jobs.

The controller decides both (`controller.cache`) and names them by kind: ``text``, what the prompt becomes;
``conditions``, what keyframes, guides and references become; ``source``, what a clip to edit becomes. Every rank is
told the same, so all skip a stage or none. Promise: what is read is bit for bit what was made. Raises OSError when the
disk is full.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from safetensors.torch import load_file

from .outputs import Outputs


class Reuse:
    """The results of one job's stages that pass between jobs, on one rank."""

    def __init__(self, message: Mapping[str, Any], outputs: Outputs) -> None:
        """Read what the link's ``message`` to run a job says."""
        self._cached: Mapping[str, str] = message.get("cached", {})
        self._keep = frozenset(message.get("keep", ()))
        self._outputs = outputs

    def knows(self, kind: str) -> bool:
        """Whether the stage need not run; alike on all ranks."""
        return kind in self._cached

    def read(self, kind: str) -> dict[str, torch.Tensor]:
        """Return what the stage made before, on the CPU."""
        tensors: dict[str, torch.Tensor] = load_file(self._cached[kind])
        return tensors

    def keep(self, kind: str, tensors: Mapping[str, torch.Tensor], facts: Mapping[str, Any]) -> None:
        """Give away what a stage made now, if that is wanted; ``facts`` as a request for this stage alone has them."""
        if kind in self._keep:
            self._outputs.keep(kind, tensors, facts)
