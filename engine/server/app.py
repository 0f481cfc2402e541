"""The web application: routes, who may ask, and errors as JSON.

Every failure leaves as ``{"error": {...}}`` with the status of its kind; an unforeseen one is logged with its
traceback and shown as ``job_failed``, so that a client never has to read HTML.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from aiohttp import web

from ..contract.errors import EngineError, JobError, RequestError
from ..controller.controller import Controller
from .auth import check_client
from .forms import MAX_JSON_BYTES
from .routes import CONNECTIONS, CONTROLLER, ROUTES

logger = logging.getLogger(__name__)

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def build_app(controller: Controller) -> web.Application:
    """Return the application for ``controller``; starting and stopping that is the caller's business."""
    largest = min(MAX_JSON_BYTES, controller.config.limits.max_body_bytes)
    app = web.Application(middlewares=[_show_errors, _check_client], client_max_size=largest)
    app[CONTROLLER] = controller
    app[CONNECTIONS] = []
    app.add_routes(ROUTES)
    app.on_shutdown.append(_close_connections)
    return app


@web.middleware
async def _check_client(request: web.Request, handler: _Handler) -> web.StreamResponse:
    check_client(request.headers, request.app[CONTROLLER].config)
    return await handler(request)


@web.middleware
async def _show_errors(request: web.Request, handler: _Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except EngineError as error:
        return _error_response(request, error, error.status)
    except web.HTTPRequestEntityTooLarge:
        limit = request.app[CONTROLLER].config.limits.max_body_bytes
        large = RequestError(
            "body_too_large",
            f"A JSON body has at most {min(MAX_JSON_BYTES, limit)} bytes.",
            field="body",
            value=request.content_length,
            remedy="Shorten it; media are sent in a multipart form, tensors by the websocket.",
        )
        return _error_response(request, large, large.status)
    except web.HTTPException as answer:
        if answer.status < 400:
            raise
        unknown = RequestError(
            "unknown_message",
            f"{request.method} {request.path} {_what_is_wrong(answer)}.",
            field="path",
            value=request.path,
            remedy="The routes are described in docs/protocol.md.",
        )
        return _error_response(request, unknown, answer.status)
    except Exception as error:
        logger.exception("%s %s failed", request.method, request.path)
        failed = JobError("job_failed", f"The server failed: {type(error).__name__}.", remedy="Look at the log.")
        return _error_response(request, failed, failed.status)


def _what_is_wrong(answer: web.HTTPException) -> str:
    if isinstance(answer, web.HTTPMethodNotAllowed):
        # aiohttp answers HEAD wherever it answers GET.
        return f"is not possible: this route takes {' and '.join(sorted(answer.allowed_methods - {'HEAD'}))}"
    return "does not exist" if answer.status == 404 else f"was refused: {answer.text}"


def _error_response(request: web.Request, error: EngineError, status: int) -> web.Response:
    if isinstance(error, RequestError):
        request.app[CONTROLLER].stats.requests_refused[error.code] += 1
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return web.json_response({"error": error.to_dict()}, status=status, headers=headers)


async def _close_connections(app: web.Application) -> None:
    connections = app[CONNECTIONS]
    for connection in connections.copy():
        await connection.close()
