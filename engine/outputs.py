"""What a job gives: events, and pieces of its result as files that the controller takes over.

Rank 0 has `RelayOutputs`; the others have `NoOutputs` and so run the same code. A piece is announced when its file is
complete and never touched afterwards. Nothing here waits for who takes the pieces but `wait_for_room`. Raises
`JobError` ``disk_full``, and OSError when the controller is gone.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from .backlog import Backlog
from .contract.messages import Event, event_to_dict
from .link import RankLink
from .wire import told_full

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

    def movie(self, name: str, tensor: torch.Tensor, *, index: int = 0) -> None:
        """Give the MP4's writer its ``audio`` [2, N] fp32, or chunk ``index`` of its ``frames`` [f, H, W, 3] uint8."""

    def end_movie(self) -> None:
        """Tell the MP4's writer that it has everything; the controller gives the file then."""

    def wait_for_room(self) -> None:
        """Wait until most chunks of frames were taken; see `Backlog`."""

    def same(self, name: str, path: Path) -> None:
        """Give the input file ``path`` back as it is."""

    def keep(self, kind: str, tensors: Mapping[str, torch.Tensor], facts: Mapping[str, Any]) -> None:
        """Give what a stage made to the controller, for later jobs; see `runner_cache`."""

    def of_output(self, number: int) -> Outputs:
        """Return where the pieces of output ``number`` of the request go; this one's are those of output 0."""


class RelayOutputs:
    """Rank 0's: writes below the job's folder and announces over the link."""

    def __init__(self, link: RankLink, job_id: str, folder: Path, backlog: Backlog, *, number: int = 0) -> None:
        self._link = link
        self._job_id = job_id
        self._folder = folder
        self._backlog = backlog
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
        self._count(name)
        self._announce(name, path, index=index, last=last)

    def movie(self, name: str, tensor: torch.Tensor, *, index: int = 0) -> None:
        """Write and announce one safetensors file for the MP4's writer."""
        path = self._folder / f"movie-{name}-{self._number}-{index}.safetensors"
        _save({name: tensor}, path)
        self._count(name)
        self._tell_movie(name, str(path))

    def end_movie(self) -> None:
        """Tell that nothing follows."""
        self._tell_movie("finish", None)

    def wait_for_room(self) -> None:
        """Wait for the takers."""
        self._backlog.wait_for_room()

    def same(self, name: str, path: Path) -> None:
        """Map the input, touch all its pages, and announce another link to the same bytes."""
        touched = sum(int(tensor.view(torch.uint8)[::4096].sum()) for tensor in _flat(load_file(path)))
        logger.debug("echo of %s, sum of one byte a page %d", name, touched)
        copy = self._folder / f"{name}-0.safetensors"
        os.link(path, copy)
        self._announce(name, copy)

    def _count(self, name: str) -> None:
        if name == "frames":
            # Before it is announced: it may be taken at once.
            self._backlog.add()

    def _tell_movie(self, name: str, path: str | None) -> None:
        about = {"op": "movie", "job_id": self._job_id, "output": self._number}
        self._link.send({**about, "name": name, "path": path})

    def _announce(self, name: str, path: Path, *, index: int = 0, last: bool = True) -> None:
        message: dict[str, Any] = {"op": "output", "job_id": self._job_id, "output": self._number}
        piece = {"name": name, "index": index, "last": last, "format": "safetensors", "path": str(path)}
        self._link.send({**message, **piece})

    def keep(self, kind: str, tensors: Mapping[str, torch.Tensor], facts: Mapping[str, Any]) -> None:
        """Write and tell of one safetensors file."""
        path = self._folder / f"kept-{kind}.safetensors"
        _save(tensors, path)
        message = {"op": "kept", "job_id": self._job_id, "kind": kind, "path": str(path), "facts": dict(facts)}
        self._link.send(message)

    def of_output(self, number: int) -> RelayOutputs:
        """Return the same with another number."""
        return RelayOutputs(self._link, self._job_id, self._folder, self._backlog, number=number)


def _save(tensors: Mapping[str, torch.Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """Write ``path``, whole or not at all.

    Raises:
        JobError: ``disk_full``.
    """
    try:
        save_file({key: tensor.cpu().contiguous() for key, tensor in tensors.items()}, path, metadata)
    except (OSError, SafetensorError) as error:
        raise told_full(error, path.parent) or error from error


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

    def movie(self, name: str, tensor: torch.Tensor, *, index: int = 0) -> None:
        """Nothing."""

    def end_movie(self) -> None:
        """Nothing."""

    def wait_for_room(self) -> None:
        """Rank 0 waits for all."""

    def same(self, name: str, path: Path) -> None:
        """Nothing."""

    def keep(self, kind: str, tensors: Mapping[str, torch.Tensor], facts: Mapping[str, Any]) -> None:
        """Nothing."""

    def of_output(self, number: int) -> NoOutputs:
        """Nowhere either."""
        return self
