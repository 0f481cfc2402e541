"""``plan --url``: the plan of a running engine, beside what a job on it took.

Raises what the client raises, and `ConfigError` for an engine that has no plan, or a job that took no measure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from .. import env
from ..client import EngineClient
from ..contract.errors import ConfigError
from ..contract.urls import check_url
from ..planner.plot import fullest


def ask(url: str, job_id: str | None) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return an engine's plan, and the memory that a job took: the last one that is done when none is named.

    Raises:
        ConfigError: ``config_bad_value``. EngineError: as the client.
    """
    try:
        found = asyncio.run(_ask(url, job_id))
        table(*found)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ConfigError(
            "config_bad_value",
            f"What answers there is no engine of this version: {error!r}",
            field="url",
            value=url,
            remedy="Give the URL of an engine, as h3-engine serve prints it.",
        ) from error
    return found


async def _ask(url: str, job_id: str | None) -> tuple[dict[str, Any], dict[str, Any] | None]:
    async with EngineClient(check_url(url), token=env.read_token()) as client:
        info = await client.call("GET", "/v1/info")
        if info.get("plan") is None:
            raise ConfigError(
                "config_bad_value",
                "This engine has no plan.",
                field="url",
                value=url,
                remedy="Ask an engine of this version, or plan without --url.",
            )
        if job_id is not None:
            jobs = [await client.call("GET", f"/v1/jobs/{quote(job_id, safe='')}")]
        else:
            jobs = (await client.call("GET", "/v1/jobs"))["jobs"]
        measured = [job["memory"] for job in jobs if job.get("memory")]
        if job_id is not None and not measured:
            raise ConfigError(
                "config_bad_value",
                "Nothing was measured of this job.",
                field="job",
                value=job_id,
                remedy="Name a job that is done, and that the ranks ran.",
            )
        return info["plan"], measured[-1] if measured else None


def table(described: Mapping[str, Any], memory: Mapping[str, Any] | None) -> str:
    """Return predicted and measured GB (1e9 bytes) of the fullest rank, stage by stage."""
    rank = fullest(described)
    whose = f"rank {rank['rank']}"
    kind = f"measured ({memory['kind']})" if memory else "not measured"
    lines = [f"{described['summary']}", f"GB (1e9 bytes) of {whose}: stage, predicted, {kind}"]
    for stage in rank["stages"]:
        found = memory["stages"].get(stage["stage"]) if memory else None
        shown = f"{found[rank['rank']] / 1e9:8.3f}" if found else "       -"
        lines.append(f"{stage['stage']:14}{stage['total_bytes'] / 1e9:8.3f}{shown}")
    return "\n".join(lines)
