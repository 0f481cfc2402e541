"""The HTTP routes for scripts: health, info, jobs, generate, result, metrics.

Errors leave as JSON ``{"error": {...}}`` (`app` turns them); handlers only raise.
"""

from __future__ import annotations

import asyncio
import uuid

from aiohttp import web

from ..contract.errors import RequestError
from ..contract.requests import Generate, parse_request
from ..controller.controller import Controller
from ..controller.jobs import Job
from .forms import Form, read_form
from .metrics import CONTENT_TYPE, render_metrics
from .uploads import check_job_id, read_headers
from .websocket import Connection

CONTROLLER = web.AppKey("controller", Controller)
CONNECTIONS = web.AppKey("connections", list[Connection])

ROUTES = web.RouteTableDef()
_MOST_DIGITS = 4


@ROUTES.get("/v1/health")
async def get_health(request: web.Request) -> web.Response:
    """``{status, progress, reason}``; always 200, the status is in the answer."""
    return web.json_response(request.app[CONTROLLER].health())


@ROUTES.get("/v1/info")
async def get_info(request: web.Request) -> web.Response:
    """Model, partitions, stages, ranks, layout, limits, versions."""
    return web.json_response(request.app[CONTROLLER].info())


@ROUTES.get("/v1/jobs")
async def get_jobs(request: web.Request) -> web.Response:
    """``{jobs: [...]}``, oldest first."""
    return web.json_response({"jobs": [job.to_dict() for job in request.app[CONTROLLER].jobs]})


@ROUTES.get("/v1/jobs/{id}")
async def get_job(request: web.Request) -> web.Response:
    """One job.

    Raises:
        RequestError: ``unknown_job``.
    """
    return web.json_response(_job_of(request).to_dict())


@ROUTES.delete("/v1/jobs/{id}")
async def delete_job(request: web.Request) -> web.Response:
    """Cancel a job that waits or runs; forget a finished one with its result.

    Raises:
        RequestError: ``unknown_job``.
    """
    job, controller = _job_of(request), request.app[CONTROLLER]
    if job.over:
        controller.jobs.forget(job)
    else:
        controller.cancel(job)
    return web.json_response(job.to_dict())


@ROUTES.get("/v1/jobs/{id}/result")
async def get_result(request: web.Request) -> web.StreamResponse:
    """The MP4 of a finished job, of several the one that ``?output=`` numbers from 0; ranges are served.

    Raises:
        RequestError: ``unknown_job``, ``no_result``, or ``out_of_range`` for a number that is none.
    """
    job, number = _job_of(request), _output_of(request)
    result = job.results.get(number)
    if job.state == "done" and result is None and job.results:
        last = len(job.results) - 1
        raise RequestError(
            "out_of_range",
            f"The job made {len(job.results)} MP4 files.",
            field="output",
            value=number,
            remedy=f"Use 0 to {last}." if last else "Leave it out.",
        )
    # What was made before a later output failed is there all the same.
    if result is None or not result.is_file():
        limits = request.app[CONTROLLER].config.limits
        remedy = "Ask again when it is done." if not job.over else f"The last {limits.keep_results} results are kept."
        raise RequestError(
            "no_result",
            f"The job is in the state {job.state!r} and has no MP4 to give.",
            field="job_id",
            value=job.id,
            remedy=remedy,
        )
    request.app[CONTROLLER].stats.bytes_out += result.stat().st_size
    name = f"{job.id}-{number + 1}.mp4" if len(job.results) > 1 else f"{job.id}.mp4"
    headers = {"Content-Type": "video/mp4", "Content-Disposition": f'inline; filename="{name}"'}
    return web.FileResponse(result, headers=headers)


@ROUTES.get("/v1/jobs/{id}/latents")
async def get_latents(request: web.Request) -> web.StreamResponse:
    """The latents that a ``generate`` job sampled, as safetensors, also when its decoding failed; ``?output=N``.

    Raises:
        RequestError: ``unknown_job`` or ``no_result``.
    """
    job = _job_of(request)
    number = request.query.get("output", "0")
    known = {str(index): path for index, path in enumerate(job.latents)}
    path = known.get(number)
    if path is None or not path.is_file():
        raise RequestError(
            "no_result",
            f"The job is in the state {job.state!r} and has no latents {number} to give.",
            field="job_id",
            value=job.id,
            remedy="Latents of the task 'generate' are kept, as long as its MP4; other tasks send theirs.",
        )
    request.app[CONTROLLER].stats.bytes_out += path.stat().st_size
    name = f'attachment; filename="{job.id}-{number}.safetensors"'
    return web.FileResponse(path, headers={"Content-Type": "application/octet-stream", "Content-Disposition": name})


@ROUTES.post("/v1/generate")
async def post_generate(request: web.Request) -> web.Response:
    """Queue a video: the fields of `Generate` without ``task``, and optionally ``job_id``. Answers 202 with the job.

    A multipart form brings them in its field ``request``, and a field for each part that they name.

    Raises:
        EngineError: as `read_form`, `Controller.check` and `Controller.submit`.
    """
    controller = request.app[CONTROLLER]
    # The place is kept while the body comes, so that as many bodies are on their way as jobs may wait.
    place = str(uuid.uuid4())
    controller.keep_place(place)
    try:
        form = await read_form(request, controller)
        try:
            job = await _submit_form(form, controller, place)
        except BaseException:
            await form.drop()
            raise
    finally:
        controller.free_place(place)
    return web.json_response(job.to_dict(), status=202, headers={"Location": f"/v1/jobs/{job.id}"})


async def _submit_form(form: Form, controller: Controller, place: str) -> Job:
    data = dict(form.data)
    job_id = data.pop("job_id", None)
    if job_id is None:
        job_id = place
    if not isinstance(job_id, str):
        raise RequestError(
            "wrong_type",
            "job_id must be a string.",
            field="job_id",
            value=job_id,
            remedy="Send a UUID, or leave it out.",
        )
    check_job_id(job_id)
    generate = parse_request({"task": "generate", **data})
    if not isinstance(generate, Generate) or generate.container != "mp4":
        name = "container" if isinstance(generate, Generate) else "task"
        raise RequestError(
            "out_of_range",
            "This route makes MP4 files.",
            field=f"request.{name}",
            value=data[name],
            remedy=f"Leave {name} out, or use the websocket.",
        )
    controller.free_place(place)
    controller.check_new(job_id)
    controller.stats.bytes_in += sum(path.stat().st_size for path in form.files.values())
    headers = await asyncio.to_thread(read_headers, form.files, generate)
    plan = await controller.check(generate, headers)
    return controller.submit(job_id, plan, inputs=form.files, upload=form.folder)


@ROUTES.get("/metrics")
async def get_metrics(request: web.Request) -> web.Response:
    """Counters for Prometheus."""
    return web.Response(text=render_metrics(request.app[CONTROLLER]), headers={"Content-Type": CONTENT_TYPE})


@ROUTES.get("/v1/ws")
async def get_websocket(request: web.Request) -> web.WebSocketResponse:
    """The websocket (`Connection`)."""
    connection = Connection(request.app[CONTROLLER])
    connections = request.app[CONNECTIONS]
    connections.append(connection)
    try:
        return await connection.run(request)
    finally:
        connections.remove(connection)


def _output_of(request: web.Request) -> int:
    text = request.query.get("output", "0")
    if not (text.isascii() and text.isdigit() and len(text) < _MOST_DIGITS):
        raise RequestError(
            "out_of_range",
            "output is the number of one of the job's videos.",
            field="output",
            value=text,
            remedy="Use 0 for the first.",
        )
    return int(text)


def _job_of(request: web.Request) -> Job:
    return request.app[CONTROLLER].jobs.get(request.match_info["id"])
