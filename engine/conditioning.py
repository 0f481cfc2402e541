"""What a video is conditioned on besides its text, as latents: keyframes and guides, and references.

They travel in the part ``conditioning`` as ``conditions.<i>.video`` and ``.audio``, ``references.<j>.video`` and
``.audio``; which frame a condition starts at and what kind a reference is, the request says. Promise: mixed with noise
and packed as diffusers does, bit for bit, wherever the tensors are; sizes are compared with the target's canvas and
length before the transformer sees a row. Raises `RequestError`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from .contract.conditions import check_conditions
from .contract.errors import RequestError
from .contract.framing import TensorInfo
from .contract.limits import ModelFacts
from .contract.media import Condition
from .contract.media import EncodedReference as ReferenceEntry
from .contract.requests import Denoise
from .packing import VISUAL_CONDITION_TIME, Block, pack_audio, pack_video

EncodedKind = Literal["image", "video", "video_audio", "audio"]
_DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


@dataclass(frozen=True)
class EncodedCondition:
    """A keyframe or guide.

    Attributes:
        frame: pixel frame of the target where it starts.
        video: [1, C, t, h, w] normalised latents on the target's canvas, or None.
        audio: [1, Ca, 2, a] normalised latents, or None.
    """

    frame: int
    video: torch.Tensor | None = None
    audio: torch.Tensor | None = None


@dataclass(frozen=True)
class EncodedReference:
    """A reference. ``kind``, see `contract.media.EncodedReference`; latents as of `EncodedCondition`, its own size."""

    kind: EncodedKind
    video: torch.Tensor | None = None
    audio: torch.Tensor | None = None


@dataclass(frozen=True)
class Conditions:
    """All conditions and references of one video, each in order."""

    conditions: tuple[EncodedCondition, ...] = ()
    references: tuple[EncodedReference, ...] = ()

    @classmethod
    def read(
        cls,
        tensors: Mapping[str, torch.Tensor],
        conditions: Sequence[Condition],
        references: Sequence[ReferenceEntry],
    ) -> Conditions:
        """Take them from the tensors of a part ``conditioning``; which are there was checked by the contract."""

        def pair(name: str) -> tuple[torch.Tensor | None, torch.Tensor | None]:
            return tensors.get(f"{name}.video"), tensors.get(f"{name}.audio")

        return cls(
            tuple(EncodedCondition(entry.frame, *pair(f"conditions.{i}")) for i, entry in enumerate(conditions)),
            tuple(EncodedReference(entry.kind, *pair(f"references.{j}")) for j, entry in enumerate(references)),
        )

    def named(self) -> dict[str, torch.Tensor]:
        """Return the tensors by their names in a part ``conditioning``."""
        found = {}
        groups: tuple[tuple[str, Sequence[EncodedCondition | EncodedReference]], ...] = (
            ("conditions", self.conditions),
            ("references", self.references),
        )
        for group, entries in groups:
            for number, entry in enumerate(entries):
                for stream, latent in (("video", entry.video), ("audio", entry.audio)):
                    if latent is not None:
                        found[f"{group}.{number}.{stream}"] = latent
        return found

    def facts(self) -> dict[str, Any]:
        """Return the JSON that is needed to send them in a `Denoise`; without what there is none of."""
        said = {
            "conditions": [{"frame": entry.frame} for entry in self.conditions],
            "references": [{"kind": entry.kind} for entry in self.references],
        }
        return {name: entries for name, entries in said.items() if entries}

    def blocks(self) -> list[Block]:
        """Return their sizes in packed order."""
        return [
            *(Block("condition", *_sizes(entry.video, entry.audio), entry.frame) for entry in self.conditions),
            *(
                Block("video" if entry.kind == "video_audio" else entry.kind, *_sizes(entry.video, entry.audio))
                for entry in self.references
            ),
        ]

    def check(self, *, width: int, height: int, frames: int, facts: ModelFacts) -> None:
        """Compare them with the video to come, of ``width`` x ``height`` pixels and ``frames`` pixel frames.

        Raises:
            RequestError: as `check_conditions`, naming both canvases or lengths; ``bad_tensor`` for values that are
                not finite. Alike on all ranks that were given the same.
        """
        named = self.named()
        request = Denoise(
            "denoise",
            width,
            height,
            frames,
            conditions=tuple(Condition(entry.frame) for entry in self.conditions),
            references=tuple(ReferenceEntry(entry.kind) for entry in self.references),
        )
        check_conditions(request, {name: _header(name, latent) for name, latent in named.items()}, facts)
        for name, latent in named.items():
            _check_finite(name, latent)

    def video_rows(
        self, noise: Sequence[torch.Tensor], *, scheduler: Any, patch: int, device: torch.device
    ) -> list[torch.Tensor]:
        """Return the rows of all pictures in packed order, each mixed with its ``noise`` where it is, on ``device``.

        0.999 * latent + 0.001 * noise, in fp32: the scheduler's arithmetic.
        """
        latents = [latent.float() for latent in self._latents("video")]
        return [
            pack_video(scheduler.scale_noise(clean, VISUAL_CONDITION_TIME, drawn.to(clean.device)), patch).to(device)
            for clean, drawn in zip(latents, noise, strict=True)
        ]

    def audio_rows(self, device: torch.device) -> list[torch.Tensor]:
        """Return the rows of all sound in packed order; sound is held clean."""
        return [pack_audio(latent.float()).to(device) for latent in self._latents("audio")]

    def _latents(self, stream: str) -> list[torch.Tensor]:
        found = (getattr(entry, stream) for entry in (*self.conditions, *self.references))
        return [latent for latent in found if latent is not None]


def _sizes(video: torch.Tensor | None, audio: torch.Tensor | None) -> tuple[tuple[int, int, int] | None, int]:
    size = None if video is None else (video.shape[2], video.shape[3], video.shape[4])
    return size, 0 if audio is None else audio.shape[3]


def _header(name: str, latent: torch.Tensor) -> TensorInfo:
    """Return what a safetensors header would say of ``latent``."""
    return TensorInfo(name, _DTYPES.get(latent.dtype, str(latent.dtype)), tuple(latent.shape), 0, latent.nbytes)


def _check_finite(name: str, latent: torch.Tensor) -> None:
    bad = int((~latent.isfinite()).sum())
    if bad:
        raise RequestError(
            "bad_tensor",
            f"{bad} of the {latent.numel()} values are not finite numbers.",
            field=f"parts.conditioning.{name}",
            value=bad,
            remedy="Encode the picture or sound again.",
        )


NOTHING = Conditions()
"""Text alone."""
