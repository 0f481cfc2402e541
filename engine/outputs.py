"""What a job gives: events, and pieces of its result as files that the controller takes over.

Rank 0 has `RelayOutputs`; the others have `NoOutputs` and so run the same code. A piece is announced when its file is
complete and never touched afterwards. Raises OSError when the disk is full or the controller is gone.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import load_file, save_file

from .contract.messages import Event, event_to_dict
from .link import RankLink

logger = logging.getLogger(__name__)


class Outputs(Protocol):
    """Where the stages' results go."""

    def event(self, event: Event) -> None:
        """Tell the job's listeners."""

    def tensors(
        self,
        name: str,
        tensors: Mapping[str, torch.Tensor],
        *,
        index: int = 0,
        last: bool = True,
        metadata: dict[str, str] | None = None,
    ) -> None:
        """Give piece ``index`` of ``name`` as one safetensors file."""

    def new_file(self, name: str) -> Path:
        """Return a path for a file that `file` will announce."""

    def file(self, name: str, path: Path, file_format: str) -> None:
        """Give the finished file ``path``, whole, as ``name``."""

    def same(self, name: str, path: Path) -> None:
        """Give the input file ``path`` back as it is."""

    def keep(self, kind: str, tensors: Mapping[str, torch.Tensor], facts: Mapping[str, Any]) -> None:
        """Give what a stage made to the controller, for later jobs; see `runner_cache`."""

    def of_output(self, number: int) -> Outputs:
        """Return where the pieces of output ``number`` of the request go; this one's are those of output 0."""


class RelayOutputs:
    """Rank 0's: writes below the job's folder and announces over the link."""

    def __init__(self, link: RankLink, job_id: str, folder: Path, *, number: int = 0) -> None:
        self._link = link
        self._job_id = job_id
        self._folder = folder
        self._number = number

    def event(self, event: Event) -> None:
        """Send ``event``; the controller numbers it."""
        data = event_to_dict(event, job_id="", seq=0)
        del data["job_id"], data["seq"]
        self._link.send({"op": "event", "job_id": self._job_id, "event": data})

    def tensors(
        self,
        name: str,
        tensors: Mapping[str, torch.Tensor],
        *,
        index: int = 0,
        last: bool = True,
        metadata: dict[str, str] | None = None,
    ) -> None:
        """Write and announce one safetensors file."""
        path = self._folder / f"{name}-{self._number}-{index}.safetensors"
        _save(tensors, path, metadata)
        self._announce(name, path, "safetensors", index=index, last=last)

    def new_file(self, name: str) -> Path:
        """Return a path in the job's folder."""
        return self._folder / f"{self._number}-{name}"

    def file(self, name: str, path: Path, file_format: str) -> None:
        """Announce ``path``."""
        self._announce(name, path, file_format)

    def same(self, name: str, path: Path) -> None:
        """Map the input, touch all its pages, and announce another link to the same bytes."""
        touched = sum(int(tensor.view(torch.uint8)[::4096].sum()) for tensor in _flat(load_file(path)))
        logger.debug("echo of %s, sum of one byte a page %d", name, touched)
        copy = self._folder / f"{name}-0.safetensors"
        os.link(path, copy)
        self._announce(name, copy, "safetensors")

    def _announce(self, name: str, path: Path, file_format: str, *, index: int = 0, last: bool = True) -> None:
        message: dict[str, Any] = {"op": "output", "job_id": self._job_id, "output": self._number}
        piece = {"name": name, "index": index, "last": last, "format": file_format, "path": str(path)}
        self._link.send({**message, **piece})

    def keep(self, kind: str, tensors: Mapping[str, torch.Tensor], facts: Mapping[str, Any]) -> None:
        """Write and tell of one safetensors file."""
        path = self._folder / f"kept-{kind}.safetensors"
        _save(tensors, path)
        message = {"op": "kept", "job_id": self._job_id, "kind": kind, "path": str(path), "facts": dict(facts)}
        self._link.send(message)

    def of_output(self, number: int) -> RelayOutputs:
        """Return the same with another number."""
        return RelayOutputs(self._link, self._job_id, self._folder, number=number)


def _save(tensors: Mapping[str, torch.Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    save_file({key: tensor.cpu().contiguous() for key, tensor in tensors.items()}, path, metadata)


def _flat(tensors: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.flatten() for tensor in tensors.values() if tensor.numel()]


class NoOutputs:
    """The other ranks': everything is rank 0's to give."""

    def event(self, event: Event) -> None:
        """Nothing."""

    def tensors(
        self,
        name: str,
        tensors: Mapping[str, torch.Tensor],
        *,
        index: int = 0,
        last: bool = True,
        metadata: dict[str, str] | None = None,
    ) -> None:
        """Nothing."""

    def new_file(self, name: str) -> Path:
        """Nowhere."""
        raise AssertionError("only rank 0 writes files")

    def file(self, name: str, path: Path, file_format: str) -> None:
        """Nothing."""

    def same(self, name: str, path: Path) -> None:
        """Nothing."""

    def keep(self, kind: str, tensors: Mapping[str, torch.Tensor], facts: Mapping[str, Any]) -> None:
        """Nothing."""

    def of_output(self, number: int) -> NoOutputs:
        """Nowhere either."""
        return self
