"""The command line: ``python -m engine`` and ``h3-engine``.

Results go to stdout, progress and errors to stderr. Exit status: 0 done, 2 the caller's fault (options, checkpoint,
request), 3 the engine's, 130 cancelled, 141 whoever read the output has gone (as in ``h3-engine plan | head``).
Importing this module imports no torch.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
from collections.abc import Callable, Sequence

from .. import env
from ..contract.errors import ConfigError, EngineError, JobCancelled, RequestError
from ..contract.version import ENGINE_VERSION
from . import client as cli_client
from . import demo as cli_demo
from . import plan as cli_plan
from . import serve as cli_serve
from .output import tell

DONE, CALLERS_FAULT, ENGINES_FAULT, CANCELLED = 0, 2, 3, 130
UNREAD = 141
"""What a shell says of a program that SIGPIPE ended."""

_Add = Callable[[argparse.ArgumentParser], None]
_Run = Callable[[argparse.Namespace], int]
COMMANDS: dict[str, tuple[str, _Add, _Run]] = {
    "serve": ("start an engine", cli_serve.add_arguments, cli_serve.run),
    "plan": ("say what a configuration takes before anything is loaded", cli_plan.add_arguments, cli_plan.run),
    "generate": ("make a video on a running engine", cli_client.add_generate_arguments, cli_client.run_generate),
    "decode": ("make the video of latents again", cli_client.add_decode_arguments, cli_client.run_decode),
    "status": ("describe a running engine and its last jobs as JSON", cli_client.add_url, cli_client.run_status),
    "ping": ("measure the way to rank 0 and back", cli_client.add_ping_arguments, cli_client.run_ping),
    "make-tiny": ("write a random checkpoint", cli_demo.add_make_tiny_arguments, cli_demo.run_make_tiny),
    "demo": ("make-tiny, serve, generate, stop", cli_demo.add_demo_arguments, cli_demo.run_demo),
}


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(prog="h3-engine", description="MiniMax-H3 video and sound on several ranks.")
    parser.add_argument("--version", action="version", version=ENGINE_VERSION)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, (words, add, _) in COMMANDS.items():
        add(commands.add_parser(name, help=words, description=f"{words[0].upper()}{words[1:]}.", allow_abbrev=False))
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status (argparse itself exits with 2)."""
    try:
        try:
            return _run_command(argv)
        finally:
            # Here, where it can be caught, and not when Python ends.
            sys.stdout.flush()
    except BrokenPipeError:
        _write_nowhere()
        return UNREAD
    except OSError as error:
        # Of stdout when it is a file, or of a name too long to look for; what is written has words of its own.
        _write_nowhere()
        tell(f"error: a file cannot be read or written: {error}")
        return CALLERS_FAULT


def _write_nowhere() -> None:
    """Let what is still buffered for a reader that has gone, or a full disk, vanish without a word."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _run_command(argv: Sequence[str] | None) -> int:
    parser = build_parser()
    arguments, unknown = parser.parse_known_args(argv)
    _, _, run = COMMANDS[arguments.command]
    try:
        _refuse_unknown(arguments.command, unknown)
        return run(arguments)
    except KeyboardInterrupt:
        tell("cancelled")
        return CANCELLED
    except EngineError as error:
        if error.code == "unauthorized":
            error.remedy = f"Set {env.TOKEN} to the engine's token."
        tell(f"error: {error} ({error.code})")
        return exit_status(error)


def _refuse_unknown(command: str, words: Sequence[str]) -> None:
    if not words:
        return
    if not words[0].startswith("-"):
        raise ConfigError(
            "config_unknown_key",
            f"{' '.join(words)!r} belongs to no option.",
            remedy='Put quotes around a text of several words, as in --prompt "A red fox".',
        )
    flag, _, value = words[0].partition("=")
    close = difflib.get_close_matches(flag, _flags(command), n=2)
    raise ConfigError(
        "config_unknown_key",
        f"There is no option {flag}.",
        field=flag,
        value=value or " ".join(words[1:2]) or None,
        remedy=f"Did you mean {' or '.join(close)}?" if close else f"See h3-engine {command} --help.",
    )


def _flags(command: str) -> list[str]:
    """Return the options that ``command`` has, as its usage names them."""
    parser = argparse.ArgumentParser()
    _, add, _ = COMMANDS[command]
    add(parser)
    return re.findall(r"--[\w-]+", parser.format_usage())


def exit_status(error: EngineError) -> int:
    """Return whose fault ``error`` is, as an exit status."""
    if isinstance(error, JobCancelled):
        return CANCELLED
    return CALLERS_FAULT if isinstance(error, (ConfigError, RequestError)) else ENGINES_FAULT
