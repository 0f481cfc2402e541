"""The controller's side of the result cache: what of a job is known already, and what of it is kept.

A job whose whole result is known is answered without the ranks, also while they work on another one. Of the others the
ranks are given what is known of their stages, and asked for what is not. Results are kept when their job is done: one
that failed or was cancelled leaves nothing. What ranks made that were lost is forgotten with them, since those that
follow read the checkpoint again. Raises nothing; lives on the server's event loop.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..cache import Entry, Piece, ResultCache
from ..cache_keys import STAGE_OF, Keys, keys_of
from ..config import EngineConfig
from ..contract.messages import Output, StageFinished, Started, Warned
from ..wire import describe_part
from .folder import RunFolder
from .jobs import Job

_MB = 10**6
_OUTPUT_OF = {"text": "conditioning", "conditions": "conditioning", "source": "latents"}
"""What the ranks keep of a stage → the output that a request for that stage alone gives it as."""


class JobCache:
    """Results of jobs, for later jobs.

    Attributes:
        hits, misses: stage → times that its result was known, or was not, of those that can be.
    """

    def __init__(self, config: EngineConfig, folder: RunFolder) -> None:
        self.hits: Counter[str] = Counter()
        self.misses: Counter[str] = Counter()
        self._config = config
        self._results = ResultCache(folder.make("cache"), capacity=config.cache_mb * _MB, free_bytes=folder.free_bytes)
        self._loads = itertools.count()
        self._scope: str | None = None

    @property
    def bytes(self) -> int:
        """Bytes of all results."""
        return self._results.bytes

    @property
    def entries(self) -> int:
        """How many results there are."""
        return len(self._results)

    def open(self, ranks: Mapping[str, Any]) -> None:
        """The ranks have loaded their weights and told ``ranks`` of themselves."""
        if self._config.cache_mb == 0:
            return
        named = {name: ranks.get(name) for name in ("device", "dtype", "backend")}
        config = self._config
        self._scope = json.dumps(
            [next(self._loads), str(config.model), config.model_options.to_json(), config.layout.to_dict(), named]
        )

    def close(self) -> None:
        """The ranks are gone: what they made is forgotten."""
        self._scope = None
        self._results.clear()

    def answer(self, job: Job) -> dict[str, Any] | None:
        """Give a waiting job its whole result, if that is known; return the ranks' facts of it, else None."""
        keys = self._keys(job)
        entry = self._results.take(keys.whole, job.folder) if keys.whole is not None else None
        if entry is None:
            return None
        stages = job.plan.stages
        job.emit(Started(list(stages), job.plan.facts))
        for number, stage in enumerate(stages, 1):
            job.emit(StageFinished(stage, 0.0, number / len(stages), cached=True))
        for warning in entry.warnings:
            job.emit(warning)
        for piece in entry.pieces:
            job.add_output(piece.output, piece.file)
        self.hits.update(stages)
        return dict(entry.facts)

    def for_ranks(self, job: Job) -> dict[str, Any]:
        """Return what the ranks are told with a job: ``cached``, the files of what is known, and ``keep``."""
        keys = self._keys(job)
        cached = {}
        for kind, key in keys.stages.items():
            entry = self._results.take(key, job.folder)
            if entry is not None:
                cached[kind] = str(entry.pieces[0].file)
        keep = [kind for kind in keys.stages if kind not in cached]
        self.hits.update(STAGE_OF[kind] for kind in cached)
        self.misses.update(STAGE_OF[kind] for kind in keep)
        if keys.whole is not None and not keys.stages:
            self.misses.update(job.plan.stages)
        return {"cached": cached, "keep": keep}

    def keep(self, job: Job, facts: Mapping[str, Any]) -> None:
        """Keep what the ranks made of a job that is about to be done; ``facts`` are theirs of the whole."""
        keys = self._keys(job)
        for kind, key in keys.stages.items():
            if kind in job.kept:
                self._results.add(key, job.kept[kind])
        if keys.whole is not None:
            sent = [(entry.event, entry.file) for entry in job.history]
            pieces = [Piece(event, file) for event, file in sent if isinstance(event, Output) and file is not None]
            told = [event for event, _ in sent if isinstance(event, Warned) and event not in job.plan.warnings]
            self._results.add(keys.whole, Entry(tuple(pieces), dict(facts), tuple(told)))

    def _keys(self, job: Job) -> Keys:
        if self._scope is None or job.hashes.keys() != job.inputs.keys():
            return Keys()
        return keys_of(job.plan.request, job.hashes, scope=self._scope)


def stage_result(message: Mapping[str, Any]) -> Entry:
    """Return what the link's message ``kept`` tells of; blocking, it reads the file."""
    path = Path(message["path"])
    name = _OUTPUT_OF[message["kind"]]
    output = Output(name, 0, True, "safetensors", parts=(describe_part(name, path),))
    return Entry((Piece(output, path),), message["facts"])
