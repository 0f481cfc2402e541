"""One job on one rank: the stages of a request, in order, together with the other ranks.

Every rank runs the same code on what it holds; rank 0 brings the inputs' results and gives the outputs. Promise: `run`
returns alike on all ranks, after all of them ended the job; a result piece is out as soon as it exists, latents before
decoding starts. An error outside a collective poisons nothing; inside one, the data group, which is replaced on gloo,
while elsewhere the ranks must restart. Weights that are spread over ranks keep their groups: any error restarts them.
A lost peer raises RuntimeError, which this process cannot recover from.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from .contract import latent_file
from .contract.errors import EngineError, JobCancelled, JobError, RequestError
from .contract.messages import STAGES_OF, Decode, Denoise, Echo, EncodePrompt, Generate, Request, parse_request
from .frames import FrameSink, Mp4Frames, TensorFrames
from .health import describe_latents
from .models.bundle import Models
from .outputs import Outputs
from .parallel.agreement import CONSEQUENCE, Agreement
from .parallel.collectives import DataGroupError, collect_json, share_tensors
from .parallel.mesh import Mesh
from .parallel.watchdog import Watchdog
from .progress import Progress
from .stages.base import Latents, PromptEmbeds, StageContext
from .stages.decode_audio import decode_audio
from .stages.decode_video import decode_video
from .stages.denoise import check_conditioning, denoise
from .stages.encode_prompt import encode_prompt
from .vae.chunks import count_chunks
from .vae.crew import VaeCrew
from .vae.memory import is_out_of_memory

logger = logging.getLogger(__name__)


_TEXT_LIMIT = 2000


@dataclass(frozen=True)
class JobResult:
    """How a job ended, alike on all ranks.

    Attributes:
        error: `EngineError.to_dict`, or None.
        facts: counts of the result.
        must_restart: the ranks cannot serve another job.
    """

    error: dict[str, Any] | None
    facts: dict[str, Any] = field(default_factory=dict)
    must_restart: bool = False


class JobRunner:
    """Runs jobs, one after the other, on what this rank holds."""

    def __init__(self, models: Models, vaes: VaeCrew, mesh: Mesh, watchdog: Watchdog) -> None:
        self._models = models
        self._vaes = vaes
        self._mesh = mesh
        self._watchdog = watchdog

    def run(self, message: dict[str, Any], outputs: Outputs, cancelled: Callable[[], bool]) -> JobResult:
        """Run the job of a link message ``run``; every rank calls it with the same one.

        Raises:
            RuntimeError: a peer is lost.
        """
        agreement = Agreement(self._mesh, cancelled)
        request = parse_request(message["request"])
        progress = Progress(STAGES_OF[request.task], outputs.event)
        job = _Job(self._models, self._vaes, agreement, progress, outputs)
        self._watchdog.watch_job(message["job_id"])
        try:
            facts = job.perform(request, {name: Path(path) for name, path in message["inputs"].items()})
            agreement.settle()
            return JobResult(None, facts)
        except Exception as error:
            if error is not agreement.outcome:
                own = not isinstance(error, (DataGroupError, RequestError))
                logger.error(
                    "job %s failed here in stage %s: %s", message["job_id"], progress.stage, error, exc_info=own
                )
                reported = job_error(error, stage=progress.stage, rank=self._mesh.layout.rank)
                self._fail_together(message["job_id"], agreement, reported, error)
            assert agreement.outcome is not None
            unusable = self._recover(agreement) or isinstance(error, torch.AcceleratorError)
            return JobResult(agreement.outcome.to_dict(), must_restart=any(collect_json(unusable, self._mesh)))
        finally:
            # A decoding that nobody read to its end.
            self._vaes.staging.clear()
            self._watchdog.watch_job(None)

    def _fail_together(self, job_id: str, agreement: Agreement, error: EngineError, cause: Exception) -> None:
        """Free the peers that wait for this rank in a collective, then end the job with them."""
        # The frames of a collective that failed hold on to its group.
        traceback.clear_frames(cause.__traceback__)
        self._watchdog.announce_failure(job_id)
        self._mesh.leave_data()
        with suppress(EngineError):
            agreement.settle(error)

    def _recover(self, agreement: Agreement) -> bool:
        """Make the data group usable again; return whether that takes a restart."""
        if isinstance(agreement.outcome, JobCancelled):
            return False
        if self._mesh.rebuildable:
            self._mesh.rebuild_data()
            return False
        return agreement.poisoned or not self._mesh.in_data


def job_error(error: Exception, *, stage: str | None, rank: int) -> EngineError:
    """Return what the user is told of ``error``, raised in ``stage`` on ``rank``."""
    if isinstance(error, EngineError):
        return error
    where = {"stage": stage, "rank": rank}
    if is_out_of_memory(error):
        return JobError(
            "out_of_memory",
            f"Out of memory in stage {stage} on rank {rank}.",
            remedy="Ask for a smaller canvas or a shorter video, or use more ranks.",
            details=where,
        )
    text = f"{type(error).__name__} in stage {stage} on rank {rank}: {str(error)[:_TEXT_LIMIT]}"
    if isinstance(error, DataGroupError):
        return JobError("job_failed", text, details={**where, CONSEQUENCE: True})
    return JobError("job_failed", text, remedy="The engine's log has the whole traceback.", details=where)


class _Job:
    """The stages of one job on one rank."""

    def __init__(
        self,
        models: Models,
        vaes: VaeCrew,
        agreement: Agreement,
        progress: Progress,
        outputs: Outputs,
    ) -> None:
        mesh = vaes.mesh
        self._mesh = mesh
        self._agreement = agreement
        self._progress = progress
        self._outputs = outputs
        self._ctx = StageContext(models, mesh.device, self._report, self._boundary, vaes)

    def _boundary(self) -> None:
        """Meet the other ranks with nothing left to do on any device; see `StageContext.boundary`."""
        # Here and nowhere else: the others wait in a group that never times out.
        self._outputs.wait_for_room()
        self._wait_for_device()
        self._agreement.settle()
        self._mesh.dirty = False

    def _report(self, step: int, total: int) -> None:
        """Tell of a step when it is done, not when it is queued on the device."""
        self._wait_for_device()
        self._progress.report(step, total)

    def _wait_for_device(self) -> None:
        if self._mesh.device.type != "cpu":
            torch.accelerator.synchronize()

    def perform(self, request: Request, inputs: Mapping[str, Path]) -> dict[str, Any]:
        """Run the stages of ``request``; return the facts of the result."""
        if isinstance(request, EncodePrompt):
            return self._encode_prompt(request)
        if isinstance(request, Denoise):
            tensors = load_file(inputs["conditioning"])
            embeds = PromptEmbeds(tensors["prompt_embeds"], tensors["token_tags"])
            check_conditioning(embeds)
            self._denoise(embeds, request)
            return {}
        if isinstance(request, Decode):
            tensors = load_file(inputs["latents"])
            return self._decode(Latents(tensors["video"], tensors["audio"]), request)
        if isinstance(request, Generate):
            return self._generate(request)
        assert isinstance(request, Echo)
        for name, path in inputs.items():
            self._outputs.same(name, path)
        return {"parts": len(inputs)}

    def _encode_prompt(self, request: EncodePrompt) -> dict[str, Any]:
        embeds = self._encode(request.prompt)
        if embeds is None:
            return {}
        self._outputs.tensors("conditioning", vars(embeds))
        return {"tokens": embeds.token_tags.shape[0]}

    def _generate(self, request: Generate) -> dict[str, Any]:
        embeds = self._encode(request.prompt)
        shared = share_tensors(None if embeds is None else vars(embeds), self._mesh)
        return self._decode(self._denoise(PromptEmbeds(**shared), request), request)

    def _encode(self, prompt: str) -> PromptEmbeds | None:
        """Return the conditioning on rank 0, which is known to all to have it, and None elsewhere."""
        with self._progress.running("encode_prompt"):
            embeds = encode_prompt(self._ctx, prompt=prompt)
        # The sums over the parts of a divided text encoder are data collectives: all ranks must have left them.
        self._boundary()
        return embeds if self._mesh.layout.rank == 0 else None

    def _denoise(self, embeds: PromptEmbeds, request: Denoise | Generate) -> Latents:
        # The server resolved the request: sizes are final.
        assert request.width is not None
        assert request.height is not None
        assert request.frames is not None
        with self._progress.running("denoise"):
            latents = denoise(
                self._ctx,
                embeds,
                width=request.width,
                height=request.height,
                frames=request.frames,
                steps=request.steps,
                seed=request.seed,
                pad_seq_len=request.pad_seq_len,
            )
            self._boundary()
        metadata = latent_file.describe(latents.video.shape[2], seed=request.seed)
        self._outputs.tensors("latents", vars(latents), metadata=metadata)
        return latents

    def _decode(self, latents: Latents, request: Decode | Generate) -> dict[str, Any]:
        """Sound first, so that it can be interleaved with the pictures as they come."""
        with self._progress.running("decode_audio"):
            audio = decode_audio(self._ctx, latents.audio)
        with self._progress.running("decode_video"), self._frame_sink(latents, audio, request) as frames:
            for chunk in decode_video(self._ctx, latents.video):
                frames.add(chunk)
        return frames.facts()

    def _frame_sink(self, latents: Latents, audio: torch.Tensor | None, request: Decode | Generate) -> FrameSink:
        chunks = count_chunks(latents.video.shape[2])

        def describe() -> str:
            return describe_latents(latents.video, latents.audio)

        if request.container == "mp4":
            return Mp4Frames(self._outputs, audio, chunks=chunks, describe=describe)
        return TensorFrames(self._outputs, audio, chunks=chunks, dtype=request.frame_dtype, describe=describe)
