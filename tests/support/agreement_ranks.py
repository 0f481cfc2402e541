"""What the two ranks of the agreement tests do; each assertion that fails ends its rank with a traceback."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from engine.contract.errors import EngineError, JobCancelled, JobError, RequestError
from engine.parallel.agreement import CONSEQUENCE, Agreement
from engine.parallel.collectives import (
    DataGroupError,
    all_gather,
    collect_json,
    share_json,
    share_tensors,
    start_transfer,
)
from engine.parallel.mesh import Mesh


def no() -> bool:
    return False


def sharing(mesh: Mesh, folder: Path) -> None:
    """JSON and tensors arrive with their types and shapes; nothing is announced that is not sent."""
    first = mesh.layout.rank == 0
    assert share_json({"a": [1, "ä"]} if first else None, mesh) == {"a": [1, "ä"]}
    assert collect_json({"rank": mesh.layout.rank, "text": "x" * (1 + 100 * mesh.layout.rank)}, mesh) == [
        {"rank": 0, "text": "x"},
        {"rank": 1, "text": "x" * 101},
    ]
    sent = {
        "half": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
        "tags": torch.arange(4),
        "empty": torch.zeros(0, 5),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
    }
    got = share_tensors(sent if first else None, mesh)
    assert list(got) == list(sent)
    for name, tensor in sent.items():
        assert got[name].dtype == tensor.dtype
        assert torch.equal(got[name], tensor)


def settling(mesh: Mesh, folder: Path) -> None:
    """All ranks raise the same: the cause rather than its consequence, an error rather than a cancellation, the
    engine's fault rather than the caller's.
    """
    rank = mesh.layout.rank
    mesh.dirty = False
    Agreement(mesh, no).settle()
    with pytest.raises(JobCancelled):
        Agreement(mesh, lambda: rank == 0).settle()
    cause = JobError("out_of_memory", "the cause", details={"rank": 1})
    consequence = JobError("job_failed", "only a consequence", details={CONSEQUENCE: True})
    agreement = Agreement(mesh, lambda: rank == 0)
    with pytest.raises(EngineError) as caught:
        agreement.settle(cause if rank == 1 else consequence)
    assert caught.value.to_dict() == cause.to_dict()
    assert agreement.outcome is caught.value
    assert not agreement.poisoned
    callers = RequestError("bad_tensor", "the caller's fault", field="request", remedy="")
    with pytest.raises(EngineError, match="the cause"):
        Agreement(mesh, no).settle(cause if rank == 1 else callers)
    Agreement(mesh, no).settle()


def leaving(mesh: Mesh, folder: Path) -> None:
    """A rank that leaves the data group frees the one that waits in it; after a rebuild it works again."""
    for round_number in range(2):
        begun = time.monotonic()
        if mesh.layout.rank == 1:
            time.sleep(0.3)
            mesh.leave_data()
        else:
            with pytest.raises(DataGroupError):
                all_gather(torch.ones(2), mesh)
        assert time.monotonic() - begun < 10, round_number
        error = JobError("job_failed", "left") if mesh.layout.rank == 1 else None
        agreement = Agreement(mesh, no)
        with pytest.raises(EngineError):
            agreement.settle(error)
        assert agreement.poisoned
        mesh.rebuild_data()
        assert not mesh.dirty
        assert all_gather(torch.tensor([mesh.layout.rank]), mesh).tolist() == [[0], [1]]


def pass_on(mesh: Mesh) -> torch.Tensor:
    """Send a value to the next rank and return the previous one's."""
    received = torch.empty(1)
    start_transfer(torch.tensor([1.0 + mesh.layout.rank]), received, mesh=mesh, axis="world", kind="test").wait()
    return received


def leaving_a_ring(mesh: Mesh, folder: Path) -> None:
    """The same with a transfer between neighbours."""
    begun = time.monotonic()
    assert pass_on(mesh) == 2 - mesh.layout.rank
    if mesh.layout.rank == 1:
        time.sleep(0.3)
        mesh.leave_data()
    else:
        with pytest.raises(DataGroupError):
            pass_on(mesh)
    assert time.monotonic() - begun < 10
    collect_json(None, mesh)
    mesh.rebuild_data()
    assert pass_on(mesh) == 2 - mesh.layout.rank


def everything(mesh: Mesh, folder: Path) -> None:
    """Run all of it in one pair of processes."""
    for check in (sharing, settling, leaving, leaving_a_ring):
        check(mesh, folder)
    (folder / f"done-{mesh.layout.rank}").touch()
