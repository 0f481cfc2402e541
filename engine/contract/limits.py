"""Limits and facts that requests are checked against before any rank wakes.

`ModelFacts` come from the loaded checkpoint's own JSON files, `Limits` from the operator; the defaults here are the
released ones.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

MAX_SEED = 2**64 - 1
MAX_STEPS = 1000
DEFAULT_STEPS = 50
MAX_OUTPUTS = 10
"""Videos of one request."""
DEFAULT_SECONDS = 5.0
PAD_MULTIPLE = 64
"""A pinned length of the packed sequence is a multiple of this many rows."""
CHUNKS_AHEAD = 2
"""Chunks of frames that may wait to be taken when the ranks begin their next round of tiles."""
SOUND_SLICE_BYTES = 2**20
"""Of what a layer of the audio VAE reads, what it is given at once where its result can be made slice by slice."""
MIN_RANK_WEIGHT = 1e-6
MAX_RANK_WEIGHT = 1e6
"""A rank's weight lies between these: shares that differ by more are nobody's wish."""


@dataclass(frozen=True)
class ModelFacts:
    """What a checkpoint says of itself.

    Attributes:
        latent_channels: channels of a video latent.
        audio_latent_channels: channels of an audio latent.
        text_dim: width of ``prompt_embeds``.
        spatial_ratio: pixels per video latent cell, each axis.
        patch: latent cells per transformer row, each spatial axis.
        canvas_short_edge: short edge of the default canvas, pixels.
        canvas_max_pixels: area cap of the default canvas, pixels.
        reference_short_edge: short edge of a reference image in the sizes ``max`` and ``reference``, pixels.
        sample_rate: of the soundtrack, Hz.
        heads: attention heads of the transformer.
        ffn_dim: inner channels of the transformer's feed-forward.
        text_kv_heads: key and value heads of the text encoder.
        text_ffn_dim: inner channels of the text encoder's feed-forward.
    """

    latent_channels: int = 24
    audio_latent_channels: int = 32
    text_dim: int = 5120
    spatial_ratio: int = 16
    patch: int = 2
    canvas_short_edge: int = 768
    canvas_max_pixels: int = 768 * 1344
    sample_rate: int = 32_000
    reference_short_edge: int = 2048
    heads: int = 56
    ffn_dim: int = 14_336
    text_kv_heads: int = 8
    text_ffn_dim: int = 25_600

    @property
    def canvas_multiple(self) -> int:
        """Both sides of a canvas are multiples of this many pixels."""
        return self.spatial_ratio * self.patch

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form for ``/v1/info``."""
        return {**asdict(self), "canvas_multiple": self.canvas_multiple}


@dataclass(frozen=True)
class Limits:
    """The operator's limits.

    Attributes:
        max_prompt_tokens: tokens of a prompt.
        max_seconds: longest video, seconds.
        max_side: largest width and height, pixels.
        max_body_bytes: bytes of one request, its tensors included.
        max_queue: jobs that may wait.
        keep_results: finished jobs whose results are kept for ``/result``.
        resume_seconds: how long a job survives an abnormal loss of its connection.
        max_pad_seq_len: largest ``pad_seq_len`` of a request, rows.
        media_timeout: how long reading the pictures and sounds of one request may take, seconds.
        client_timeout: how long the ranks wait for a client that takes no chunk of frames, seconds.
    """

    max_prompt_tokens: int = 2048
    max_seconds: float = 60.0
    max_side: int = 8192
    max_body_bytes: int = 4_000_000_000
    max_queue: int = 64
    keep_results: int = 8
    resume_seconds: float = 30.0
    max_pad_seq_len: int = 131_072
    media_timeout: float = 300.0
    client_timeout: float = 120.0

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form for ``/v1/info``."""
        return asdict(self)
