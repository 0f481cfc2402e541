"""The run folder: the link's socket and the tensors in flight, private to one engine.

It lies in memory (``/dev/shm``) when that has room, has mode 0700, and is locked for as long as its engine lives, so
that the next engine can tell a leftover from a neighbour. Raises `ConfigError` when no folder can be made.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
import tempfile
import time
from pathlib import Path

from ..contract.errors import ConfigError, EngineBusyError

logger = logging.getLogger(__name__)

_PREFIX = "h3-engine-"
_NEW = ".new-" + _PREFIX
_MAKING_SECONDS = 3600.0
"""A folder that has been in the making for so long belongs to nobody any more; making one takes no second."""
_LOCK = "lock"
_MEMORY = Path("/dev/shm")  # noqa: S108 - the folder made in it is private
_LONGEST_SOCKET_PATH = 100
LEAST_ROOM = 10**6
"""Bytes that are free when a job is accepted: what the ranks are told of it is a file here too."""


class RunFolder:
    """A locked private folder; `close` deletes it with everything in it."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    @property
    def link(self) -> Path:
        """The Unix socket that rank 0 connects to."""
        return self.path / "link"

    def make(self, kind: str) -> Path:
        """Make and return a new empty folder for ``kind`` (``job``, ``upload``).

        Raises:
            EngineBusyError: ``queue_full`` when it cannot be made, or nothing would fit into it.
        """
        try:
            if self.free_bytes() < LEAST_ROOM:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return Path(tempfile.mkdtemp(prefix=f"{kind}-", dir=self.path))
        except OSError as error:
            raise folder_busy(error) from error

    def free_bytes(self) -> int:
        """Return how many bytes fit."""
        return shutil.disk_usage(self.path).free

    def close(self) -> None:
        """Delete the folder and release its lock."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def folder_busy(error: OSError) -> EngineBusyError:
    """Return what a client is told when the run folder cannot take or give a file just now."""
    return EngineBusyError(
        "queue_full",
        f"The run folder cannot be used just now: {error.strerror or error}.",
        field="parts",
        remedy="Try again when other jobs are done, or give --run-dir a larger folder.",
    )


def open_run_folder(base: Path | None, *, room: int) -> RunFolder:
    """Make a run folder below ``base``, and remove what dead engines left there.

    Args:
        base: the operator's choice; None: ``/dev/shm`` when ``room`` bytes are free there, else the temp folder.

    Raises:
        ConfigError: ``config_bad_value`` when ``base`` cannot be written or its path is too long for a socket.
    """
    parent = base or (_MEMORY if _has_room(_MEMORY, room) else Path(tempfile.gettempdir()))
    try:
        _remove_leftovers(parent)
        # The folder gets its name only once it is locked: a neighbour that cleans up never sees it unlocked.
        fresh = Path(tempfile.mkdtemp(prefix=_NEW, dir=parent))
        lock = os.open(fresh / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = fresh.rename(parent / (_PREFIX + fresh.name.removeprefix(_NEW)))
    except OSError as error:
        raise ConfigError(
            "config_bad_value",
            f"No run folder can be made: {error}",
            field="run_dir",
            value=str(parent),
            remedy="Give --run-dir a folder that can be written.",
        ) from error
    folder = RunFolder(path, lock)
    if len(os.fsencode(folder.link)) > _LONGEST_SOCKET_PATH:
        folder.close()
        raise ConfigError(
            "config_bad_value",
            "The path of the run folder is too long for a Unix socket.",
            field="run_dir",
            value=str(parent),
            remedy="Give --run-dir a folder with a shorter path.",
        )
    return folder


def _has_room(path: Path, room: int) -> bool:
    return path.is_dir() and os.access(path, os.W_OK) and shutil.disk_usage(path).free >= room


def _is_old(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime > _MAKING_SECONDS
    except OSError:
        return False


def _remove_leftovers(parent: Path) -> None:
    for path in (*parent.glob(_PREFIX + "*"), *filter(_is_old, parent.glob(_NEW + "*"))):
        try:
            # One that was killed while it made its folder may not have come to the lock.
            lock = os.open(path / _LOCK, os.O_RDWR | (os.O_CREAT if path.name.startswith(_NEW) else 0), 0o600)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            logger.info("removing the leftovers of a dead engine in %s", path)
            shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(lock)
