"""Reading and preparing a request's media: the program ``python -m engine.media JOB.json``, which can be killed.

What arrives from outside is decoded here and nowhere else: before any rank wakes, without the server's process taking
part. `controller.media` describes JOB.json and the result; `media_limits` holds the rules. Prepared parts, safetensors:
``keyframes.<i>``, ``references.<j>``, ``guides.<i>`` and ``source``, each with ``frames`` [F, H, W, 3] uint8 at 24 fps
and ``waveform`` [2, N] float32 at the model's rate, where there is such.

- keyframes: one frame on the canvas; first before last.
- references: their own size; all frames up to the output's, of which the VAE takes 17k+5.
- guides: on the canvas, 17k+5 frames or one, and no more sound than the timeline holds after their start.
- source: on the canvas, exactly its frames; sound of exactly its audio latents, or none.

An edit has the part ``masks`` besides: video_noise_mask [1, 1, T, H/16, W/16] and audio_noise_mask [1, 1, 2, A] float32
of the whole video.

Facts: ``width``, ``height``, ``frames``, ``seconds``; of a source ``own_frames``, ``own_audio_latents``, what of it was
not added, and ``own_width``, ``own_height`` of its pictures before they were fitted; of an edit ``source_frames``,
``mask_levels``; ``conditions`` (keyframes, then guides): ``frame``, ``frames``, ``audio_latents``; ``references``:
``kind``, ``width``, ``height``,
``frames``, ``audio_latents``, ``rows``, ``share`` (of the packed sequence without its text). Exit status 0 with a
result; every `EngineError` is one.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..contract import geometry
from ..contract.check_media import resolve_guides
from ..contract.edits import SourceEdit
from ..contract.errors import EngineError, JobError
from ..contract.latent_file import OWN_FACTS
from ..contract.lengths import used_rows
from ..contract.limits import DEFAULT_SECONDS, Limits, ModelFacts
from ..contract.requests import EncodeMedia, EncodePrompt, Generate, parse_request, request_to_dict
from ..lifeline import die_with
from .conditions import Canvas, in_packed_order, prepare_guides, prepare_keyframes, prepare_source
from .job import MediaJob, facts_of, seconds_of
from .masks import prepare_masks
from .references import prepare_references

logger = logging.getLogger(__name__)


def prepare(request: EncodePrompt | EncodeMedia | Generate, job: MediaJob) -> dict[str, Any]:
    """Prepare all media of a request that passed the checks of the contract; return the result.

    Raises:
        RequestError: for media that cannot be used. JobError: when the disk is full.
    """
    facts: dict[str, Any] = {}
    if isinstance(request, EncodeMedia) and request.source is not None:
        canvas = prepare_source(
            job, request.source, width=request.width, height=request.height, frames=_frames(request)
        )
        facts = _own_facts(canvas)
    else:
        if isinstance(request, Generate) and request.edit is not None:
            request, facts = _prepare_edit(request, request.edit, job)
        request, canvas, found = _prepare_conditions(request, job)
        facts |= found
    request = dataclasses.replace(request, width=canvas.width, height=canvas.height, frames=canvas.frames)
    size = {"width": canvas.width, "height": canvas.height, "frames": canvas.frames}
    return {
        "request": request_to_dict(request),
        "facts": {**size, "seconds": seconds_of(canvas.frames), **facts},
        "warnings": [dataclasses.asdict(warning) for warning in job.warnings],
        "parts": {name: str(path) for name, path in job.made.items()},
    }


def _prepare_edit(request: Generate, edit: SourceEdit, job: MediaJob) -> tuple[Generate, dict[str, Any]]:
    """Prepare a source and its masks; return the request with the size that they give it, and their facts."""
    frames = None if edit.frames is None else geometry.snap_frames(edit.frames, path="request.edit.")
    canvas = prepare_source(job, edit.source, width=request.width, height=request.height, frames=frames, edit=edit)
    total, levels = prepare_masks(job, edit, canvas)
    request = dataclasses.replace(
        request,
        width=canvas.width,
        height=canvas.height,
        frames=total,
        edit=dataclasses.replace(edit, frames=canvas.frames),
    )
    return request, {"source_frames": canvas.frames, "mask_levels": levels, **_own_facts(canvas)}


def _own_facts(source: Canvas) -> dict[str, int]:
    assert source.own is not None
    facts = dict(zip(OWN_FACTS, (source.own.frames, source.own.audio_latents), strict=True))
    if source.own_size is not None:
        facts["own_width"], facts["own_height"] = source.own_size
    return facts


def _prepare_conditions(
    request: EncodePrompt | EncodeMedia | Generate, job: MediaJob
) -> tuple[EncodePrompt | EncodeMedia | Generate, Canvas, dict[str, Any]]:
    """Prepare keyframes, references and guides; return the request as it is now, its canvas, and their facts."""
    frames = _frames(request)
    assert frames is not None, "checked before"
    facts: dict[str, Any] = {}
    conditions: list[dict[str, Any]] = []
    if isinstance(request, (EncodePrompt, Generate)) and request.keyframes:
        request = dataclasses.replace(request, keyframes=in_packed_order(request.keyframes))
        canvas, conditions = prepare_keyframes(
            job, request.keyframes, width=request.width, height=request.height, frames=frames
        )
    else:
        canvas = _canvas(request, frames, job.facts)
    if isinstance(request, (EncodeMedia, Generate)) and request.guides:
        request = dataclasses.replace(request, guides=resolve_guides(request.guides, frames))
        conditions += prepare_guides(job, request.guides, canvas)
    if conditions:
        facts["conditions"] = conditions
    if isinstance(request, (EncodePrompt, Generate)) and request.references:
        found = prepare_references(
            job, request.references, width=canvas.width, height=canvas.height, frames=canvas.frames
        )
        facts["references"] = _with_shares(found, conditions, canvas, job.facts)
    return request, canvas, facts


def _frames(request: EncodePrompt | EncodeMedia | Generate) -> int | None:
    """Return the frames of the video to come, on the lattice; None: the source's."""
    frames = request.frames
    if frames is None and isinstance(request, Generate):
        frames = geometry.frames_of_seconds(request.seconds or DEFAULT_SECONDS, path="request.")
    return None if frames is None else geometry.snap_frames(frames, path="request.")


def _canvas(request: EncodePrompt | EncodeMedia | Generate, frames: int, facts: ModelFacts) -> Canvas:
    if request.width is not None and request.height is not None:
        return Canvas(request.width, request.height, frames)
    width, height = geometry.default_canvas(
        short_edge=facts.canvas_short_edge, max_pixels=facts.canvas_max_pixels, multiple=facts.canvas_multiple
    )
    return Canvas(width, height, frames)


def _with_shares(
    references: list[dict[str, Any]], conditions: list[dict[str, Any]], canvas: Canvas, facts: ModelFacts
) -> list[dict[str, Any]]:
    """Return the facts of ``references``, each with its share 0..1 of the rows that are not text."""
    held = sum(reference["rows"] for reference in references)
    for condition in conditions:
        frames = condition["frames"]
        latents = geometry.latent_frames(frames) if frames > 1 else frames
        cells = (canvas.width // facts.canvas_multiple) * (canvas.height // facts.canvas_multiple)
        held += latents * cells + geometry.AUDIO_CHANNELS * condition["audio_latents"]
    rows = used_rows(
        text_rows=0,
        width=canvas.width,
        height=canvas.height,
        frames=canvas.frames,
        facts=facts,
        condition_rows=held,
    )
    return [{**reference, "share": reference["rows"] / rows} for reference in references]


def run(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of a job, an error if it ends in one; see `controller.media`."""
    try:
        request = parse_request(job["request"])
        assert isinstance(request, (EncodePrompt, EncodeMedia, Generate)), request.task
        facts, limits = facts_of(job["facts"], ModelFacts), facts_of(job["limits"], Limits)
        parts = {name: Path(path) for name, path in job["parts"].items()}
        return prepare(request, MediaJob(parts, Path(job["out"]), facts, limits))
    except EngineError as error:
        return {"error": error.to_dict()}
    except Exception as error:
        logger.exception("preparing media failed")
        failed = JobError(
            "job_failed",
            f"The media could not be prepared: {type(error).__name__}: {error}",
            field="request",
            remedy="The engine's log says more; report it, with the media if you can.",
        )
        return {"error": failed.to_dict()}


def main() -> None:
    """Run the job whose file is named on the command line."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    die_with(job["parent"])
    Path(job["out"]).mkdir(exist_ok=True)
    result = Path(job["result"])
    # Whoever sees the file sees all of it.
    unfinished = result.with_name(f"{result.name}.part")
    unfinished.write_text(json.dumps(run(job)), encoding="utf-8")
    unfinished.replace(result)
