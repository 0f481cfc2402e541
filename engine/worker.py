"""One rank (see `worker_start`): loads its models, then runs job after job.

Rank 0 is the relay: it alone speaks with the controller and hands commands to the others as private files; the store,
where idle ranks wait without sitting in a collective, says when. Exit status: 0 when told to stop or when starting
again would fail again (the controller was told why); anything else makes the fleet restart all ranks, which it does not
count as a failure when a key of the store says that they wanted it.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed import DistStoreError

from .backlog import Backlog
from .checkpoint import open_checkpoint
from .contract.errors import ConfigError, EngineError
from .devices import pick_device, pick_dtype, share_cores
from .lifeline import die_with
from .link import RankLink
from .models.bundle import Models
from .models.storage import check_storage
from .offload.host import share_host_copies
from .offload.modulation import Modulation
from .offload.owner import ModelOwner
from .outputs import NoOutputs, Outputs, RelayOutputs
from .parallel.collectives import collect_json
from .parallel.compile import check_compiler, compile_blocks
from .parallel.guard import guard_collectives
from .parallel.layout import Layout
from .parallel.mesh import Mesh
from .parallel.sharding import apply_sequence_parallel
from .parallel.watchdog import EXIT_STATUS, Watchdog
from .parallel.weights import held_bytes, plan_divisions
from .rank_options import CANNOT_START, PARTITIONS, WEIGHTED, RankOptions, restart_wanted
from .runner import JobResult, JobRunner
from .stacks_shares import encodes_media, kept_components, text_encoder_ranks
from .vae.crew import VaeCrew, build_crew
from .worker_weights import load_rank, take_over

logger = logging.getLogger(__name__)

_STORE_TIMEOUT = timedelta(seconds=300)
_PATIENCE = timedelta(days=1)
"""One wait for the next command; the store counts it in milliseconds, 32 bits wide."""
_LOADING_INTERVAL = 0.2
Command = dict[str, Any]
_T = TypeVar("_T")


class Commands:
    """How rank 0 hands its commands on: as files in the run folder, which is private.

    The store is open to every user of the machine and only says that the next command is there.
    """

    def __init__(self, store: Store, folder: Path, *, generation: str) -> None:
        self._store = store
        self._prefix = folder / f"command-{generation.replace('/', '-')}"

    def publish(self, number: int, command: Command) -> None:
        """Give the others command ``number``; all have read the ones before."""
        path = self._path(number)
        if number == 0:
            # Ranks that were lost could not remove theirs.
            for left in path.parent.glob("command-*.json"):
                left.unlink()
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(command, file)
        self._store.set(_command_key(number), "")
        if number:
            self._store.delete_key(_command_key(number - 1))
            self._path(number - 1).unlink()

    def wait_for(self, number: int) -> Command:
        """Return command ``number`` once rank 0 has published it."""
        while not self._arrived(_command_key(number)):
            logger.info("idle for a day")
        command: Command = json.loads(self._path(number).read_bytes())
        return command

    def _arrived(self, key: str) -> bool:
        try:
            self._store.wait([key], _PATIENCE)
        except DistStoreError:
            return False
        return True

    def _path(self, number: int) -> Path:
        return self._prefix.with_name(f"{self._prefix.name}-{number}.json")


class Relay:
    """Rank 0's role: commands come over the link and are published for the others."""

    def __init__(self, link: RankLink, published: Commands) -> None:
        self._link = link
        self._published = published
        self._inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._cancel = threading.Event()
        self._job_id: str | None = None
        self._backlog = Backlog(self._cancel.is_set)
        self._told = 0.0

    def start(self) -> None:
        """Begin to read what the controller sends."""
        threading.Thread(target=self._read, name="link", daemon=True).start()

    def _read(self) -> None:
        for message in self._link.messages():
            if message["op"] == "cancel":
                if message["job_id"] == self._job_id:
                    self._stop_job()
                continue
            if message["op"] == "taken":
                if message["job_id"] == self._job_id:
                    self._backlog.take()
                continue
            if message["op"] == "run":
                self._backlog = Backlog(self._cancel.is_set)
                self._job_id = message["job_id"]
            if message["op"] == "stop":
                self._stop_job()
            self._inbox.put(message)
        logger.info("the controller closed the link")
        self._stop_job()
        self._inbox.put({"op": "stop"})

    def _stop_job(self) -> None:
        self._cancel.set()
        self._backlog.wake()

    def commands(self) -> Iterator[Command]:
        """Yield jobs until told to stop; each is published for the other ranks first."""
        number = 0
        while True:
            command = self._inbox.get()
            # Every rank ended the previous job, so all have read its command.
            self._published.publish(number, command)
            if command["op"] == "stop":
                return
            yield command
            number += 1

    def cancelled(self) -> bool:
        """Whether the controller asked to cancel the running job."""
        return self._cancel.is_set()

    def begin(self, command: Command) -> Outputs:
        """Return where the job's outputs go."""
        return RelayOutputs(self._link, command["job_id"], Path(command["folder"]), self._backlog)

    def end(self, command: Command, result: JobResult, *, workspace: int) -> None:
        """Tell that all ranks ended the job, and the bytes of gather buffers that this one keeps."""
        self._job_id = None
        self._cancel.clear()
        message = {"op": "end", "job_id": command["job_id"], "error": result.error, "facts": result.facts}
        message |= {"memory": result.memory, "restarting": result.must_restart}
        self._link.send({**message, "gather_workspace_bytes": workspace})

    def loading(self, component: str, done: int, total: int) -> None:
        """Tell how far loading is, not too often."""
        if done == total or time.monotonic() - self._told > _LOADING_INTERVAL:
            self._told = time.monotonic()
            message = {"op": "loading", "component": component, "bytes_done": done, "bytes_total": total}
            self._link.send(message)

    def ready(self, info: dict[str, Any]) -> None:
        """Tell that all ranks wait for jobs."""
        self._link.send({"op": "ready", "info": info})

    def failed(self, error: dict[str, Any]) -> None:
        """Tell that the ranks cannot start."""
        self._link.send({"op": "failed", "error": error})


class Follower:
    """The other ranks' role: commands come from rank 0, and nothing is told to anybody."""

    def __init__(self, published: Commands) -> None:
        self._published = published

    def start(self) -> None:
        """Nothing to read from."""

    def commands(self) -> Iterator[Command]:
        """Yield jobs until told to stop."""
        number = 0
        while True:
            command = self._published.wait_for(number)
            if command["op"] == "stop":
                return
            yield command
            number += 1

    def cancelled(self) -> bool:
        """Rank 0 alone is asked."""
        return False

    def begin(self, command: Command) -> Outputs:
        """Return outputs that go nowhere."""
        return NoOutputs()

    def end(self, command: Command, result: JobResult, *, workspace: int) -> None:
        """Rank 0 tells."""

    def loading(self, component: str, done: int, total: int) -> None:
        """Rank 0 tells."""

    def ready(self, info: dict[str, Any]) -> None:
        """Rank 0 tells."""

    def failed(self, error: dict[str, Any]) -> None:
        """Rank 0 tells."""


def _command_key(number: int) -> str:
    return f"cmd/{number}"


class Worker:
    """This rank, from its start to its end."""

    def __init__(self, options: RankOptions) -> None:
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        generation = f"launch{options.launch}"
        self._options = options
        self._common = connect_store()
        # Keys of ranks that died must not be met again, hence a prefix for each start.
        own = PrefixStore(generation, self._common)
        published = Commands(own, Path(options.link).parent, generation=generation)
        self._role = Relay(RankLink(options.link), published) if rank == 0 else Follower(published)
        layout = Layout(rank, world, options.ulysses_degree, options.ring_degree, options.tp_degree)
        self._mesh = Mesh(layout, PrefixStore(generation, connect_store()))
        self._watchdog = Watchdog(
            self._mesh,
            PrefixStore(generation, connect_store()),
            silence=options.data_timeout,
            cancelled=self._role.cancelled,
        )

    def run(self) -> int:
        """Load, serve, leave; return the exit status."""
        self._role.start()
        self._watchdog.start()
        # Weights that are spread over ranks know the data groups from the start.
        if self._together(self._open_device) is None:
            return 0
        models = self._together(self._load)
        if models is None:
            return 0
        owner = take_over(models, self._options, self._copies, mesh=self._mesh, together=self._together)
        if owner is None:
            return 0
        for transformer in filter(None, (getattr(models, name) for name in PARTITIONS)):
            apply_sequence_parallel(
                transformer,
                self._mesh,
                rank_weights=self._options.rank_weights,
                weights_axis="sequence" if self._options.shard_weights else None,
            )
            if self._options.compile:
                compile_blocks(transformer)
        vaes = build_crew(models, self._mesh, self._options, rank_weights=self._options.rank_weights, others=owner.held)
        self._role.ready(self._info(models, owner))
        modulation = Modulation(self._options.modulation_tables_mb, projections=owner.projections)
        return self._serve(JobRunner(models, vaes, self._mesh, self._watchdog, modulation, owner=owner), vaes)

    def _together(self, step: Callable[[], _T]) -> _T | None:
        """Return the result of ``step``; None on all ranks when it failed on one, which the controller is then told."""
        result: _T | None = None
        error: EngineError | None = None
        try:
            result = step()
        except EngineError as told:
            error = told
        except Exception as unforeseen:
            logger.exception("this rank cannot start")
            text = f"Rank {self._mesh.layout.rank} cannot start: {type(unforeseen).__name__}: {unforeseen}"
            error = ConfigError("start_failed", text, remedy="The engine's log has the whole traceback.")
        first = next((report for report in collect_json(error and error.to_dict(), self._mesh) if report), None)
        if first is None:
            return result
        self._common.set(CANNOT_START, "")
        self._role.failed(first)
        return None

    def _open_device(self) -> torch.device:
        self._device = pick_device(self._options.device, local_rank=int(os.environ["LOCAL_RANK"]))
        share_cores(self._mesh.layout.world_size)
        team = text_encoder_ranks(self._options.text_encoder_tp_degree)
        self._mesh.open_data(self._device, timeout=self._options.data_timeout, teams=[team] if len(team) > 1 else [])
        return self._device

    def _load(self) -> Models:
        options, mesh = self._options, self._mesh
        if options.compile:
            check_compiler(self._device)
        dtype = pick_dtype(options.dtype, self._device)
        check_storage(options.block_storage, self._device, dtype)
        checkpoint = open_checkpoint(options.model, stages=options.stages, options=options.model_options)
        divisions = plan_divisions(
            mesh,
            served=frozenset(checkpoint.components),
            text_encoder_degree=options.text_encoder_tp_degree,
            shard_weights=options.shard_weights,
        )
        if not encodes_media(mesh.layout.rank, media_encode=options.media_encode):
            checkpoint = checkpoint.without("encode_media")
        keep = kept_components(
            checkpoint.components,
            rank=mesh.layout.rank,
            text_encoder_ranks=options.text_encoder_tp_degree,
            vae_on_one_rank=options.vae_on_one_rank,
        )
        self._copies = share_host_copies(options, keep, rank=mesh.layout.rank, device=self._device)
        models = load_rank(
            checkpoint,
            options,
            self._copies,
            keep=keep,
            device=self._device,
            dtype=dtype,
            on_bytes=self._role.loading,
            divisions=divisions,
        )
        for name in keep & divisions.keys():
            guard_collectives(getattr(models, name), mesh)
        return models

    def _info(self, models: Models, owner: ModelOwner) -> dict[str, Any]:
        layout = self._mesh.layout
        held = sum(held_bytes(getattr(models, name)) for name in WEIGHTED if getattr(models, name) is not None)
        report = {
            "pid": os.getpid(),
            "weight_bytes": held,
            "device_weight_bytes": owner.device_bytes,
            "host_copy_bytes": owner.host_bytes,
        }
        reports = collect_json(report, self._mesh)
        return {
            "device": self._device.type,
            "dtype": str(models.dtype).removeprefix("torch."),
            "world_size": layout.world_size,
            "ulysses_degree": layout.ulysses_degree,
            "backend": self._mesh.backend,
            "pids": [report["pid"] for report in reports],
            **{
                name: [report[name] for report in reports]
                for name in ("weight_bytes", "device_weight_bytes", "host_copy_bytes")
            },
        }

    def _serve(self, runner: JobRunner, vaes: VaeCrew) -> int:
        for command in self._role.commands():
            result = runner.run(command, self._role.begin(command), self._role.cancelled)
            if result.error is not None:
                # The frames of a traceback hold tensors and groups in cycles.
                gc.collect()
            self._role.end(command, result, workspace=vaes.workspace.bytes)
            if result.must_restart:
                self._common.set(restart_wanted(self._options.launch), "")
                # The fleet stops all ranks as soon as one ends: rank 0 must have told of the job.
                collect_json(None, self._mesh)
                logger.error("this rank cannot serve another job and restarts")
                return EXIT_STATUS
        self._mesh.close()
        return 0


def connect_store() -> TCPStore:
    """Return a new connection to the fleet's store; one that waits blocks only its own thread."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return TCPStore(address, port, is_master=False, timeout=_STORE_TIMEOUT)


def main() -> int:
    """Run one rank; return the exit status."""
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format=f"[rank {os.environ['RANK']}] %(levelname)s %(name)s: %(message)s",
    )
    # Ctrl-C in a terminal is the server's to handle.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    options = RankOptions.from_json(sys.argv[1])
    try:
        die_with(options.fleet)
        status = Worker(options).run()
    except Exception:
        logger.exception("this rank ends")
        status = EXIT_STATUS
    return status
