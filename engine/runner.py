"""One job on one rank: the stages of a request, in order, together with the other ranks.

Every rank runs the same code on what it holds; rank 0 brings the inputs' results and gives the outputs. Promise: `run`
returns alike on all ranks, after all of them ended the job; a result piece is out as soon as it exists, latents before
decoding starts. An error where no rank can be in a data collective (`Mesh.quiet`) poisons nothing; elsewhere it poisons
the data groups. On gloo they are replaced; with other backends, and where weights are spread over ranks, which hold on
to their groups, the ranks must restart. A lost peer raises RuntimeError, which this process cannot recover from.
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

from .conditioning import NOTHING, Conditions
from .contract import latent_file
from .contract.check_masks import MASKS
from .contract.errors import EngineError, JobCancelled, RequestError
from .contract.requests import (
    Decode,
    Denoise,
    Echo,
    EncodeMedia,
    EncodePrompt,
    Generate,
    Request,
    parse_request,
    stages_of,
)
from .devices_peaks import StagePeaks
from .frames import FrameSink, Mp4Frames, TensorFrames
from .health import describe_latents
from .masking import Edit
from .models.bundle import Models
from .noise import NoiseShapes, NoiseWorker
from .offload.modulation import Modulation
from .offload.owner import ModelOwner
from .outputs import Outputs
from .packing import latent_grid
from .parallel.agreement import Agreement
from .parallel.collectives import DataGroupError, collect_json, share_tensors
from .parallel.mesh import Mesh
from .parallel.watchdog import Watchdog
from .progress import Progress
from .runner_cache import Reuse
from .runner_edit import load_edit, place_source, tell_of
from .runner_errors import job_error
from .runner_media import JobMedia, fit_source, load_prepared, source_latents
from .stages.base import Latents, Prepared, PromptEmbeds, StageContext
from .stages.decode_audio import decode_audio
from .stages.decode_video import decode_video
from .stages.denoise import check_conditioning, denoise
from .stages.encode_media import EncodedMedium, encode_media
from .stages.encode_prompt import encode_prompt
from .vae.chunks import count_chunks
from .vae.crew import VaeCrew

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class JobResult:
    """How a job ended, alike on all ranks.

    Attributes:
        error: `EngineError.to_dict`, or None.
        facts: counts of the result.
        memory: the most bytes that each stage took, by rank, and what was counted; empty of one that failed.
        must_restart: the ranks cannot serve another job.
    """

    error: dict[str, Any] | None
    facts: dict[str, Any] = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=dict)
    must_restart: bool = False


class JobRunner:
    """Runs jobs, one after the other, on what this rank holds."""

    def __init__(
        self,
        models: Models,
        vaes: VaeCrew,
        mesh: Mesh,
        watchdog: Watchdog,
        modulation: Modulation,
        *,
        owner: ModelOwner | None = None,
    ) -> None:
        self._models = models
        self._owner = owner
        self._vaes = vaes
        self._modulation = modulation
        self._mesh = mesh
        self._watchdog = watchdog

    def run(self, message: dict[str, Any], outputs: Outputs, cancelled: Callable[[], bool]) -> JobResult:
        """Run the job of a link message ``run``; every rank calls it with the same one.

        Raises:
            RuntimeError: a peer is lost.
        """
        agreement = Agreement(self._mesh, cancelled)
        request = parse_request(message["request"])
        peaks = StagePeaks(self._mesh.device)
        progress = Progress(_planned(request), outputs.event, peaks)
        job = _Job(
            self._models,
            self._vaes,
            agreement,
            progress,
            outputs,
            reuse=Reuse(message, outputs),
            modulation=self._modulation,
            owner=self._owner,
        )
        # All ranks ended the previous job together.
        self._mesh.quiet = True
        self._watchdog.watch_job(message["job_id"])
        try:
            facts = job.perform(request, {name: Path(path) for name, path in message["inputs"].items()})
            agreement.settle()
            return JobResult(None, facts, self._memory(peaks))
        except Exception as error:
            if error is not agreement.outcome:
                own = not isinstance(error, (DataGroupError, RequestError))
                logger.error(
                    "job %s failed here in stage %s: %s", message["job_id"], progress.stage, error, exc_info=own
                )
                reported = job_error(error, stage=progress.stage, rank=self._mesh.layout.rank)
                self._fail_together(message["job_id"], agreement, reported, error)
            assert agreement.outcome is not None
            self._watchdog.watch_job(None)
            unusable = self._recover(agreement) or isinstance(error, torch.AcceleratorError)
            return JobResult(agreement.outcome.to_dict(), must_restart=any(collect_json(unusable, self._mesh)))
        finally:
            # A decoding that nobody read to its end.
            self._vaes.staging.clear()
            self._modulation.forget()
            self._watchdog.watch_job(None)

    def _memory(self, peaks: StagePeaks) -> dict[str, Any]:
        """Return the peaks of all ranks: kind, and bytes by stage in the order of the ranks."""
        ranks = collect_json(peaks.bytes, self._mesh)
        return {"kind": peaks.kind, "stages": {stage: [rank.get(stage, 0) for rank in ranks] for stage in peaks.bytes}}

    def _fail_together(self, job_id: str, agreement: Agreement, error: EngineError, cause: Exception) -> None:
        """Free the peers that may wait for this rank in a data collective, then end the job with them."""
        if not self._mesh.quiet:
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


def _planned(request: Request) -> tuple[str, ...]:
    """Return the stages of ``request`` as they will run: for each output, what comes after the encoders once more."""
    stages = stages_of(request)
    if isinstance(request, Generate) and request.edit is not None and _has_conditions(request):
        stages = ("encode_media", *stages)
    repeated = tuple(stage for stage in stages if not stage.startswith("encode"))
    again = request.num_outputs - 1 if isinstance(request, (Denoise, Generate)) else 0
    return stages + repeated * again


def _has_conditions(request: Generate) -> bool:
    return bool(request.keyframes or request.references or request.guides)


class _Job:
    """The stages of one job on one rank."""

    def __init__(
        self,
        models: Models,
        vaes: VaeCrew,
        agreement: Agreement,
        progress: Progress,
        outputs: Outputs,
        *,
        reuse: Reuse,
        modulation: Modulation,
        owner: ModelOwner | None,
    ) -> None:
        mesh = vaes.mesh
        self._models = models
        self._mesh = mesh
        self._agreement = agreement
        self._progress = progress
        self._outputs = outputs
        self._reuse = reuse
        self._late: EngineError | None = None
        # Where the ranks' VAEs trade tiles, `crew.collect` says so.
        self._apart = {"decode_audio", "decode_video", "encode_media"}
        self._apart |= set() if mesh.teams else {"encode_prompt"}
        self._ctx = StageContext(models, mesh.device, self._report, self._boundary, vaes, modulation, owner)

    def _boundary(self) -> None:
        """Meet the other ranks before a step of the stage that runs; see `StageContext.boundary`."""
        if self._late is None:
            # Here and nowhere else: the others wait in a group that never times out.
            self._outputs.wait_for_room()
        self._meet(quiet=self._progress.stage in self._apart)

    def _meet(self, *, quiet: bool) -> None:
        """Meet the other ranks with nothing left to do on any device; ``quiet`` tells what follows (`Mesh.quiet`)."""
        self._mesh.wait_for_device()
        try:
            self._agreement.settle(self._late)
        except JobCancelled:
            self._mesh.dirty = False
            raise
        self._mesh.dirty, self._mesh.quiet = False, quiet

    def _report(self, step: int, total: int) -> None:
        """Tell of a step when it is done, not when it is queued on the device."""
        self._mesh.wait_for_device()
        self._progress.report(step, total)

    def perform(self, request: Request, inputs: Mapping[str, Path]) -> dict[str, Any]:
        """Run the stages of ``request``; return the facts of the result."""
        if isinstance(request, EncodePrompt):
            return self._encode_prompt(request, JobMedia.load(request, inputs))
        if isinstance(request, EncodeMedia):
            return self._encode_source(request, inputs) if request.source else self._encode_guides(request, inputs)
        if isinstance(request, Denoise):
            return self._sample(request, inputs)
        if isinstance(request, Decode):
            tensors = load_file(inputs["latents"])
            return self._decode(Latents(tensors["video"], tensors["audio"]), request, self._outputs)
        if isinstance(request, Generate):
            return self._generate(request, inputs)
        assert isinstance(request, Echo)
        for name, path in inputs.items():
            self._outputs.same(name, path)
        return {"parts": len(inputs)}

    def _encode_prompt(self, request: EncodePrompt, media: JobMedia) -> dict[str, Any]:
        embeds = self._encode_text(request.prompt, media, quiet=True)
        conditions = self._encode_conditions(media, quiet=True)
        if embeds is None or conditions is None:
            return {}
        self._outputs.tensors("conditioning", {**vars(embeds), **conditions.named()})
        return {"tokens": embeds.token_tags.shape[0], **conditions.facts()}

    def _encode_guides(self, request: EncodeMedia, inputs: Mapping[str, Path]) -> dict[str, Any]:
        conditions = self._encode_conditions(JobMedia.load(request, inputs), quiet=True)
        if conditions is None:
            return {}
        self._outputs.tensors("conditioning", conditions.named())
        return conditions.facts()

    def _encode_source(self, request: EncodeMedia, inputs: Mapping[str, Path]) -> dict[str, Any]:
        width, height, frames = _sizes(request)
        latents = self._source(inputs, width=width, height=height, frames=frames, quiet=True)
        if latents is not None:
            self._outputs.tensors("latents", vars(latents))
        return {"width": width, "height": height, "frames": frames}

    def _source(
        self, inputs: Mapping[str, Path], *, width: int, height: int, frames: int, quiet: bool
    ) -> Latents | None:
        """Return what the clip to edit becomes, on rank 0; None elsewhere. See `_encode_text`."""
        if self._reuse.knows("source"):
            self._skip("encode_media", quiet=quiet)
            return Latents(**self._known("source")) if self._mesh.layout.rank == 0 else None
        medium = fit_source(load_prepared(inputs["source"]), width=width, height=height, frames=frames)
        encoded = self._encode_media([medium], quiet=quiet)
        if encoded is None:
            return None
        latents = source_latents(encoded[0])
        self._reuse.keep("source", vars(latents), {"width": width, "height": height, "frames": frames})
        return latents

    def _sample(self, request: Denoise, inputs: Mapping[str, Path]) -> dict[str, Any]:
        tensors = load_file(inputs["conditioning"])
        embeds = PromptEmbeds(tensors["prompt_embeds"], tensors["token_tags"])
        check_conditioning(embeds)
        conditions = Conditions.read(tensors, request.conditions, request.references)
        edit = load_edit(request, inputs)
        told = tell_of(edit, frames=request.frames, outputs=self._outputs)
        for number in range(request.num_outputs):
            self._denoise(embeds, conditions, request, number, edit=edit)
        return told

    def _generate(self, request: Generate, inputs: Mapping[str, Path]) -> dict[str, Any]:
        media = JobMedia.load(request, inputs)
        with self._noise_worker(request, media) as noise:
            embeds = self._encode_text(request.prompt, media, quiet=False)
            shared = share_tensors(None if embeds is None else vars(embeds), self._mesh)
            conditions = self._share(self._encode_conditions(media, quiet=False), media)
            edit = self._edit(request, inputs)
            told = tell_of(edit, frames=request.frames or 0, outputs=self._outputs)
            # What all ranks refuse alike from here on, before the first step, costs nobody a group.
            self._meet(quiet=True)
            return self._make_outputs(PromptEmbeds(**shared), conditions, request, noise, edit) | told

    def _edit(self, request: Generate, inputs: Mapping[str, Path]) -> Edit | None:
        """Return the request's edit on every rank, its source encoded on rank 0."""
        if request.edit is None:
            return None
        width, height, _ = _sizes(request)
        assert request.edit.frames is not None, "resolved by who read the source"
        latents = self._source(inputs, width=width, height=height, frames=request.edit.frames, quiet=False)
        shared = share_tensors(None if latents is None else vars(latents), self._mesh)
        return place_source(Latents(**shared), request.edit, load_file(inputs[MASKS]))

    def _noise_worker(self, request: Generate, media: JobMedia) -> NoiseWorker:
        """Begin to draw the first output's noise."""
        facts = self._models.facts
        width, height, frames = _sizes(request)
        grid = latent_grid(facts, width=width, height=height, frames=frames)
        return NoiseWorker(NoiseShapes.of(grid, media.blocks(facts)), seed=request.seed)

    def _make_outputs(
        self,
        embeds: PromptEmbeds,
        conditions: Conditions,
        request: Generate,
        noise: NoiseWorker,
        edit: Edit | None,
    ) -> dict[str, Any]:
        """Make one output after the other; of one, only its modulation tables are held when the next begins."""
        facts: dict[str, Any] = {}
        for number in range(request.num_outputs):
            begun = noise if number == 0 else None
            latents = self._denoise(embeds, conditions, request, number, noise=begun, edit=edit)
            facts = self._decode(latents, request, self._outputs.of_output(number))
            del latents
        return facts

    def _encode_text(self, prompt: str, media: JobMedia, *, quiet: bool) -> PromptEmbeds | None:
        """Return the conditioning on rank 0, which is known to all to have it, and None elsewhere.

        Args:
            quiet: whether what is done with it takes no data collective.
        """
        if self._reuse.knows("text"):
            self._skip("encode_prompt", quiet=quiet)
            return PromptEmbeds(**self._known("text")) if self._mesh.layout.rank == 0 else None
        with self._progress.running("encode_prompt"):
            embeds = encode_prompt(self._ctx, prompt=prompt, shown=media.shown())
        # The sums over the parts of a divided text encoder are data collectives: all ranks must have left them.
        self._meet(quiet=quiet)
        if embeds is None or self._mesh.layout.rank != 0:
            return None
        self._reuse.keep("text", vars(embeds), {"tokens": embeds.token_tags.shape[0]})
        return embeds

    def _skip(self, stage: str, *, quiet: bool) -> None:
        """Pass over a stage whose result is known on all ranks."""
        self._progress.skip(stage)
        self._meet(quiet=quiet)

    def _known(self, kind: str) -> dict[str, torch.Tensor]:
        """Return what a stage made for an earlier job, on this rank's device."""
        return {name: tensor.to(self._mesh.device) for name, tensor in self._reuse.read(kind).items()}

    def _encode_conditions(self, media: JobMedia, *, quiet: bool) -> Conditions | None:
        """Return what the keyframes, guides and references become, on rank 0; None elsewhere. See `_encode_text`."""
        if not media.media():
            return NOTHING if self._mesh.layout.rank == 0 else None
        if self._reuse.knows("conditions"):
            self._skip("encode_media", quiet=quiet)
            known = self._reuse.read("conditions") if self._mesh.layout.rank == 0 else None
            return None if known is None else Conditions.read(known, media.conditions(), media.reference_entries())
        encoded = self._encode_media(media.media(), quiet=quiet)
        if encoded is None:
            return None
        conditions = media.assemble(encoded)
        self._reuse.keep("conditions", conditions.named(), conditions.facts())
        return conditions

    def _encode_media(self, media: list[Prepared], *, quiet: bool) -> list[EncodedMedium] | None:
        with self._progress.running("encode_media"):
            encoded = encode_media(self._ctx, media)
            self._meet(quiet=quiet)
        return encoded

    def _share(self, conditions: Conditions | None, media: JobMedia) -> Conditions:
        """Return rank 0's ``conditions`` on every rank's device."""
        if not media.media():
            return NOTHING
        named = share_tensors(None if conditions is None else conditions.named(), self._mesh)
        return Conditions.read(named, media.conditions(), media.reference_entries())

    def _denoise(
        self,
        embeds: PromptEmbeds,
        conditions: Conditions,
        request: Denoise | Generate,
        number: int,
        *,
        noise: NoiseWorker | None = None,
        edit: Edit | None = None,
    ) -> Latents:
        """Make and give the latents of output ``number``."""
        width, height, frames = _sizes(request)
        with self._progress.running("denoise"):
            latents = denoise(
                self._ctx,
                embeds,
                width=width,
                height=height,
                frames=frames,
                steps=request.steps,
                seed=request.seed + number,
                pad_seq_len=request.pad_seq_len,
                conditions=conditions,
                noise=noise,
                edit=edit,
            )
            self._meet(quiet=True)
        metadata = latent_file.describe(latents.video.shape[2], seed=request.seed + number)
        self._outputs.of_output(number).tensors("latents", vars(latents), metadata=metadata)
        return latents

    def _decode(self, latents: Latents, request: Decode | Generate, outputs: Outputs) -> dict[str, Any]:
        """Sound first, so that it can be interleaved with the pictures as they come."""
        with self._progress.running("decode_audio"):
            audio = decode_audio(self._ctx, latents.audio)
        with self._progress.running("decode_video"), self._sink(outputs, latents, audio, request) as frames:
            for chunk in decode_video(self._ctx, latents.video):
                self._give(frames, chunk)
            if self._late is not None:
                raise self._late
        return frames.facts()

    def _sink(
        self, outputs: Outputs, latents: Latents, audio: torch.Tensor | None, request: Decode | Generate
    ) -> FrameSink:
        chunks = count_chunks(latents.video.shape[2])
        assert self._ctx.vaes is not None
        room = self._ctx.vaes.room

        def describe() -> str:
            return describe_latents(latents.video, latents.audio)

        if request.container == "mp4":
            return Mp4Frames(outputs, audio, chunks=chunks, describe=describe, room=room)
        return TensorFrames(outputs, audio, chunks=chunks, dtype=request.frame_dtype, describe=describe, room=room)

    def _give(self, frames: FrameSink, chunk: torch.Tensor) -> None:
        """Give ``chunk``; when that fails, tell the others where all meet next.

        They are at work on tiles now: an error here would break off their transfer, and lose the group with it.
        """
        try:
            if self._late is None:
                frames.add(chunk)
        except EngineError as error:
            logger.exception("a chunk of frames could not be given")
            self._late = error


def _sizes(request: EncodeMedia | Denoise | Generate) -> tuple[int, int, int]:
    """Return width, height and frames; the server resolved the request, so that they are final."""
    assert request.width is not None
    assert request.height is not None
    assert request.frames is not None
    return request.width, request.height, request.frames
