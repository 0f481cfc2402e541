"""Places of files that the command line writes: tried before a job runs, and never half written.

Raises `ConfigError` that says the file, what the system said, and what to do.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import stat
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ..contract.errors import ConfigError

SCRATCH = ".h3-engine-"
"""How the names begin of what lies beside a file while it is made."""
_KINDS = {"output": "output", "keep_latents": "latents"}
_PROBE = 4096
"""Bytes: on a disk without room for so many, no result will find any."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def check_place(path: Path, field: str) -> None:
    """Check that a file can be put at ``path``: what is there is a regular file, and its folder can be written.

    Args:
        field: the option that names it, ``output`` or ``keep_latents``.

    Raises:
        ConfigError: it cannot.
    """
    try:
        if not path.parent.is_dir():
            problem = f"there is no folder {path.parent}"
            raise _refusal(path, field, problem, "Make it first, or choose a folder that exists.")
        if path.is_dir():
            remedy = f"Give the file's name too, for example {path / 'output.mp4'}."
            raise _refusal(path, field, "it is a folder", remedy)
        mode = path.stat().st_mode if path.exists() else stat.S_IFREG
        if not stat.S_ISREG(mode):
            raise _refusal(path, field, "it is no regular file", "Use a file's name; a device or pipe is not replaced.")
        with tempfile.TemporaryFile(dir=path.parent, buffering=0) as file:
            file.write(bytes(_PROBE))
    except OSError as error:
        raise unwritable(path, field, error) from error


def unwritable(path: Path, field: str, error: OSError) -> ConfigError:
    """Return what the user is told when the system refused to write the file at ``path`` of the option ``field``."""
    if error.errno in _NO_ROOM:
        remedy = "Make room there, or choose another folder."
    elif error.errno == errno.ENAMETOOLONG:
        remedy = "Use a shorter name."
    else:
        remedy = "Choose a folder that can be written."
    return _refusal(path, field, error.strerror or str(error), remedy)


def _refusal(path: Path, field: str, problem: str, remedy: str) -> ConfigError:
    message = f"The {_KINDS[field]} cannot be written: {problem}."
    return ConfigError("config_bad_value", message, field=field, value=str(path), remedy=remedy)


def check_apart(written: Mapping[str, Sequence[Path]], read: Sequence[Path]) -> None:
    """Check that no file is written twice, and none over one that is ``read``.

    Args:
        written: option → its files.

    Raises:
        ConfigError: ``config_conflict``.
    """
    files = [(option, path) for option, paths in written.items() for path in paths]
    for (option, path), (other, another) in itertools.combinations(files, 2):
        if option != other and _same(path, another):
            raise _conflict(f"{option} and {other} would write the same file.", option, path)
    for option, path in files:
        if any(_same(path, source) for source in read):
            raise _conflict(f"{option} would write over a file that is read.", option, path)


def _conflict(message: str, option: str, path: Path) -> ConfigError:
    return ConfigError("config_conflict", message, field=option, value=str(path), remedy="Give each its own name.")


def _same(one: Path, other: Path) -> bool:
    if one.resolve() == other.resolve():
        return True
    # Names may differ and mean one file, as where capitals do not count.
    return one.exists() and other.exists() and one.samefile(other)


def move(source: Path, target: Path) -> None:
    """Move a file, also onto another file system; ``target`` is whole or as it was.

    Raises:
        OSError: it cannot be written; ``source`` is still there.
    """
    try:
        source.replace(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        copy = target.with_name(f"{SCRATCH}{uuid.uuid4()}")
        try:
            shutil.copyfile(source, copy)
            copy.replace(target)
        finally:
            copy.unlink(missing_ok=True)
        source.unlink()


def free_name(folder: Path, stem: str, suffix: str) -> Path:
    """Return a path in ``folder`` at which nothing is: STEM SUFFIX, else with -2, -3, … before the last dot.

    Raises:
        OSError: there is no such folder any more.
    """
    longest = os.pathconf(folder, "PC_NAME_MAX") - len(suffix) - len("-9999")
    raw = os.fsencode(stem)
    if len(raw) > longest:
        stem = raw[:longest].decode("utf-8", "ignore")
    path = plain = folder / (stem + suffix)
    for number in itertools.count(2):
        if not os.path.lexists(path):
            break
        path = plain.with_name(f"{plain.stem}-{number}{plain.suffix}")
    return path


@contextlib.contextmanager
def temporary_folder(purpose: str) -> Iterator[Path]:
    """Give a folder among the system's temporary ones, until the block is left.

    Raises:
        ConfigError: for an `OSError` of making it or in the block.
    """
    try:
        with tempfile.TemporaryDirectory(prefix=f"h3-engine-{purpose}-", ignore_cleanup_errors=True) as folder:
            yield Path(folder)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ConfigError(
            "config_bad_value",
            f"The temporary folder cannot be used: {error.strerror or error}.",
            field="TMPDIR",
            value=str(error.filename or tempfile.gettempdir()),
            remedy="Make room there, or set TMPDIR to a folder that has some.",
        ) from error
