"""The fleet (``python -m engine.fleet``): launches the ranks through torch's elastic agent and restarts them.

A child of the server. Promise: it ends, with all ranks, when its stdin ends (the server died), on SIGTERM, or when
rank 0 was told to stop; a rank that dies takes the others along and all start again, ``--max-restarts`` times in
`_STEADY_SECONDS`, not counting the times that the ranks wanted it (`restart_wanted`). On one host nothing listens
outside the loopback interface: the store's socket is bound here, and gloo and NCCL are told their interface. Exit
status: 0 after an orderly end, 1 when the ranks will not come back.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta

from torch._C._distributed_c10d import TCPStore
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from .lifeline import leave
from .rank_options import (
    CANNOT_START,
    ModelOptions,
    OffloadOptions,
    ParallelOptions,
    RankOptions,
    VaeOptions,
    restart_wanted,
)

logger = logging.getLogger(__name__)

_LOOPBACK = "127.0.0.1"
_SINGLE_HOST_ENVIRONMENT = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
_RESOLVED = tuple(field.name for kind in (ParallelOptions, VaeOptions) for field in dataclasses.fields(kind))
_SHUTDOWN_SECONDS = 5
"""A rank that has not obeyed SIGTERM by then is killed; the server waits longer before it kills the fleet."""
_STEADY_SECONDS = 3600.0
"""Failures of the ranks that are longer ago do not count: the engine may run for months."""


def parse_arguments(argv: list[str]) -> tuple[RankOptions, argparse.Namespace]:
    """Read the command line that the server writes."""
    parser = argparse.ArgumentParser(prog="engine.fleet", description="Launches the ranks. Started by the server.")
    parser.add_argument("--model", required=True, help="checkpoint folder")
    parser.add_argument("--nproc-per-node", type=int, required=True, help="ranks")
    _add_layout_arguments(parser)
    _add_vae_arguments(parser)
    parser.add_argument("--offload-options", type=json.loads, default={}, help="fields of OffloadOptions as JSON")
    parser.add_argument("--needs", type=json.loads, default=[], help="placement.Needs of each rank as JSON")
    parser.add_argument("--device", required=True, help="auto or a device type")
    parser.add_argument("--dtype", required=True, help="auto, fp32 or bf16")
    parser.add_argument("--stages", required=True, help="comma-separated")
    parser.add_argument("--model-options", default=ModelOptions().to_json(), help="ModelOptions as JSON")
    parser.add_argument("--run-dir", required=True, help="folder of the run")
    parser.add_argument("--link", required=True, help="the controller's Unix socket")
    parser.add_argument("--data-timeout", type=float, required=True, help="seconds a collective waits for a peer")
    parser.add_argument("--max-restarts", type=int, default=3, help="restarts of the ranks within an hour")
    arguments = parser.parse_args(argv)
    options = RankOptions(
        model=arguments.model,
        **{name: getattr(arguments, name) for name in _RESOLVED},
        **OffloadOptions.from_dict({"offload": (), **arguments.offload_options}).to_dict(),
        device=arguments.device,
        dtype=arguments.dtype,
        stages=tuple(arguments.stages.split(",")),
        model_options=ModelOptions.from_json(arguments.model_options),
        link=arguments.link,
        data_timeout=arguments.data_timeout,
        needs=tuple(arguments.needs),
    )
    return options, arguments


def _add_layout_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the fields of `ParallelOptions`, which the server has resolved."""
    parser.add_argument("--ulysses-degree", type=int, required=True, help="ranks that trade rows for heads")
    parser.add_argument("--ring-degree", type=int, default=1, help="ranks around which keys and values travel")
    parser.add_argument("--tp-degree", type=int, default=1, help="ranks among which the transformer is split")
    parser.add_argument("--text-encoder-tp-degree", type=int, default=1, help="the same for the text encoder")
    parser.add_argument("--rank-weights", type=_numbers, help="shares of the rows, comma-separated")
    parser.add_argument("--shard-weights", action="store_true", help="each rank keeps a part of the weights")
    parser.add_argument("--compile", action="store_true", help="compile the transformer's blocks")


def _add_vae_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the fields of `VaeOptions`; what they mean stands there."""
    for field in dataclasses.fields(VaeOptions):
        flag = "--" + field.name.replace("_", "-")
        if isinstance(field.default, bool):
            parser.add_argument(flag, action="store_true")
        else:
            parser.add_argument(flag, type=type(field.default), default=field.default)


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(word) for word in text.split(","))


def loopback_store() -> TCPStore:
    """Return a store whose server, in this process, listens on the loopback interface alone."""
    listener = socket.create_server((_LOOPBACK, 0))
    port = listener.getsockname()[1]
    return TCPStore(
        _LOOPBACK,
        port,
        is_master=True,
        wait_for_workers=False,
        # The elastic agent asks for a store at this port and finds this one.
        multi_tenant=True,
        master_listen_fd=listener.detach(),
        timeout=timedelta(seconds=60),
    )


def stop_at_end_of_input() -> None:
    """Make the end of stdin (the parent is gone) what SIGTERM is: the orderly end of this process and its ranks."""

    def wait() -> None:
        while os.read(sys.stdin.fileno(), 4096):
            pass
        logger.info("the server is gone; stopping the ranks")
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="stdin", daemon=True).start()


def launch(options: RankOptions, *, store: TCPStore, nproc_per_node: int, run_dir: str) -> None:
    """Run the ranks until they end, all of them when one fails.

    Raises:
        ChildFailedError: one failed.
        SignalException: this process was told to end.
    """
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=nproc_per_node,
        run_id=f"h3-{options.launch}",
        rdzv_backend="static",
        rdzv_endpoint=f"{_LOOPBACK}:{store.port}",
        rdzv_configs={"rank": 0},
        # The agent would count wanted restarts too: `supervise` launches again.
        max_restarts=0,
        logs_specs=DefaultLogsSpecs(log_dir=run_dir),
        local_addr=_LOOPBACK,
        signals_to_handle="SIGTERM,SIGINT",
        shutdown_timeout=_SHUTDOWN_SECONDS,
    )
    ranks = f"{nproc_per_node} rank{'' if nproc_per_node == 1 else 's'}"
    logger.info("launch %d: %s, store at %s:%d", options.launch, ranks, _LOOPBACK, store.port)
    options = dataclasses.replace(options, fleet=os.getpid())
    elastic_launch(config, sys.executable)("-m", f"{__package__}.worker_start", options.to_json())


def supervise(
    options: RankOptions, run: Callable[[RankOptions], None], *, max_restarts: int, wanted: Callable[[int], bool]
) -> int:
    """Call ``run`` (see `launch`) again and again while the ranks fail; return the exit status.

    Args:
        max_restarts: launches that may follow a failure within `_STEADY_SECONDS`.
        wanted: whether the ranks of a launch, by its number, ended in order to start again, which is no failure.
    """
    failures: list[float] = []
    while True:
        try:
            run(options)
        except SignalException:
            return 0
        except ChildFailedError as error:
            if not wanted(options.launch):
                now = time.monotonic()
                failures = [*(earlier for earlier in failures if now - earlier < _STEADY_SECONDS), now]
            if len(failures) > max_restarts:
                logger.error("the ranks keep failing: %s", error)
                return 1
            options = dataclasses.replace(options, launch=options.launch + 1)
        else:
            return 0


def main(argv: list[str] | None = None) -> int:
    """Run the fleet; return the exit status."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="[fleet] %(levelname)s %(message)s")
    options, arguments = parse_arguments(sys.argv[1:] if argv is None else argv)
    for name, value in _SINGLE_HOST_ENVIRONMENT.items():
        os.environ[name] = value
    store = loopback_store()
    stop_at_end_of_input()
    run = functools.partial(
        launch,
        store=store,
        nproc_per_node=arguments.nproc_per_node,
        run_dir=arguments.run_dir,
    )
    status = supervise(
        options,
        run,
        max_restarts=arguments.max_restarts,
        wanted=lambda number: store.check([restart_wanted(number)]),
    )
    return status or int(store.check([CANNOT_START]))


if __name__ == "__main__":
    leave(main())
