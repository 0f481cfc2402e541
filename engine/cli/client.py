"""``generate``, ``decode``, ``status`` and ``ping``: the commands that ask a running engine.

They raise the engine's typed errors; `cli.main` turns them into words and an exit status.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shlex
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from .. import env
from ..client import EngineClient
from ..config import DEFAULT_PORT, absolute_path
from ..contract.errors import ConfigError, EngineDeadError, EngineError
from ..contract.limits import DEFAULT_SECONDS, DEFAULT_STEPS, MAX_OUTPUTS
from ..contract.urls import check_url
from ..contract.words import bytes_in_words
from .delivery import LATENTS_SUFFIX, Delivery
from .edit import add_edit_arguments, edit_of_arguments
from .files import in_options
from .latents import add_keep_latents, add_latents, latents_of
from .media import add_media_arguments, media_of_arguments
from .output import ProgressBar, numbered, say, tell
from .places import check_place, temporary_folder, unwritable

_DEFAULT_URL = f"http://127.0.0.1:{DEFAULT_PORT}"
_POLL_SECONDS = 0.5
_SHOWN_JOBS = 20


def add_url(parser: argparse.ArgumentParser) -> None:
    """Add ``--url``."""
    parser.add_argument("--url", default=None, help=f"the engine's address (default: {env.URL}, else {_DEFAULT_URL})")


def add_generate_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``generate``."""
    add_url(parser)
    parser.add_argument("--prompt", help="what is seen and heard, in quotes (required)")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--seconds", type=float, help=f"duration (default: {DEFAULT_SECONDS:g})")
    length.add_argument("--frames", type=int, help="frames at 24 a second, snapped up to 17n+5")
    canvas = "pixels (default: as the first or last frame given, else the checkpoint's 16:9 canvas)"
    parser.add_argument("--width", type=int, help=canvas)
    parser.add_argument("--height", type=int, help=canvas)
    steps = "how many times the model runs (forwards); 30 to 50 are usual, more is slower (default: %(default)s)"
    parser.add_argument("--steps", type=int, default=DEFAULT_STEPS, help=steps)
    parser.add_argument("--seed", type=int, default=0, help="0 to 2^64 - 1 (default: %(default)s)")
    several = f"videos to make, 1 to {MAX_OUTPUTS}, with seeds SEED, SEED + 1, … (default: 1)"
    parser.add_argument("--num-outputs", type=int, metavar="N", help=several)
    parser.add_argument("--pad-seq-len", type=int, metavar="ROWS", help="rows to pad the sequence to, a multiple of 64")
    add_media_arguments(parser)
    add_edit_arguments(parser)
    add_keep_latents(parser)
    add_output(parser, "output.mp4")


def add_decode_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``decode``."""
    add_url(parser)
    add_latents(parser)
    add_output(parser, "output.mp4")


def add_output(parser: argparse.ArgumentParser, default: str) -> None:
    """Add ``--output``, the MP4 to write."""
    words = "the MP4 file to write; several get numbers, FILE-1.mp4, FILE-2.mp4, … (default: %(default)s)"
    parser.add_argument("-o", "--output", default=default, metavar="FILE.mp4", help=words)


def request_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the ``generate`` request of the command line; what is not given is left to the engine."""
    names = ("prompt", "seconds", "frames", "width", "height", "steps", "seed", "num_outputs", "pad_seq_len")
    given = {name: getattr(arguments, name) for name in names}
    return {"task": "generate", **{name: value for name, value in given.items() if value is not None}}


def output_of(arguments: argparse.Namespace) -> Path:
    """Return ``--output`` as an absolute path.

    Raises:
        ConfigError: no file can be put there, or it is not to be an MP4.
    """
    output = absolute_path(arguments.output, field="output")
    for path in dict.fromkeys((output, *numbered(output, _count(arguments)))):
        check_place(path, "output")
    if output.suffix.lower() not in ("", ".mp4"):
        raise ConfigError(
            "config_bad_value",
            f"The output cannot be written: the engine makes MP4 files, not {output.suffix}.",
            field="output",
            value=str(output),
            remedy="Use a name that ends in .mp4.",
        )
    return output


def _count(arguments: argparse.Namespace) -> int:
    """Return how many videos are asked for; the engine refuses what is not 1 to `MAX_OUTPUTS`."""
    return max(1, min(getattr(arguments, "num_outputs", None) or 1, MAX_OUTPUTS))


def run_generate(arguments: argparse.Namespace) -> int:
    """Generate one video, or several, and say the paths."""
    if arguments.prompt is None:
        raise ConfigError(
            "config_bad_value",
            "A prompt is needed.",
            field="prompt",
            remedy='Give one: --prompt "A red fox in the snow".',
        )
    output = output_of(arguments)
    media, parts = media_of_arguments(arguments)
    edit, clips = edit_of_arguments(arguments)
    request, parts = {**request_of(arguments), **media, **edit}, {**parts, **clips}
    read = [*parts.values(), *([Path(arguments.mask_document)] if arguments.mask_document else [])]
    delivery = Delivery(output, count=_count(arguments), keep=arguments.keep_latents, read=read)
    return _deliver(arguments, request, delivery, parts)


def run_decode(arguments: argparse.Namespace) -> int:
    """Decode latents to one video and say its path."""
    latents, output = latents_of(arguments), output_of(arguments)
    request = {"task": "decode", "container": "mp4"}
    return _deliver(arguments, request, Delivery(output, read=[latents]), {"latents": latents})


def _deliver(
    arguments: argparse.Namespace, request: Mapping[str, Any], delivery: Delivery, parts: Mapping[str, Path]
) -> int:
    for path in asyncio.run(generate(_client(arguments), request, delivery, parts)):
        say(str(path))
    if delivery.failure is not None:
        raise delivery.failure
    return 0


async def generate(
    client: EngineClient, request: Mapping[str, Any], delivery: Delivery, parts: Mapping[str, Path] | None = None
) -> list[Path]:
    """Run ``request`` with a progress bar and put its MP4s where ``delivery`` says; return where they are.

    Args:
        parts: part name → file.

    Raises:
        EngineError: the job's error.
        ConfigError: a file cannot be read or written.
    """
    bar = ProgressBar(request.get("num_outputs", 1))
    parts = parts or {}

    def take(event: Mapping[str, Any]) -> None:
        delivery.take(event)
        if event["type"] == "warning":
            event = {**event, "message": in_options(event["message"], request, parts)}
        bar.take(event)

    with delivery, contextlib.closing(bar):
        async with client:
            await _wait_until_loaded(client, bar)
            try:
                outcome = await client.run(request, folder=delivery.folder, inputs=parts, on_event=take)
            except EngineError as error:
                error.message = in_options(error.message, request, parts)
                error.field = error.field and in_options(error.field, request, parts)
                error.remedy = error.remedy and in_options(error.remedy, request, parts)
                raise
            except OSError as error:
                raise await _file_failed(client, delivery, error, parts) from error
        return delivery.put_videos(outcome.outputs["video"])


async def _file_failed(
    client: EngineClient, delivery: Delivery, error: OSError, parts: Mapping[str, Path]
) -> ConfigError:
    """Return what the user is told of ``error``: a file cannot be read, or what the engine sends not be written."""
    # Without a number it is `read_slice`'s.
    if error.errno is None or str(error.filename) in map(str, parts.values()):
        return ConfigError(
            "config_bad_value",
            f"A file to send cannot be read: {error.strerror or error}.",
            field="file",
            value=str(error.filename or "") or None,
            remedy="Give it again once it is whole and stays as it is.",
        )
    failure = unwritable(delivery.output, "output", error)
    if not delivery.has_all_latents and (words := await _where_latents_are(client, delivery)):
        failure.remedy = f"{failure.remedy} {words}"
    return failure


async def _where_latents_are(client: EngineClient, delivery: Delivery) -> str | None:
    """Return how to get the latents that the engine keeps of the job, None when it has none."""
    try:
        job = await client.call("GET", f"/v1/jobs/{delivery.job_id}")
    except EngineError:
        return None
    if not job.get("latents"):
        return None
    token = f'-H "Authorization: Bearer ${env.TOKEN}" ' if env.read_token() else ""
    url = client.url + job["latents"] + ("?output=N" if delivery.count > 1 else "")
    name = shlex.quote(delivery.output.stem[:40] + LATENTS_SUFFIX)
    which = " (N: 0, 1, …)" if delivery.count > 1 else ""
    return f"The engine still has what was sampled{which}: curl -f {token}-o {name} '{url}'"


async def _wait_until_loaded(client: EngineClient, bar: ProgressBar) -> None:
    while (health := await client.health())["status"] == "loading":
        bar.show_loading(health)
        await asyncio.sleep(_POLL_SECONDS)


def run_status(arguments: argparse.Namespace) -> int:
    """Say the engine's health, description and last jobs as JSON."""
    return asyncio.run(_with_client(arguments, _say_status))


async def _say_status(client: EngineClient) -> int:
    health, info, jobs = [await client.call("GET", f"/v1/{name}") for name in ("health", "info", "jobs")]
    say(json.dumps({"health": health, "info": info, "jobs": jobs["jobs"][-_SHOWN_JOBS:]}, indent=2))
    if health["status"] == "dead":
        raise EngineDeadError("engine_dead", f"The engine is dead. {health['reason']}")
    return 0


def add_ping_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ping``."""
    add_url(parser)
    parser.add_argument(
        "--megabytes", type=int, default=64, help="how much to send and get back (default: %(default)s)"
    )


def run_ping(arguments: argparse.Namespace) -> int:
    """Send a block through rank 0 and back, and say how fast it went."""
    length = arguments.megabytes * 1_000_000

    async def ping(client: EngineClient) -> int:
        with temporary_folder("ping") as folder:
            source = folder / "source.safetensors"
            await asyncio.to_thread(write_blob, source, length)
            began = time.monotonic()
            await client.run({"task": "echo"}, inputs={"data": source}, folder=folder)
            seconds = time.monotonic() - began
        say(f"{bytes_in_words(length)} there and back in {seconds:.3f} s: {bytes_in_words(2 * length / seconds)}/s")
        return 0

    return asyncio.run(_with_client(arguments, ping))


def write_blob(path: Path, length: int) -> None:
    """Write a safetensors file with one U8 tensor ``data`` of ``length`` patterned bytes, a block at a time."""
    header = json.dumps({"data": {"dtype": "U8", "shape": [length], "data_offsets": [0, length]}}).encode()
    block = bytes(range(256)) * 4096
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for start in range(0, length, len(block)):
            file.write(block[: min(len(block), length - start)])


def _client(arguments: argparse.Namespace) -> EngineClient:
    return EngineClient(check_url(arguments.url or env.read_url(_DEFAULT_URL)), token=env.read_token())


async def _with_client(arguments: argparse.Namespace, run: Callable[[EngineClient], Awaitable[int]]) -> int:
    async with _client(arguments) as client:
        tell(f"engine at {client.url}")
        return await run(client)
