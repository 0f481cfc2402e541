"""Ranks that make several outputs of one request while somebody counts what they hold."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import save_file
from torch.multiprocessing.reductions import StorageWeakRef

from engine import runner
from engine.noise import Noise, NoiseWorker
from engine.offload.modulation import Modulation
from engine.outputs import NoOutputs
from engine.parallel.mesh import Mesh
from engine.parallel.sharding import apply_sequence_parallel
from engine.rank_options import VaeOptions
from engine.runner import JobRunner
from engine.stages import denoise as denoise_stage
from engine.stages.base import Latents
from engine.vae.crew import build_crew

from .stages import load

REQUEST: dict[str, Any] = {
    "task": "generate",
    "prompt": "a red kite",
    "width": 64,
    "height": 32,
    "frames": 22,
    "steps": 2,
    "seed": 40,
    "container": "tensors",
    "guides": [{"frame": 0, "media": {"part": "a"}}, {"frame": 5, "media": {"part": "b"}, "audio": {"part": "c"}}],
}
OUTPUTS = 3


class Kept(NoOutputs):
    """Outputs that keep copies of what they are given, by name, output and index."""

    def __init__(self) -> None:
        self.pieces: dict[str, torch.Tensor] = {}
        self.given: list[StorageWeakRef] = []
        self._number = 0

    def of_output(self, number: int) -> Any:
        made = Kept()
        made.pieces, made.given, made._number = self.pieces, self.given, number
        return made

    def tensors(
        self,
        name: str,
        tensors: Mapping[str, torch.Tensor],
        *,
        index: int = 0,
        last: bool = True,
        metadata: dict[str, str] | None = None,
    ) -> None:
        for key, tensor in tensors.items():
            self.pieces[f"{name}.{key}.{self._number}.{index}"] = tensor.clone()
            self.given.append(StorageWeakRef(tensor.untyped_storage()))


class Watch:
    """Counts, at the first forward of each output, the buffers of noise and of former outputs that are still held."""

    def __init__(self, transformer: Any, outputs: Kept) -> None:
        self.noise: list[StorageWeakRef] = []
        self.latents: list[StorageWeakRef] = []
        self.taken = self.drawn = 0
        self.held: list[dict[str, int]] = []
        self._outputs = outputs
        self._steps = 0
        transformer.register_forward_pre_hook(self._before_forward)

    def _note(self, noise: Noise) -> Noise:
        self.noise += [StorageWeakRef(t.untyped_storage()) for t in (*noise.conditions, noise.video, noise.audio)]
        return noise

    def install(self) -> None:
        """Look over the shoulder of everybody who makes buffers."""
        take, draw, denoise = NoiseWorker.take, denoise_stage.draw_noise, runner.denoise

        def taking(worker: NoiseWorker, shapes: Any) -> Noise:
            self.taken += 1
            return self._note(take(worker, shapes))

        def drawing(shapes: Any, *, seed: int) -> Noise:
            self.drawn += 1
            return self._note(draw(shapes, seed=seed))

        def denoising(*args: Any, **kwargs: Any) -> Latents:
            made = denoise(*args, **kwargs)
            self.latents += [StorageWeakRef(t.untyped_storage()) for t in (made.video, made.audio)]
            return made

        NoiseWorker.take = taking  # type: ignore[method-assign]
        denoise_stage.draw_noise = drawing
        runner.denoise = denoising

    def _before_forward(self, *_: Any) -> None:
        if self._steps % REQUEST["steps"] == 0:
            groups = {"noise": self.noise, "latents": self.latents, "outputs": self._outputs.given}
            self.held.append({name: sum(not ref.expired() for ref in refs) for name, refs in groups.items()})
        self._steps += 1


def run(mesh: Mesh, folder: Path) -> None:
    """Make several outputs; write what was held and, on rank 0, what came out."""
    model = (folder / "model").resolve()
    rank = mesh.layout.rank
    models = load(model) if rank == 0 else load(model, keep=frozenset({"transformer", "vae"}))
    apply_sequence_parallel(models.transformer, mesh)
    inputs = {}
    for number in range(2):
        generator = torch.Generator().manual_seed(number)
        frames = torch.randint(0, 256, (1, 32, 64, 3), generator=generator, dtype=torch.uint8)
        sound = {"waveform": torch.rand((2, 8000), generator=generator)} if number else {}
        path = folder / f"guide-{rank}-{number}.safetensors"
        save_file({"frames": frames, **sound}, path)
        inputs[f"guides.{number}"] = str(path)
    outputs = Kept()
    watch = Watch(models.transformer, outputs)
    watch.install()
    silent: Any = SimpleNamespace(watch_job=lambda job: None, announce_failure=lambda job: None)
    jobs = JobRunner(models, build_crew(models, mesh, VaeOptions()), mesh, silent, Modulation())

    def job(**changes: Any) -> Any:
        return {"job_id": "one", "request": {**REQUEST, **changes}, "inputs": inputs}

    state = torch.get_rng_state()
    result = jobs.run(job(num_outputs=OUTPUTS), outputs, lambda: False)
    untouched = torch.equal(state, torch.get_rng_state())
    seen = {"error": result.error, "held": list(watch.held), "taken": watch.taken, "drawn": watch.drawn}
    # The same seeds one by one, each noise drawn by a worker.
    alone = [Kept() for _ in range(OUTPUTS)]
    for number, kept in enumerate(alone):
        jobs.run(job(seed=REQUEST["seed"] + number), kept, lambda: False)
    names = {name for kept in alone for name in kept.pieces}
    same = all(
        torch.equal(outputs.pieces[f"{name.rsplit('.', 2)[0]}.{number}.{name.rsplit('.', 1)[1]}"], kept.pieces[name])
        for number, kept in enumerate(alone)
        for name in kept.pieces
    )
    report = {**seen, "same": same, "pieces": len(outputs.pieces), "each": len(names), "untouched": untouched}
    (folder / f"outputs-{rank}.json").write_text(json.dumps(report))
