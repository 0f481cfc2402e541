"""``GET /v1/ws``: requests, events and results on one connection.

The receiving side handles one frame at a time, so a fast sender is slowed down by the disk and never fills the memory;
each job that the connection follows has a sending task, slowed down by the receiver in the same way. What a client
gets wrong is answered with an ``error`` event and the connection goes on. Closing with code 1000 cancels the
connection's jobs; any other end keeps them for a while (`Controller.leave`).
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Mapping
from typing import Any

from aiohttp import WSCloseCode, WSMsgType, web

from ..contract import framing
from ..contract.errors import EngineBusyError, EngineError, JobCancelled, RequestError
from ..contract.fields import parse_json
from ..contract.messages import Cancel, Failed, Received, Resume, Submit, event_to_dict, parse_to_engine
from ..contract.requests import parse_request
from ..contract.version import PROTOCOL_VERSION
from ..controller.controller import Controller
from ..controller.jobs import Job, Sent
from ..wire import read_slice
from .uploads import MAX_UPLOADS, Upload, check_announcement, check_job_id

logger = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 60.0
_LARGEST_FRAME = framing.MAX_SLICE + framing.HEADER.size


class Connection:
    """One client. `run` returns when the connection has ended."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        # Frames of 4 MiB exactly are allowed; aiohttp refuses what reaches its limit.
        self._socket = web.WebSocketResponse(
            heartbeat=HEARTBEAT_SECONDS, max_msg_size=_LARGEST_FRAME + 1, compress=False
        )
        self._uploads: dict[int, Upload] = {}
        self._refused: set[int] = set()
        self._seen: set[int] = set()
        self._followers: dict[str, asyncio.Task[None]] = {}
        self._last_message = 0

    async def run(self, request: web.Request) -> web.WebSocketResponse:
        """Serve the connection until it ends."""
        await self._socket.prepare(request)
        try:
            async for message in self._socket:
                if message.type is WSMsgType.TEXT:
                    await self._take_text(message.data)
                elif message.type is WSMsgType.BINARY:
                    await self._take_frame(message.data)
        except ConnectionError:
            logger.info("a connection was lost while it was answered")
        finally:
            await self._leave()
        return self._socket

    async def close(self) -> None:
        """Close because the server stops."""
        await self._socket.close(code=WSCloseCode.GOING_AWAY, message=b"the engine stops")

    async def _leave(self) -> None:
        for number in list(self._uploads):
            await self._drop(number)
        for task in self._followers.values():
            task.cancel()
        await asyncio.gather(*self._followers.values(), return_exceptions=True)
        self._controller.leave(self, normally=self._socket.close_code == WSCloseCode.OK)

    # --- receiving

    async def _take_text(self, text: str) -> None:
        job_id = ""
        data: Mapping[str, Any] = {}
        try:
            data = parse_json(text, field="message")
            job_id = data["job_id"] if isinstance(data.get("job_id"), str) else ""
            await self._take_message(data)
        except EngineError as error:
            # The frames of a refused submit may be on their way already: they are dropped without a word.
            number = data.get("message")
            if data.get("type") == "submit" and isinstance(number, int) and number not in self._uploads:
                self._refused.add(number)
            await self._refuse(job_id, error)

    async def _take_message(self, data: Mapping[str, Any]) -> None:
        if "protocol" in data and data["protocol"] != PROTOCOL_VERSION:
            raise RequestError(
                "protocol_mismatch",
                f"This engine speaks protocol {PROTOCOL_VERSION}.",
                field="protocol",
                value=data["protocol"],
                remedy="Update the older of engine and client.",
            )
        message = parse_to_engine(data)
        check_job_id(message.job_id)
        if isinstance(message, Submit):
            await self._submit(message)
        elif isinstance(message, Cancel):
            await self._cancel(message.job_id)
        elif isinstance(message, Received):
            jobs = self._controller.jobs
            jobs.received(jobs.get(message.job_id), message.after)
        else:
            self._resume(message)

    async def _submit(self, submit: Submit) -> None:
        self._controller.check_new(submit.job_id)
        request = parse_request(submit.request)
        check_announcement(submit, request, max_body_bytes=self._controller.config.limits.max_body_bytes)
        if not submit.parts:
            plan = await self._controller.check(request, {})
            self._follow(self._controller.submit(submit.job_id, plan, inputs={}, owner=self))
            return
        if submit.message in self._seen | self._refused:
            raise RequestError(
                "out_of_range",
                f"The message number {submit.message} was used before on this connection.",
                field="message",
                value=submit.message,
                remedy="Count messages upwards.",
            )
        if len(self._uploads) >= MAX_UPLOADS:
            raise EngineBusyError(
                "queue_full",
                f"{MAX_UPLOADS} messages of this connection wait for their parts already.",
                field="message",
                value=submit.message,
                remedy="Send their parts first.",
            )
        self._controller.keep_place(submit.job_id)
        try:
            self._uploads[submit.message] = Upload(submit, request, self._controller.folder)
        except EngineError:
            self._controller.free_place(submit.job_id)
            raise
        self._seen.add(submit.message)

    async def _cancel(self, job_id: str) -> None:
        for number, upload in list(self._uploads.items()):
            if upload.submit.job_id == job_id:
                await self._drop(number)
                await self._refuse(job_id, JobCancelled())
                return
        self._controller.cancel(self._controller.jobs.get(job_id))

    def _resume(self, resume: Resume) -> None:
        job = self._controller.jobs.get(resume.job_id)
        if job.released and resume.after < job.last_seq - 1:
            raise RequestError(
                "no_result",
                "The events and outputs of this job were deleted.",
                field="after",
                value=resume.after,
                remedy=f"Come back within {self._controller.config.limits.resume_seconds:g} s of the job's end.",
            )
        if not 0 <= resume.after <= job.last_seq:
            raise RequestError(
                "out_of_range",
                f"The job has {job.last_seq} events until now.",
                field="after",
                value=resume.after,
                remedy=f"Send the number of the last event that arrived, 0 to {job.last_seq}.",
            )
        self._controller.adopt(job, self)
        self._follow(job, resume.after)

    async def _take_frame(self, frame: bytes) -> None:
        number = 0
        try:
            number, part, offset, payload = framing.unpack_slice(frame)
            if number in self._refused:
                return
            if number not in self._uploads:
                raise RequestError(
                    "bad_tensor",
                    f"No message {number} announced parts that are still missing.",
                    field="frame.message",
                    value=number,
                    remedy="Send the message before its parts, and each slice once.",
                )
            upload = self._uploads[number]
            self._controller.stats.bytes_in += len(payload)
            await asyncio.to_thread(upload.write, part, offset, payload)
            if upload.complete:
                await self._accept(number, upload)
        except EngineError as error:
            job_id = ""
            if number in self._uploads:
                job_id = self._uploads[number].submit.job_id
                await self._drop(number)
            await self._refuse(job_id, error)

    async def _accept(self, number: int, upload: Upload) -> None:
        headers = await asyncio.to_thread(upload.finish)
        plan = await self._controller.check(upload.request, headers, upload.inputs)
        job = self._controller.submit(
            upload.submit.job_id,
            plan,
            inputs=upload.inputs,
            hashes={part.name: part.sha256.lower() for part in upload.submit.parts},
            upload=upload.folder,
            owner=self,
        )
        del self._uploads[number]
        self._follow(job)

    async def _drop(self, number: int) -> None:
        upload = self._uploads.pop(number)
        self._refused.add(number)
        self._controller.free_place(upload.submit.job_id)
        await asyncio.to_thread(shutil.rmtree, upload.folder, True)

    # --- sending

    async def _refuse(self, job_id: str, error: EngineError) -> None:
        """Answer a message that became no job; number 0 says that the event belongs to no sequence."""
        self._controller.stats.requests_refused[error.code] += 1
        await self._socket.send_json(event_to_dict(Failed(error.to_dict()), job_id=job_id, seq=0))

    def _follow(self, job: Job, after: int = 0) -> None:
        previous = self._followers.pop(job.id, None)
        if previous is not None:
            previous.cancel()
        task = asyncio.create_task(self._send_events(job, after))
        self._followers[job.id] = task
        task.add_done_callback(lambda done: self._unfollow(job.id, done))

    def _unfollow(self, job_id: str, task: asyncio.Task[None]) -> None:
        if self._followers.get(job_id) is task:
            del self._followers[job_id]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("sending the events of job %s failed", job_id, exc_info=error)

    async def _send_events(self, job: Job, after: int) -> None:
        try:
            await self._send_all(job, after)
        # Of aiohttp's two kinds, a plain one comes when the client goes while its full buffer is waited for.
        except ConnectionError:
            logger.info("job %s: the connection was lost at event %d", job.id, job.last_seq)

    async def _send_all(self, job: Job, after: int) -> None:
        try:
            with job.following():
                async for sent in job.follow(after):
                    await self._send(sent)
                    job.sent(sent.data["seq"])
        except FileNotFoundError:
            error = RequestError(
                "no_result",
                "An output of this job was deleted before it was sent.",
                field="job_id",
                value=job.id,
                remedy="Run the job again and read its events while they come.",
            )
            await self._refuse(job.id, error)

    async def _send(self, sent: Sent) -> None:
        if sent.file is None:
            await self._socket.send_json(sent.data)
            return
        self._last_message += 1
        number, size = self._last_message, sent.data["parts"][0]["bytes"]
        with sent.file.open("rb") as file:
            await self._socket.send_json({**sent.data, "message": number})
            for start, end in framing.slices(size):
                frame = await asyncio.to_thread(read_slice, file, message=number, part=0, start=start, end=end)
                await self._socket.send_bytes(frame)
                self._controller.stats.bytes_out += end - start
