"""A job's files on their way to the user: received beside the output, then put in their places.

Nothing that was sampled is lost: latents that cannot go where they were wanted stay beside the output, or where they
were received, and the user is told. The job's own error is never replaced by one about files. Raises `ConfigError`.
"""

from __future__ import annotations

import shlex
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from ..config import absolute_path
from ..contract.errors import ConfigError
from .output import numbered, tell
from .places import SCRATCH, check_apart, check_place, free_name, move, unwritable

LATENTS_SUFFIX = ".latents.safetensors"
"""Of the file that a failed ``generate`` leaves beside its output."""


class Delivery:
    """Takes a job's files as they arrive; leaving its block puts the latents where they belong, however the job ended.

    Attributes:
        folder: what arrives is received into it; inside the block only.
        job_id: of the job, once an event came.
        failure: the latents could not be put where they were wanted, though the job is done.
    """

    folder: Path

    def __init__(self, output: Path, *, count: int = 1, keep: str | None = None, read: Sequence[Path] = ()) -> None:
        """Deliver ``count`` videos to ``output``.

        Args:
            keep: the file that the user wants of the latents, None for none unless the job fails.
            read: the files that the job is given.

        Raises:
            ConfigError: a file cannot be put there, or would replace another one of these.
        """
        self.output = output
        self.count = count
        self.job_id: str | None = None
        self.failure: ConfigError | None = None
        self._arrived: list[Path] = []
        self._stranded = False
        wanted = None if keep is None else absolute_path(keep, field="keep_latents")
        self._wanted = [] if wanted is None else numbered(wanted, count)
        for path in self._wanted:
            check_place(path, "keep_latents")
        check_apart({"--output": numbered(output, count), "--keep-latents": self._wanted}, read)

    def take(self, event: Mapping[str, Any]) -> None:
        """Take note of an event of the job."""
        self.job_id = event.get("job_id", self.job_id)
        if event["type"] == "output" and event["name"] == "latents":
            self._arrived.append(event["path"])

    @property
    def has_all_latents(self) -> bool:
        """Whether what was sampled of every video has arrived."""
        return len(self._arrived) == self.count

    def __enter__(self) -> Delivery:
        """Make the folder.

        Raises:
            ConfigError: the output's folder cannot be written.
        """
        try:
            self.folder = Path(tempfile.mkdtemp(prefix=SCRATCH, dir=self.output.parent))
        except OSError as error:
            raise unwritable(self.output, "output", error) from error
        return self

    def put_videos(self, videos: Sequence[Path]) -> list[Path]:
        """Move the videos from `folder` to the output; return where they are.

        Raises:
            ConfigError: one cannot be put there; all of them are still somewhere, and it says where.
        """
        places = numbered(self.output, len(videos))
        for index, (made, place) in enumerate(zip(videos, places, strict=True)):
            try:
                made.replace(place)
            except OSError as error:
                self._stranded = True
                failure = unwritable(place, "output", error)
                lie = ", ".join(str(path) for path in (*places[:index], *videos[index:]))
                failure.remedy = f"What was made lies in {lie}. {failure.remedy}"
                raise failure from error
        return places

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Put the latents that arrived in their place, when they are wanted or the job failed; remove the folder."""
        try:
            if self._wanted or error is not None:
                for index, path in enumerate(self._arrived):
                    place = self._put_latents(index, path, failed=error is not None)
                    again = (
                        ""
                        if error is None
                        else f"; decode them alone: h3-engine decode --latents {shlex.quote(str(place))}"
                    )
                    tell(f"the sampled latents are in {place}{again}")
        finally:
            if not self._stranded:
                shutil.rmtree(self.folder, ignore_errors=True)

    def _put_latents(self, index: int, path: Path, *, failed: bool) -> Path:
        """Move latents to where they are wanted, else beside the output, else leave them; return where they are."""
        if self._wanted:
            place = self._wanted[index]
            try:
                move(path, place)
                return place
            except OSError as error:
                failure = unwritable(place, "keep_latents", error)
                if failed:
                    tell(f"note: {failure}")
                else:
                    self.failure = failure
        video = numbered(self.output, self.count)[index]
        try:
            place = free_name(video.parent, video.stem, LATENTS_SUFFIX)
            path.replace(place)
            return place
        except OSError as error:
            tell(f"note: the latents cannot be put beside the output: {error}")
            self._stranded = True
            return path
