"""The texts on a node while it waits. Knows nothing of ComfyUI; raises nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from ..engine.contract.geometry import AUDIO_LATENTS_PER_SECOND
from ..engine.contract.messages import Event, Queued, StageFinished, StageStarted, Step
from ..engine.contract.words import bytes_in_words

_STAGES = {
    "encode_prompt": "Encoding the prompt",
    "encode_media": "Encoding pictures and sound",
    "denoise": "Sampling",
    "decode_video": "Decoding the video",
    "decode_audio": "Decoding the sound",
}
_REASONS = {
    "busy": "the engine works on another job",
    "media": "the engine reads the pictures and sound",
    "loading": "the engine is loading",
    "restarting": "the engine is restarting",
}
"""Reason of `Queued` → words; with any other one the job starts at once and nothing is shown."""
_LABELS = {"image": ["Picture"], "video": ["Video"], "video_audio": ["Audio", "Video"], "audio": ["Audio"]}
"""Kind of a reference → its names in the prompt, in their order there."""


def loading_text(health: Mapping[str, Any]) -> str:
    """Return what to show of an engine that is loading or restarting, given the answer of ``/v1/health``."""
    progress = health.get("progress") or {}
    total = progress.get("bytes_total") or 0
    if not total:
        return "The engine is restarting" if health.get("status") == "restarting" else "The engine is loading"
    done = progress.get("bytes_done") or 0
    amount = f"{bytes_in_words(done)} of {bytes_in_words(total)}"
    return f"Loading {progress.get('component')}: {amount} ({done / total:.0%})"


def event_text(event: Event) -> str | None:
    """Return what to show of ``event``, None for nothing new."""
    if isinstance(event, Queued):
        reason = _REASONS.get(event.reason)
        return reason and f"Waiting, number {event.position} in the queue: {reason}"
    if isinstance(event, StageStarted):
        return _STAGES.get(event.stage, event.stage)
    if isinstance(event, StageFinished) and event.cached:
        return f"{_STAGES.get(event.stage, event.stage)}: known already"
    if isinstance(event, Step):
        left = f", {_clock(event.remaining_seconds)} left" if event.step < event.total else ""
        unit = "step" if event.stage == "denoise" else "part"
        return f"{_STAGES.get(event.stage, event.stage)}: {unit} {event.step} of {event.total}{left}"
    return None


def references_text(facts: Mapping[str, Any]) -> str:
    """Return what came of the references: how the prompt calls each, its size, rows and share of the sequence.

    The names have no angle brackets: the page takes those for tags, and shows nothing.

    Args:
        facts: of the job that encoded them.
    """
    numbers: Counter[str] = Counter()
    lines = []
    for reference in facts.get("references") or ():
        labels = _LABELS[reference["kind"]]
        for label in labels:
            numbers[label] += 1
        sizes = []
        if reference.get("width"):
            sizes.append(f"{reference['width']}x{reference['height']}")
        if "Video" in labels:
            sizes.append(f"{reference['frames']} frames")
        if reference.get("audio_latents"):
            sizes.append(f"{reference['audio_latents'] / AUDIO_LATENTS_PER_SECOND:.2f} s of sound")
        named = " and ".join(f"{label} {numbers[label]}" for label in labels)
        lines.append(f"{named}: {', '.join(sizes)}, {reference['rows']} rows ({reference['share']:.1%})")
    return "\n".join(lines)


def masks_text(facts: Mapping[str, Any]) -> str:
    """Return what the masks of an edit changed, nothing without one.

    Args:
        facts: of the job; ``masks`` are the fields of a `MaskReport`.
    """
    return mask_report_text(facts["masks"]) if facts.get("masks") else ""


def mask_report_text(report: Mapping[str, Any]) -> str:
    """Return how much is made anew, and which time that really touches; ``report`` are the fields of a `MaskReport`."""
    shares = _percent(report["video_percent"]), _percent(report["audio_percent"])
    # The editor shades cells, a quarter of the squares that the model works in: say which of both is counted.
    lines = [f"Made anew: {shares[0]} of the picture's 32x32 squares, {shares[1]} of the sound"]
    if report["video_frames"]:
        first, end = report["video_frames"]
        lines.append(f"Picture: {_span(report['video_seconds'])} (frames {first} to {end - 1})")
    if report["audio_latents"]:
        latent = 1000 / AUDIO_LATENTS_PER_SECOND
        lines.append(f"Sound: {_span(report['audio_seconds'], 3)} (outward to whole latents of {latent:g} ms)")
    return "\n".join(lines)


def _percent(value: float) -> str:
    return "under 1%" if 0 < value < 1 else f"{value:.0f}%"


def _span(seconds: tuple[float, float], digits: int = 2) -> str:
    return f"{seconds[0]:.{digits}f} to {seconds[1]:.{digits}f} s"


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
