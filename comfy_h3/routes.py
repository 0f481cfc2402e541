"""What the mask editor asks ComfyUI's server for: a clip's facts, small pictures, sound; the pixels of a raster layer.

A clip is named by the key of what a node was given in its last run, or as a file of ComfyUI's own input, output or temp
folder; no other path can be named. ComfyUI's own checks of Host and Origin stand before these routes. Answers 400 for a
malformed question and 404 for what is not there; raises nothing.

    GET /h3_engine/source?key=… | file=name [output]                    {width, height, frames, peaks}
    GET /h3_engine/frame?… &n=41                                        JPEG of at most 640 pixels a side
    GET /h3_engine/sound?key=… | file=name [output]                     WAV of at most three minutes
    GET /h3_engine/sampling?width=1344&height=768&frames=124            {steps, seconds} of the last run, or null
    GET /h3_engine/cells?key=…                                          bytes [T, h, w], [2, A] of a latent's mask
    GET /h3_engine/raster?… &width=336&height=192&frames=124            bytes [n, height, width]
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from aiohttp import web

from ..engine.contract.errors import RequestError
from . import host, kept, timings
from .file_clips import UnreadableClip, facts_of, frame_of, stamp_of
from .kept import KeptClip
from .masks import raster_of_file
from .sounds import wav_of, wav_of_file
from .thumbnails import jpeg, picture_of, pooled

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_AT_ONCE = 4
_MOST_SIDE = 4096
_MOST_FRAMES = 1024
_KEPT_SECONDS = 3600
_turns = asyncio.Semaphore(_AT_ONCE)


def add_routes() -> None:
    """Add the routes to ComfyUI's server, once, before it starts."""
    for handler in (_source, _frame, _sound, _raster, _cells, _sampling):
        host.add_route(f"/h3_engine/{handler.__name__[1:]}", handler)


async def _source(request: web.Request) -> web.Response:
    found = _clip(request.query)
    if isinstance(found, KeptClip):
        facts = {name: getattr(found, name) for name in ("width", "height", "frames", "peaks")}
    else:
        facts = dataclasses.asdict(await _work(lambda: facts_of(stamp_of(found))))
    return web.json_response(facts)


async def _frame(request: web.Request) -> web.Response:
    found, number = _clip(request.query), _whole(request.query, "n", _MOST_FRAMES * 1024, least=0)
    if not isinstance(found, KeptClip):
        picture = await _work(lambda: frame_of(stamp_of(found), number))
        return web.Response(body=picture, content_type="image/jpeg", headers={"Cache-Control": "no-cache"})
    image = found.frame(number)
    if image is None:
        raise web.HTTPNotFound(text="The clip has no pictures.")
    body = await _work(lambda: jpeg(picture_of(image)))
    headers = {"Cache-Control": f"private, max-age={_KEPT_SECONDS}"}
    return web.Response(body=body, content_type="image/jpeg", headers=headers)


async def _sound(request: web.Request) -> web.Response:
    found = _clip(request.query)
    if isinstance(found, KeptClip):
        sound = found.sound()
        if sound is None:
            raise web.HTTPNotFound(text="The clip has no sound, or it is not kept any more.")
        body = await _work(lambda: wav_of(*sound))
    else:
        body = await _work(lambda: wav_of_file(found))
    return web.Response(body=body, content_type="audio/wav", headers={"Cache-Control": "no-cache"})


async def _raster(request: web.Request) -> web.Response:
    found = _clip(request.query)
    width, height = (_whole(request.query, side, _MOST_SIDE) for side in ("width", "height"))
    frames = _whole(request.query, "frames", _MOST_FRAMES)

    def read() -> bytes:
        masks = _pictures_of(found, frames) if isinstance(found, KeptClip) else _file_raster(found, frames)
        return pooled(masks, width=width, height=height).tobytes()

    answer = web.Response(body=await _work(read), content_type="application/octet-stream")
    answer.enable_compression()
    return answer


async def _cells(request: web.Request) -> web.Response:
    cells = kept.kept_cells(request.query.get("key", ""))
    if cells is None:
        raise web.HTTPNotFound(text="The mask is not kept any more.")
    answer = web.Response(body=cells, content_type="application/octet-stream")
    answer.enable_compression()
    return answer


async def _sampling(request: web.Request) -> web.Response:
    width, height = (_whole(request.query, side, _MOST_SIDE * 4) for side in ("width", "height"))
    last = timings.last_of((width, height, _whole(request.query, "frames", _MOST_FRAMES * 1024)))
    return web.json_response(last and dataclasses.asdict(last))


def _clip(query: Mapping[str, str]) -> KeptClip | Path:
    """Return what a question names."""
    key = query.get("key")
    if key is not None:
        clip = kept.kept(key)
        if clip is None or (clip.frames and clip.frame(0) is None):
            raise web.HTTPNotFound(text="The clip is not kept any more.")
        return clip
    name = query.get("file", "")
    path = None if "\0" in name else host.input_file(name)
    if path is None:
        raise web.HTTPNotFound(text="There is no such file in ComfyUI's folders.")
    return path


def _whole(query: Mapping[str, str], name: str, most: int, *, least: int = 1) -> int:
    text = query.get(name, "")
    if not text.isdecimal() or len(text) > 9 or not least <= int(text) <= most:
        raise web.HTTPBadRequest(text=f"{name} is a whole number from {least} to {most}.")
    return int(text)


async def _work(read: Callable[[], T]) -> T:
    """Read in a thread, a few at a time."""
    async with _turns:
        try:
            return await asyncio.to_thread(read)
        except (UnreadableClip, RequestError, OSError) as error:
            raise web.HTTPNotFound(text=f"The file cannot be shown: {error}") from error


def _pictures_of(clip: KeptClip, frames: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    found = [clip.frame(number) for number in range(min(frames, max(1, clip.frames)))]
    pictures = [np.asarray(picture_of(image)) for image in found if image is not None]
    if not pictures:
        raise UnreadableClip("it is not kept any more")
    return np.stack(pictures)


def _file_raster(path: Path, frames: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return raster_of_file(path, frames=frames, field="file")
