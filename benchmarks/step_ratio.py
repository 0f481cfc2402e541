"""One denoising step: an engine of two CPU ranks against diffusers' transformer in one process, on the same weights.

    .venv/bin/python benchmarks/step_ratio.py [--rounds 3] [--width 512 --height 512 --frames 56]

Both take turns on the same machine, with the same random conditioning, seed and size, in fp32; the engine's ranks have
one thread each, the single process has one thread and then all cores. Printed are the median seconds of a step, their
ratios, the largest difference between the latents, and the machine's cores: a ratio means nothing without them.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
STEPS = 4
RANKS = 2
TEXT_ROWS = 64


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="turns of each contender")
    parser.add_argument("--width", type=int, default=512, help="pixels")
    parser.add_argument("--height", type=int, default=512, help="pixels")
    parser.add_argument("--frames", type=int, default=56, help="pixel frames, 17n+5")
    parser.add_argument("--single", help=argparse.SUPPRESS)
    return parser.parse_args()


def request_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of the denoise task that both run."""
    return {"width": arguments.width, "height": arguments.height, "frames": arguments.frames, "steps": STEPS, "seed": 0}


def step_seconds(stamps: list[float]) -> list[float]:
    """Return the seconds between the ends of steps; the first step, which warms up, is left out."""
    return [after - before for before, after in itertools.pairwise(stamps)]


def run_single(folder: Path, request: dict[str, Any]) -> None:
    """Run on one rank in this process (bit for bit diffusers); print the steps' seconds as JSON."""
    import torch
    from safetensors.torch import load_file, save_file

    from engine.checkpoint import open_checkpoint
    from engine.models.loading import load_models
    from engine.stages.base import PromptEmbeds, StageContext
    from engine.stages.denoise import denoise

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    cpu, stamps = torch.device("cpu"), list[float]()
    models = load_models(
        open_checkpoint(folder / "model", stages=("denoise",)),
        device=cpu,
        dtype=torch.float32,
        keep=frozenset({"transformer"}),
        on_bytes=lambda *_: None,
    )
    ctx = StageContext(models, cpu, lambda *_: stamps.append(time.monotonic()), lambda: None)
    with torch.inference_mode():
        latents = denoise(ctx, PromptEmbeds(**load_file(folder / "conditioning.safetensors")), **request)
    save_file(vars(latents), folder / "single.safetensors")
    sys.stdout.write(json.dumps(step_seconds(stamps)))


def turn_of_single(folder: Path, arguments: argparse.Namespace, threads: int) -> list[float]:
    """Let one process of ``threads`` threads take its turn."""
    sizes = [word for name in ("width", "height", "frames") for word in (f"--{name}", str(getattr(arguments, name)))]
    done = subprocess.run(
        [sys.executable, __file__, "--single", str(folder), *sizes],
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        stdout=subprocess.PIPE,
        check=True,
    )
    return list(json.loads(done.stdout))


@contextmanager
def engine(folder: Path) -> Iterator[str]:
    """Serve the checkpoint on two ranks; yield the address."""
    ready = folder / "ready.json"
    options = ["--model", folder / "model", "--port", 0, "--ready-file", ready, "--device", "cpu", "--dtype", "fp32"]
    command = [sys.executable, "-m", "engine", "serve", *options, "--nproc-per-node", RANKS, "--stop-on-eof"]
    with (folder / "engine.log").open("wb") as log:
        process = subprocess.Popen(
            [str(word) for word in command],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
        )
    try:
        while not ready.exists():
            if process.poll() is not None:
                raise SystemExit((folder / "engine.log").read_text())
            time.sleep(0.1)
        yield json.loads(ready.read_text())["url"]
    finally:
        process.communicate()


async def turn_of_engine(url: str, folder: Path, request: dict[str, Any]) -> list[float]:
    """Let the engine take its turn; its latents go to ``engine.safetensors``."""
    from engine.client import EngineClient

    stamps = list[float]()

    def note(event: Any) -> None:
        if event["type"] == "step":
            stamps.append(time.monotonic())

    async with EngineClient(url) as client:
        outcome = await client.run(
            {"task": "denoise", **request},
            folder=folder,
            inputs={"conditioning": folder / "conditioning.safetensors"},
            on_event=note,
        )
    outcome.outputs["latents"][0].replace(folder / "engine.safetensors")
    return step_seconds(stamps)


def prepare(folder: Path) -> None:
    """Write the checkpoint and a random conditioning."""
    import torch
    from safetensors.torch import save_file

    from engine.tiny import make_tiny

    make_tiny(folder / "model", preset="small")
    width = json.loads((folder / "model" / "text_encoder" / "config.json").read_text())["text_config"]["hidden_size"]
    embeds = torch.randn(1, TEXT_ROWS, width, generator=torch.Generator().manual_seed(0))
    tags = torch.ones(TEXT_ROWS, dtype=torch.int64)
    save_file({"prompt_embeds": embeds, "token_tags": tags}, folder / "conditioning.safetensors")


def largest_difference(folder: Path) -> float:
    """Return the largest absolute difference between the two contenders' latents."""
    from safetensors.torch import load_file

    ours, single = load_file(folder / "engine.safetensors"), load_file(folder / "single.safetensors")
    return max(float((ours[name] - single[name]).abs().max()) for name in ("video", "audio"))


def main() -> None:
    """Run all turns and print the table."""
    arguments = parse_arguments()
    request = request_of(arguments)
    if arguments.single:
        run_single(Path(arguments.single), request)
        return
    cores = len(os.sched_getaffinity(0))
    times: dict[str, list[float]] = {"engine, 2 ranks of 1 thread": [], "one process, 1 thread": []}
    times[f"one process, {cores} threads"] = []
    with tempfile.TemporaryDirectory(prefix="h3-bench-") as scratch:
        folder = Path(scratch)
        prepare(folder)
        with engine(folder) as url:
            for _ in range(arguments.rounds):
                for threads, name in ((1, "one process, 1 thread"), (cores, f"one process, {cores} threads")):
                    times[name] += turn_of_single(folder, arguments, threads)
                turn = asyncio.run(turn_of_engine(url, folder, request))
                times["engine, 2 ranks of 1 thread"] += turn
        difference = largest_difference(folder)
    report(times, difference, cores, arguments)


def report(times: dict[str, list[float]], difference: float, cores: int, arguments: argparse.Namespace) -> None:
    """Print the table."""
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    ours = medians["engine, 2 ranks of 1 thread"]
    print(f"{arguments.width}x{arguments.height}, {arguments.frames} frames, fp32, {cores} cores, {STEPS} steps")
    for name, seconds in medians.items():
        print(f"  {name:30s} {seconds:7.3f} s a step   {seconds / ours:5.2f} x the engine's")
    print(f"  largest difference of the latents: {difference:.1e}")


if __name__ == "__main__":
    main()
