"""Reading an MP4 with PyAV, frame by frame."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import av


@dataclass(frozen=True)
class VideoFacts:
    """What is really in a file: every frame and sample was decoded."""

    frames: int
    width: int
    height: int
    rate: float
    sample_rate: int
    channels: int
    sound_seconds: float
    codecs: tuple[str, str]


def video_facts(path: Path) -> VideoFacts:
    """Decode the file at ``path`` wholly and return its facts."""
    with av.open(str(path)) as container:
        video, audio = container.streams.video[0], container.streams.audio[0]
        frames = samples = 0
        for frame in container.decode(video, audio):
            if isinstance(frame, av.VideoFrame):
                frames += 1
            else:
                samples += frame.samples
        return VideoFacts(
            frames=frames,
            width=video.width,
            height=video.height,
            rate=float(video.average_rate or 0),
            sample_rate=audio.rate,
            channels=audio.channels,
            sound_seconds=samples / audio.rate,
            codecs=(video.codec_context.name, audio.codec_context.name),
        )
