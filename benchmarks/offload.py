"""Streaming the transformer's blocks from host memory: seconds a step, what of the copying is hidden, host memory.

    .venv/bin/python benchmarks/offload.py [--device auto] [--width 512 --height 512 --frames 56] [--rounds 3]

A random transformer of 8 blocks, 768 wide (50 of 5,376 as released); --hidden and --layers make another. Two tables:

1. In one process, in turns: all on the device, half of the blocks on the device, none. Printed are the median seconds
   of a step, their ratio to the first, the bytes that stream in a step, the seconds that copying them alone takes, and
   how much of these was hidden behind computing: 1 - (seconds more a step) / (seconds of copying). Nothing is on a
   device without streams (a CPU), where a copy is done before the block begins. Whether the latents agree, bit for bit.
2. Each in processes of its own: the host memory that weights take once they are loaded and a step is done, of one rank,
   of two that share their copies and of two that do not; a page that processes share counts once, and pages of the
   checkpoint's files, which the kernel may drop at any time, do not count.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
PRESET, STEPS, TEXT_ROWS, GB = "bench", 4, 64, 1e9
ALL, NONE = "all on the device", "none"
ONE, SHARED, OWN = "1 rank", "2 ranks, one copy", "2 ranks, own copies"
MEMORY = {ONE: (1, "shared"), SHARED: (2, "shared"), OWN: (2, "own")}


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, xpu or npu")
    parser.add_argument("--dtype", default="auto", help="auto, fp32 or bf16")
    parser.add_argument("--block-storage", default="full", help="full, fp8 or int8")
    parser.add_argument("--hidden", type=int, default=768, help="width of the transformer, a multiple of 96")
    parser.add_argument("--layers", type=int, default=8, help="its blocks")
    parser.add_argument("--width", type=int, default=512, help="pixels, a multiple of 32")
    parser.add_argument("--height", type=int, default=512, help="pixels, a multiple of 32")
    parser.add_argument("--frames", type=int, default=56, help="pixel frames, 17n+5")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each contender")
    parser.add_argument("--be", choices=MEMORY, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    return parser.parse_args()


def make_checkpoint(folder: Path, arguments: argparse.Namespace) -> None:
    """Write a random checkpoint whose transformer has the wanted size; all else of it is tiny."""
    from engine import tiny

    hidden = arguments.hidden
    tiny.PRESETS[PRESET] = dataclasses.replace(
        tiny.PRESETS["tiny"], heads=hidden // 96, head_dim=128, hidden=hidden, layers=arguments.layers,
        ffn=8 * hidden // 3, time=hidden // 2, rope=16,
    )  # fmt: skip
    tiny.make_tiny(folder, preset=PRESET)


class Contender:
    """A transformer of one rank, placed by options, and what its steps took."""

    def __init__(self, arguments: argparse.Namespace, mesh: Any, **options: Any) -> None:
        from engine.checkpoint import open_checkpoint
        from engine.devices import pick_dtype
        from engine.offload.host import share_host_copies
        from engine.offload.modulation import Modulation
        from engine.parallel.sharding import apply_sequence_parallel
        from engine.rank_options import ModelOptions, RankOptions
        from engine.stages.base import StageContext
        from engine.worker_weights import load_rank, take_over

        self.seconds: list[float] = []
        self._arguments, self._device = arguments, mesh.device
        folder, ranks = Path(arguments.folder) / "model", mesh.layout.world_size
        given = RankOptions(
            model=str(folder), device=mesh.device.type, dtype=arguments.dtype, stages=("denoise",), link="",
            data_timeout=3600, ulysses_degree=ranks, block_storage=arguments.block_storage,
            model_options=ModelOptions(partitions=("transformer",)), **options,
        )  # fmt: skip
        checkpoint = open_checkpoint(folder, stages=given.stages, options=given.model_options)
        copies = share_host_copies(given, ("transformer",), rank=mesh.layout.rank, device=mesh.device)
        self._models = load_rank(
            checkpoint, given, copies, keep=frozenset({"transformer"}), device=mesh.device,
            dtype=pick_dtype(arguments.dtype, mesh.device), on_bytes=lambda *_: None, divisions={},
        )  # fmt: skip
        owner = take_over(self._models, given, copies, mesh=mesh, together=lambda step: in_step(step, mesh))
        assert owner is not None
        apply_sequence_parallel(self._models.transformer, mesh)
        self.placed = owner.placement.components["transformer"]
        self._stamps: list[float] = []
        self._context = StageContext(
            self._models, mesh.device, self._report, lambda: None,
            modulation=Modulation(projections=owner.projections), owner=owner,
        )  # fmt: skip

    @property
    def streamed(self) -> list[int]:
        """Bytes of the units that stream in a step."""
        return [unit.bytes for stream in self.placed.streams for unit in stream.streamed]

    def _report(self, *_: int) -> None:
        synchronize(self._device)
        self._stamps.append(time.monotonic())

    def turn(self, steps: int = STEPS) -> Any:
        """Denoise, note the seconds of all steps but the first, and return the latents."""
        import torch

        from engine.stages.base import PromptEmbeds
        from engine.stages.denoise import denoise

        self._stamps.clear()
        width = self._models.facts.text_dim
        embeds = torch.randn(1, TEXT_ROWS, width, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
        conditioning = PromptEmbeds(embeds.to(self._models.dtype), torch.ones(TEXT_ROWS, dtype=torch.int64))
        size = {name: getattr(self._arguments, name) for name in ("width", "height", "frames")}
        with torch.inference_mode():
            made = denoise(self._context, conditioning, **size, steps=steps, seed=0)
        self.seconds += [after - before for before, after in itertools.pairwise(self._stamps)]
        return made


def in_step(step: Any, mesh: Any) -> Any:
    """Let all ranks end ``step`` before any goes on; return what it returns."""
    from engine.parallel.collectives import collect_json

    done = step()
    collect_json(None, mesh)
    return done


def synchronize(device: Any) -> None:
    """Return when nothing is left to do on ``device``."""
    import torch

    if device.type != "cpu":
        torch.accelerator.synchronize()


def copy_seconds(sizes: list[int], device: Any) -> float:
    """Return the seconds of copying blocks of these ``sizes`` to ``device``, one after the other, nothing beside."""
    import torch

    if not sizes:
        return 0.0
    source = torch.zeros(max(sizes), dtype=torch.uint8, pin_memory=device.type != "cpu")
    slot = torch.zeros(max(sizes), dtype=torch.uint8, device=device)
    times = []
    for _ in range(3):
        synchronize(device)
        begin = time.monotonic()
        for size in sizes:
            slot[:size].copy_(source[:size], non_blocking=True)
        synchronize(device)
        times.append(time.monotonic() - begin)
    return min(times)


def open_mesh(arguments: argparse.Namespace, ranks: int) -> Any:
    """Meet the other ranks, if any."""
    import torch
    from torch.distributed import FileStore

    from engine.devices import pick_device
    from engine.parallel.layout import Layout
    from engine.parallel.mesh import Mesh

    torch.set_num_threads(1)
    store = FileStore(str(Path(arguments.folder) / f"store-{arguments.be}"), ranks)
    mesh = Mesh(Layout(arguments.rank, ranks, ranks), store)
    mesh.open_data(pick_device(arguments.device, local_rank=arguments.rank), timeout=3600)
    return mesh


def compare_steps(arguments: argparse.Namespace) -> None:
    """Let all placements take their turns in this process and print their table."""
    import torch

    mesh = open_mesh(arguments, 1)
    contenders = {
        ALL: Contender(arguments, mesh),
        "half": Contender(arguments, mesh, offload=("dit",), resident_blocks=arguments.layers // 2),
        NONE: Contender(arguments, mesh, offload=("dit",)),
    }
    made = {name: contender.turn(2) for name, contender in contenders.items()}
    for contender in contenders.values():
        contender.seconds.clear()
    for _ in range(arguments.rounds):
        for contender in contenders.values():
            contender.turn()
    medians = {name: statistics.median(contender.seconds) for name, contender in contenders.items()}
    base = medians[ALL]
    print(
        f"{arguments.hidden} wide, {arguments.layers} blocks, {arguments.width}x{arguments.height}, "
        f"{arguments.frames} frames, {mesh.device.type}, {contenders[ALL].placed.weights.bytes / GB:.2f} GB of weights"
    )
    print("| blocks on the device | s a step | x | GB streamed | s of copying alone | hidden | GB on the device |")
    print("|---|---|---|---|---|---|---|")
    for name, contender in contenders.items():
        copying = copy_seconds(contender.streamed, mesh.device)
        hidden = "-" if not copying else f"{100 * (1 - (medians[name] - base) / copying):.0f}%"
        print(
            f"| {name} | {medians[name]:.3f} | {medians[name] / base:.2f} | {sum(contender.streamed) / GB:.2f} "
            f"| {copying:.3f} | {hidden if mesh.device.type != 'cpu' else 'no streams'} "
            f"| {contender.placed.device_bytes / GB:.2f} |"
        )
    wanted = made[ALL]
    same = all(
        torch.equal(wanted.video, other.video) and torch.equal(wanted.audio, other.audio) for other in made.values()
    )
    off = max(float((wanted.video - other.video).abs().max()) for other in made.values())
    print(f"the same latents, bit for bit: {same} (largest difference {off:.1e})\n")
    mesh.close()


def measure_memory(arguments: argparse.Namespace) -> None:
    """Be one rank of a contender for memory; the first writes what all took."""
    # What a process takes without weights is not counted.
    import engine.worker_weights
    from engine.parallel.collectives import collect_json

    assert engine.worker_weights.load_rank
    ranks, host_copies = MEMORY[arguments.be]
    mesh = open_mesh(arguments, ranks)
    collect_json(None, mesh)
    before = held()
    contender = Contender(arguments, mesh, offload=("dit",), host_copies=host_copies)
    collect_json(None, mesh)
    loaded = held() - before
    contender.turn(1)
    # Nobody ends before all have looked: what others map would count as one's own.
    reports = collect_json([loaded, held() - before], mesh)
    collect_json(None, mesh)
    if arguments.rank == 0:
        sums = [sum(column) for column in zip(*reports, strict=True)]
        (Path(arguments.folder) / "memory.json").write_text(json.dumps([*sums, contender.placed.host_bytes]))
    mesh.close()


def held() -> int:
    """Return the bytes of host memory of this process, of what it shares its part, without pages of files."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:")))


def memory_of(name: str, arguments: argparse.Namespace) -> list[int]:
    """Let the ranks of a contender load and run; return the bytes loaded, after a step, and of one copy."""
    numbers = ("hidden", "layers", "width", "height", "frames", "device", "dtype", "block_storage")
    words = [word for key in numbers for word in (f"--{key.replace('_', '-')}", str(getattr(arguments, key)))]
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, *words, "--be", name, "--rank", str(rank), "--folder", arguments.folder],
            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
            cwd=ROOT,
        )
        for rank in range(MEMORY[name][0])
    ]
    try:
        if any(process.wait() for process in processes):
            raise SystemExit(f"{name} failed")
    finally:
        for process in processes:
            process.kill()
    return list(json.loads((Path(arguments.folder) / "memory.json").read_text()))


def main() -> None:
    """Measure and print both tables."""
    arguments = parse_arguments()
    if arguments.be:
        measure_memory(arguments)
        return
    with tempfile.TemporaryDirectory(prefix="h3-bench-") as folder:
        arguments.folder = folder
        make_checkpoint(Path(folder) / "model", arguments)
        compare_steps(arguments)
        found = {name: memory_of(name, arguments) for name in MEMORY}
    print(f"Host memory, one copy {found[ONE][2] / GB:.2f} GB")
    print("| ranks | GB loaded | x | GB after a step | x |")
    print("|---|---|---|---|---|")
    for name, sizes in found.items():
        ratios = [size / base for size, base in zip(sizes, found[ONE], strict=True)]
        print(f"| {name} | {sizes[0] / GB:.2f} | {ratios[0]:.2f} | {sizes[1] / GB:.2f} | {ratios[1]:.2f} |")


if __name__ == "__main__":
    main()
