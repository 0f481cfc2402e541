"""Parallel attention on two CPU ranks: ours, diffusers' context parallelism, and one rank, on the same weights.

    .venv/bin/python benchmarks/attention.py [--rows 4096 8192 16384] [--rounds 3] [--layers 2]

Each rank has one thread; the contenders take turns in the same two processes, in fp32, on a transformer in which
attention is half of a forward at 4,096 rows, as in the released one at about 27,000. Printed per contender: the best
wall seconds of a forward (the slower rank's), the most CPU seconds of a rank, both as speedups over one rank, bytes
that a rank sends per layer, remote keys and values that it holds at most, and the largest difference from one rank. On
a machine that does other work the CPU seconds are the ones to trust. diffusers' ring wants a backend that returns the
LSE, of which it has none on CPU: it runs here with torch's operator put in.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
RANKS = 2
TEXT_ROWS, AUDIO_ROWS = 64, 512
HEADS, HEAD_DIM, HIDDEN, FFN = 4, 64, 384, 1536
MIB = 2**20


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[4096, 8192, 16384], help="rows of the sequence")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each contender")
    parser.add_argument("--layers", type=int, default=2, help="blocks of the transformer")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    return parser.parse_args()


def make_model(layers: int) -> Any:
    """Return the transformer, the same on every call."""
    import torch

    from engine.tiny import PRESETS, Preset, _transformer

    torch.manual_seed(0)
    text_dim = PRESETS["tiny"].text_dim
    return _transformer(Preset(HEADS, HEAD_DIM, HIDDEN, layers, 1, FFN, text_dim, 8, 64, 8, 64, 64))


def make_inputs(rows: int, model: Any) -> dict[str, Any]:
    """Return the arguments of a forward of ``rows`` rows."""
    import torch

    generator = torch.Generator().manual_seed(rows)
    ends = torch.tensor([TEXT_ROWS, TEXT_ROWS + AUDIO_ROWS])
    place = torch.arange(rows)
    kind = torch.bucketize(place, ends, right=True)  # 0 text, 1 audio, 2 video
    video = rows - TEXT_ROWS - AUDIO_ROWS

    def random(count: int, width: int) -> torch.Tensor:
        return torch.randn((1, count, width), generator=generator)

    return {
        "hidden_states": random(video, model.config.in_channels * 4),
        "audio_hidden_states": random(AUDIO_ROWS, model.config.audio_in_channels),
        "encoder_hidden_states": random(TEXT_ROWS, model.config.text_dim),
        "timestep": torch.tensor([0.3, 0.6]),
        "timestep_indices": (kind == 1).long(),
        "token_tags": torch.tensor([1, 2, 0])[kind],
        "position_ids": torch.stack((place / 7, place % 31, place % 53), 1).double(),
        "video_indices": place[kind == 2],
        "audio_indices": place[kind == 1],
        "text_indices": place[kind == 0],
        "return_dict": False,
    }


@dataclass(frozen=True)
class Cost:
    """What a contender's attention costs a rank: bytes sent per layer, bytes of remote keys and values held."""

    sent: int
    held: int


Forward = Callable[[dict[str, Any]], Any]
Measured = Callable[[dict[str, Any]], tuple[Any, Cost]]


def ours(mesh: Any, degrees: tuple[int, int], layers: int) -> Measured:
    """Return a forward of ours under layout (U, R), which also counts."""
    from engine.parallel.layout import Layout
    from engine.parallel.sharding import apply_sequence_parallel

    model = make_model(layers)
    layout = Layout(mesh.layout.rank, RANKS, *degrees)
    mesh.layout = layout
    apply_sequence_parallel(model, mesh)

    def forward(inputs: dict[str, Any]) -> tuple[Any, Cost]:
        # One mesh, whose groups are the same two ranks on either axis.
        mesh.layout = layout
        mesh.account.reset()
        out = model(**inputs)
        books = {kind: entry for kind, entry in mesh.account.entries.items() if kind != "heads"}
        sent = sum(entry.sent for entry in books.values())
        return out, Cost(sent // layers, max(entry.peak for entry in books.values()))

    return forward


def theirs(config: dict[str, Any], layers: int) -> Measured:
    """Return a forward under diffusers' own context parallelism, counted at torch's functional collectives."""
    from diffusers import ContextParallelConfig
    from torch.utils._python_dispatch import TorchDispatchMode

    model = make_model(layers)
    with one_device():
        model.enable_parallelism(config=ContextParallelConfig(**config))
    inside = [False]
    model.transformer_blocks[0].register_forward_pre_hook(lambda *_: inside.__setitem__(0, True))
    model.transformer_blocks[-1].register_forward_hook(lambda *_: inside.__setitem__(0, False))

    class Count(TorchDispatchMode):
        """Adds up what the collectives of the blocks send."""

        def __init__(self) -> None:
            super().__init__()
            self.sent: list[int] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = str(func)
            if inside[0] and "all_to_all_single" in name:
                self.sent.append(args[0].nbytes * (RANKS - 1) // RANKS)
            elif inside[0] and "all_gather_into_tensor" in name:
                self.sent.append(args[0].nbytes * (RANKS - 1))
            return func(*args, **(kwargs or {}))

    costs: dict[int, Cost] = {}

    def forward(inputs: dict[str, Any]) -> tuple[Any, Cost]:
        rows = inputs["position_ids"].shape[0]
        if rows in costs:
            return model(**inputs), costs[rows]
        with Count() as count:
            out = model(**inputs)
        # Queries, keys, values and the result in four exchanges of a size, or keys and values in one.
        share = count.sent[0] if "ring_degree" in config else 2 * count.sent[0]
        costs[rows] = Cost(sum(count.sent) // layers, share)
        return out, costs[rows]

    return forward


@contextmanager
def one_device() -> Iterator[None]:
    """Let diffusers accept a CPU: it counts accelerators, and its ring asks for an LSE."""
    import torch
    from diffusers.models import attention_dispatch

    native = attention_dispatch._native_attention_forward_op

    def forward_op(ctx: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        # Their sixth argument from here on is ``return_lse``.
        if not (kwargs.get("return_lse") or args[5:6] == (True,)):
            return native(ctx, query, key, value, *args, **kwargs)
        q, k, v = (x.permute(0, 2, 1, 3) for x in (query, key, value))
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)
        return out.permute(0, 2, 1, 3), lse.permute(0, 2, 1)

    attention_dispatch._native_attention_forward_op = forward_op
    before = torch.accelerator.device_count
    torch.accelerator.device_count = lambda: 1
    try:
        yield
    finally:
        torch.accelerator.device_count = before


def contenders(mesh: Any, layers: int) -> dict[str, Measured]:
    """Build every contender that can be built; tell of those that cannot."""
    model = make_model(layers)
    found: dict[str, Measured] = {"one rank": lambda inputs: (model(**inputs), Cost(0, 0))}
    makers: dict[str, Callable[[], Measured]] = {
        "ours, ulysses 2": lambda: ours(mesh, (2, 1), layers),
        "ours, ring 2": lambda: ours(mesh, (1, 2), layers),
        "diffusers, ulysses 2": lambda: theirs({"ulysses_degree": 2}, layers),
        "diffusers, ring 2": lambda: theirs({"ring_degree": 2}, layers),
    }
    for name, make in makers.items():
        try:
            found[name] = make()
        except (ValueError, RuntimeError, NotImplementedError) as error:
            if mesh.layout.rank == 0:
                print(f"{name} does not run: {error}", flush=True)
    return found


def be_rank(arguments: argparse.Namespace) -> None:
    """Be one of the two ranks; rank 0 writes the results."""
    import torch
    from torch._C._distributed_c10d import FileStore

    from engine.parallel.layout import Layout
    from engine.parallel.mesh import Mesh

    torch.set_num_threads(1)
    logging.getLogger("diffusers").setLevel(logging.ERROR)
    warnings.simplefilter("ignore", FutureWarning)
    folder = Path(arguments.folder)
    mesh = Mesh(Layout(arguments.rank, RANKS, RANKS), FileStore(str(folder / "store"), RANKS))
    mesh.open_data(torch.device("cpu"), timeout=3600)
    results = []
    with torch.no_grad():
        forwards = contenders(mesh, arguments.layers)
        for rows in arguments.rows:
            inputs = make_inputs(rows, make_model(1))
            results.append({"rows": rows, "contenders": take_turns(forwards, inputs, mesh, arguments.rounds)})
    if arguments.rank == 0:
        (folder / "results.json").write_text(json.dumps(results))
    mesh.close()


def take_turns(forwards: dict[str, Measured], inputs: dict[str, Any], mesh: Any, rounds: int) -> dict[str, Any]:
    """Run every contender ``rounds`` times (and once to warm up), in turns; return what each cost."""
    from engine.parallel.collectives import collect_json

    found: dict[str, dict[str, Any]] = {name: {"wall": [], "cpu": []} for name in forwards}
    reference = forwards["one rank"](inputs)[0]
    for turn in range(rounds + 1):
        for name, forward in forwards.items():
            collect_json("ready", mesh)
            # The other rank waits while one rank runs.
            skip = name == "one rank" and mesh.layout.rank > 0
            wall, cpu = time.monotonic(), time.process_time()
            out, cost = (reference, Cost(0, 0)) if skip else forward(inputs)
            used = [time.monotonic() - wall, time.process_time() - cpu]
            everywhere = collect_json(used, mesh)
            entry = found[name]
            if turn:
                entry["wall"].append(max(seconds for seconds, _ in everywhere))
                entry["cpu"].append(max(seconds for _, seconds in everywhere))
            entry["sent"], entry["held"] = cost.sent, cost.held
            entry["difference"] = max(float((a - b).abs().max()) for a, b in zip(out, reference, strict=True))
    return found


def report(results: list[dict[str, Any]]) -> None:
    """Print one table."""
    print("| rows | contender | s a forward | x | CPU s of a rank | x | sent a layer, MiB | remote K/V, MiB | off by |")
    print("|---|---|---|---|---|---|---|---|---|")
    for result in results:
        one = result["contenders"]["one rank"]
        for name, entry in result["contenders"].items():
            wall, cpu = min(entry["wall"]), min(entry["cpu"])
            print(
                f"| {result['rows']} | {name} | {wall:.2f} | {min(one['wall']) / wall:.2f} | {cpu:.2f} "
                f"| {min(one['cpu']) / cpu:.2f} | {entry['sent'] / MIB:.2f} | {entry['held'] / MIB:.2f} "
                f"| {entry['difference']:.0e} |"
            )


def main() -> None:
    """Start two ranks and print what they measured."""
    arguments = parse_arguments()
    if arguments.rank is not None:
        be_rank(arguments)
        return
    with tempfile.TemporaryDirectory(prefix="h3-bench-") as folder:
        options = [word for name in ("rounds", "layers") for word in (f"--{name}", str(getattr(arguments, name)))]
        rows = ["--rows", *(str(count) for count in arguments.rows)]
        processes = [
            subprocess.Popen(
                [sys.executable, __file__, *rows, *options, "--rank", str(rank), "--folder", folder],
                env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
                cwd=ROOT,
            )
            for rank in range(RANKS)
        ]
        try:
            if any(process.wait() for process in processes):
                raise SystemExit("a rank failed")
        finally:
            for process in processes:
                process.kill()
        report(json.loads((Path(folder) / "results.json").read_text()))


if __name__ == "__main__":
    main()
