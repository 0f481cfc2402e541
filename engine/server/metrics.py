"""``GET /metrics``: the controller's counters in Prometheus' text format. Raises nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..contract.requests import STAGES
from ..contract.version import ENGINE_VERSION
from ..controller.controller import Controller
from ..controller.jobs import STATES

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
STATUSES = ("loading", "ready", "busy", "restarting", "dead")

_Sample = tuple[Mapping[str, str], float]


def render_metrics(controller: Controller) -> str:
    """Return the page."""
    stats = controller.stats
    states = [job.state for job in controller.jobs]
    families = [
        _family("info", "gauge", "Version of the engine.", [({"version": ENGINE_VERSION}, 1)]),
        _family(
            "status",
            "gauge",
            "1 for the status of the engine, else 0.",
            [({"status": name}, name == controller.status) for name in STATUSES],
        ),
        _family("ranks", "gauge", "Ranks of this engine.", [({}, controller.config.nproc_per_node)]),
        _family("queue_length", "gauge", "Jobs that wait.", [({}, controller.waiting)]),
        _family("jobs", "gauge", "Jobs remembered, by state.", [({"state": s}, states.count(s)) for s in STATES]),
        _family("jobs_submitted_total", "counter", "Jobs accepted.", [({}, stats.jobs_submitted)]),
        _family("jobs_started_total", "counter", "Jobs given to the ranks.", [({}, stats.jobs_started)]),
        _family(
            "jobs_ended_total",
            "counter",
            "Jobs ended, by state.",
            [({"state": s}, stats.jobs_ended[s]) for s in STATES[2:]],
        ),
        _family(
            "requests_refused_total",
            "counter",
            "Requests refused before a rank was woken, by error code.",
            [({"code": code}, count) for code, count in sorted(stats.requests_refused.items())],
        ),
        _stages("stage_seconds", stats.stage_seconds, stats.stage_count),
        _family("bytes_in_total", "counter", "Bytes of parts received.", [({}, stats.bytes_in)]),
        _family("bytes_out_total", "counter", "Bytes of parts and results sent.", [({}, stats.bytes_out)]),
        _family("cache_bytes", "gauge", "Bytes of results that are kept.", [({}, controller.cache.bytes)]),
        _family("cache_entries", "gauge", "Results that are kept.", [({}, controller.cache.entries)]),
        _by_stage("cache_hits_total", "Stages whose result was known already.", controller.cache.hits),
        _by_stage("cache_misses_total", "Stages whose result could have been known.", controller.cache.misses),
        _family("restarts_total", "counter", "Times the ranks were lost and restarted.", [({}, stats.restarts)]),
        _family(
            "gather_workspace_bytes",
            "gauge",
            "Buffers for the VAE's tiles that rank 0 keeps.",
            [({}, stats.gather_workspace_bytes)],
        ),
    ]
    return "".join(families)


def _stages(name: str, sums: Mapping[str, float], counts: Mapping[str, int]) -> str:
    lines = [f"# HELP h3_engine_{name} Seconds of each stage.\n# TYPE h3_engine_{name} summary\n"]
    for stage in STAGES:
        lines.append(_sample(f"{name}_sum", {"stage": stage}, sums[stage]))
        lines.append(_sample(f"{name}_count", {"stage": stage}, counts[stage]))
    return "".join(lines)


def _by_stage(name: str, words: str, counts: Mapping[str, int]) -> str:
    return _family(name, "counter", words, [({"stage": stage}, counts[stage]) for stage in STAGES])


def _family(name: str, kind: str, words: str, samples: Iterable[_Sample]) -> str:
    head = f"# HELP h3_engine_{name} {words}\n# TYPE h3_engine_{name} {kind}\n"
    return head + "".join(_sample(name, labels, value) for labels, value in samples)


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    inner = ",".join(f'{key}="{_escape(text)}"' for key, text in labels.items())
    return f"h3_engine_{name}{{{inner}}} {_number(value)}\n" if inner else f"h3_engine_{name} {_number(value)}\n"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
