"""Decoding a video on one and on two CPU ranks against diffusers' own decode, on the same weights, one thread each.

    .venv/bin/python benchmarks/vae.py [--width 640] [--height 448] [--frames 124] [--rounds 2]

A decoder of 8 layers, 256 wide (36 of 2,048 as released), in the trained tiles; every contender runs in its own
processes, in turns, and decodes to bytes. Printed per contender: wall seconds, the CPU seconds of the busiest rank,
seconds to the first frames, and the most memory beyond what it held before the decode, on the rank that answers; each
the best of the rounds, and whether all made the same bytes. On a machine that does other work the CPU seconds are the
ones to trust. The aims: 1.9 times diffusers' speed on two ranks, the first frames in a fifth of diffusers' whole time.
What two ranks cannot share is stitching and rounding, which weigh the less the larger the decoder is.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
DIFFUSERS, ONE, TWO = "diffusers, 1 process", "ours, 1 rank", "ours, 2 ranks"
RANKS = {DIFFUSERS: 1, ONE: 1, TWO: 2}
MB = 1e6


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=640, help="pixels, a multiple of 32")
    parser.add_argument("--height", type=int, default=448, help="pixels, a multiple of 32")
    parser.add_argument("--frames", type=int, default=124, help="pixel frames, 17n+5")
    parser.add_argument("--rounds", type=int, default=2, help="turns of each contender")
    parser.add_argument("--be", choices=RANKS, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    return parser.parse_args()


def make_vae() -> Any:
    """Return the VAE, the same on every call; its encoder is as small as can be."""
    import torch
    from diffusers import AutoencoderKLMiniMaxH3

    from engine.tiny_weights import sensitise_vae

    torch.manual_seed(0)
    return sensitise_vae(
        AutoencoderKLMiniMaxH3(
            block_out_channels=(4, 4, 4, 4),
            layers_per_block=1,
            spatial_downsample_factors=(2, 2, 2, 2),
            temporal_downsample_factors=(1, 2, 2, 1),
            norm_num_groups=2,
            decoder_num_layers=8,
            decoder_num_attention_heads=4,
            decoder_attention_head_dim=64,
        )
    ).requires_grad_(False)


def make_latents(arguments: argparse.Namespace) -> Any:
    """Return normalised latents [1, 24, T, h, w]."""
    import torch

    from engine.contract.geometry import latent_frames

    shape = (1, 24, latent_frames(arguments.frames), arguments.height // 16, arguments.width // 16)
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def theirs(vae: Any, latents: Any) -> Iterator[Any]:
    """Decode with diffusers, as its pipeline does; yield all pictures [F, H, W, 3] at once."""
    import torch

    from engine.vae.pixels import PIXEL_MEAN, PIXEL_STD

    with torch.no_grad():
        pixels = vae.decode(latents, return_dict=False)[0]
    mean, std = (torch.tensor(values).view(1, -1, 1, 1, 1) for values in (PIXEL_MEAN, PIXEL_STD))
    yield (pixels * std + mean).clamp(0, 1)[0].permute(1, 2, 3, 0)


def ours(vae: Any, latents: Any, mesh: Any) -> Iterator[Any]:
    """Decode with the engine's stage; yield pictures on rank 0 chunk by chunk."""
    from engine.contract.limits import ModelFacts
    from engine.models.bundle import Models
    from engine.parallel.agreement import Agreement
    from engine.rank_options import VaeOptions
    from engine.stages.base import StageContext
    from engine.stages.decode_video import decode_video
    from engine.vae.crew import build_crew

    models = Models(ModelFacts(), latents.dtype, None, None, None, vae=vae)
    agreement = Agreement(mesh, lambda: False)
    crew = build_crew(models, mesh, VaeOptions())
    yield from decode_video(StageContext(models, mesh.device, lambda *_: None, agreement.settle, crew), latents)


def be(arguments: argparse.Namespace) -> None:
    """Be one process of a contender; the answering one writes what it measured."""
    import torch
    from torch.distributed import FileStore

    from engine.parallel.collectives import collect_json
    from engine.parallel.layout import Layout
    from engine.parallel.mesh import Mesh
    from engine.stages.decode_video import to_uint8

    torch.set_num_threads(1)
    folder, ranks = Path(arguments.folder), RANKS[arguments.be]
    mesh = Mesh(Layout(arguments.rank, ranks, ranks), FileStore(str(folder / "store"), ranks))
    mesh.open_data(torch.device("cpu"), timeout=3600)
    vae, latents = make_vae(), make_latents(arguments)
    with torch.no_grad():
        vae.decoder(torch.zeros(1, 24, 7, 16, 16))
    collect_json("ready", mesh)
    held, wall, cpu = memory("VmRSS"), time.monotonic(), time.process_time()
    digest, first = hashlib.sha256(), 0.0
    for pictures in theirs(vae, latents) if arguments.be == DIFFUSERS else ours(vae, latents, mesh):
        digest.update(to_uint8(pictures).contiguous().numpy())
        first = first or time.monotonic() - wall
    used = collect_json([time.monotonic() - wall, time.process_time() - cpu], mesh)
    if arguments.rank == 0:
        found = {"wall": max(w for w, _ in used), "cpu": max(c for _, c in used), "first": first}
        found |= {"memory": memory("VmHWM") - held, "digest": digest.hexdigest()}
        (folder / "result.json").write_text(json.dumps(found))
    mesh.close()


def memory(what: str) -> float:
    """Return ``VmRSS`` (now) or ``VmHWM`` (the most so far) of this process, bytes."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(what))
    return float(line.split()[1]) * 1024


def turn(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Let a contender take its turn."""
    sizes = [word for key in ("width", "height", "frames") for word in (f"--{key}", str(getattr(arguments, key)))]
    with tempfile.TemporaryDirectory(prefix="h3-bench-") as folder:
        processes = [
            subprocess.Popen(
                [sys.executable, __file__, *sizes, "--be", name, "--rank", str(rank), "--folder", folder],
                env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
                cwd=ROOT,
            )
            for rank in range(RANKS[name])
        ]
        try:
            if any(process.wait() for process in processes):
                raise SystemExit(f"{name} failed")
        finally:
            for process in processes:
                process.kill()
        return dict(json.loads((Path(folder) / "result.json").read_text()))


def main() -> None:
    """Let all take their turns and print the table."""
    arguments = parse_arguments()
    if arguments.be:
        be(arguments)
        return
    turns: dict[str, list[dict[str, Any]]] = {name: [] for name in RANKS}
    for _ in range(arguments.rounds):
        for name, results in turns.items():
            results.append(turn(name, arguments))
    best = {
        name: {key: min(result[key] for result in results) for key in ("wall", "cpu", "first", "memory")}
        for name, results in turns.items()
    }
    base = best[DIFFUSERS]
    print(f"{arguments.width}x{arguments.height}, {arguments.frames} frames, fp32, one thread a rank")
    print("| contender | s | x | CPU s of the busiest rank | x | s to the first frames | of diffusers' s | MB |")
    print("|---|---|---|---|---|---|---|---|")
    for name, found in best.items():
        print(
            f"| {name} | {found['wall']:.1f} | {base['wall'] / found['wall']:.2f} | {found['cpu']:.1f} "
            f"| {base['cpu'] / found['cpu']:.2f} | {found['first']:.1f} | {found['first'] / base['wall']:.2f} "
            f"| {found['memory'] / MB:.0f} |"
        )
    same = len({result["digest"] for results in turns.values() for result in results}) == 1
    print(f"the same bytes everywhere: {same}")


if __name__ == "__main__":
    main()
