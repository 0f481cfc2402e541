"""A job's prepared media on one rank: read from the input parts, and what each of them becomes.

The parts are ``keyframes.<i>``, ``references.<j>``, ``guides.<i>`` and ``source``, each with ``frames`` [F, H, W, 3]
uint8 and ``waveform`` [2, N] fp32 as far as there are any; files are mapped, not read. Promise: from the request and
the parts' shapes alone every rank knows all sizes before anything is encoded. Raises nothing of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from .conditioning import Conditions, EncodedCondition, EncodedReference
from .contract import geometry
from .contract.limits import ModelFacts
from .contract.media import Condition, Guide, Keyframe, Reference
from .contract.media import EncodedReference as ReferenceEntry
from .contract.media_limits import guide_audio_latents
from .contract.requests import EncodeMedia, EncodePrompt, Generate
from .packing import Block
from .stages.base import Latents, Prepared
from .stages.encode_media import EncodedMedium
from .stages.encode_prompt import Shown

BringsMedia = EncodePrompt | EncodeMedia | Generate


@dataclass(frozen=True)
class JobMedia:
    """The keyframes, references and guides of a request.

    Attributes:
        frames: pixel frames of the video to come; 0 when there is nothing to hold on to.
        keyframes, references, guides: what the request says and the medium, each in order.
    """

    frames: int
    keyframes: tuple[tuple[Keyframe, Prepared], ...] = ()
    references: tuple[tuple[Reference, Prepared], ...] = ()
    guides: tuple[tuple[Guide, Prepared], ...] = ()

    @classmethod
    def load(cls, request: BringsMedia, inputs: Mapping[str, Path]) -> JobMedia:
        """Map the parts of ``request``; the server resolved its frames and the guides' starts."""
        keyframes = () if isinstance(request, EncodeMedia) else request.keyframes
        references = () if isinstance(request, EncodeMedia) else request.references
        guides = () if isinstance(request, EncodePrompt) else request.guides
        return cls(
            request.frames or 0,
            tuple((entry, load_prepared(inputs[f"keyframes.{i}"])) for i, entry in enumerate(keyframes)),
            tuple((entry, load_prepared(inputs[f"references.{j}"])) for j, entry in enumerate(references)),
            tuple((entry, load_prepared(inputs[f"guides.{i}"])) for i, entry in enumerate(guides)),
        )

    def shown(self) -> list[Shown]:
        """Return what the text encoder is shown; guides are not."""
        return [
            *(Shown("image", medium) for _, medium in self.keyframes),
            *(Shown(entry.kind, medium) for entry, medium in self.references),
        ]

    def media(self) -> list[Prepared]:
        """Return everything to encode, in packed order."""
        return [medium for _, medium in (*self.keyframes, *self.guides, *self.references)]

    def conditions(self) -> tuple[Condition, ...]:
        """Return where each keyframe and guide starts."""
        return (
            *(Condition(0 if entry.at == "first" else self.frames - 1) for entry, _ in self.keyframes),
            *(Condition(entry.frame or 0) for entry, _ in self.guides),
        )

    def reference_entries(self) -> tuple[ReferenceEntry, ...]:
        """Return the kind of each reference."""
        return tuple(
            ReferenceEntry("video_audio" if entry.kind == "video" and medium.waveform is not None else entry.kind)
            for entry, medium in self.references
        )

    def blocks(self, facts: ModelFacts) -> list[Block]:
        """Return the sizes that the latents will have, in packed order."""
        made_of = [medium for _, medium in (*self.keyframes, *self.guides)]
        return [
            *(
                Block("condition", *_sizes(medium, facts), entry.frame)
                for entry, medium in zip(self.conditions(), made_of, strict=True)
            ),
            *(Block(entry.kind, *_sizes(medium, facts)) for entry, medium in self.references),
        ]

    def assemble(self, encoded: Sequence[EncodedMedium]) -> Conditions:
        """Return what the encoded `media` become; a guide's sound is cut to the timeline."""
        conditions = self.conditions()
        cut = [
            entry.audio
            if entry.audio is None
            else entry.audio[..., : guide_audio_latents(start=condition.frame, frames=self.frames)]
            for condition, entry in zip(conditions, encoded, strict=False)
        ]
        return Conditions(
            tuple(
                EncodedCondition(condition.frame, entry.video, audio)
                for condition, entry, audio in zip(conditions, encoded, cut, strict=False)
            ),
            tuple(
                EncodedReference(entry.kind, latents.video, latents.audio)
                for entry, latents in zip(self.reference_entries(), encoded[len(conditions) :], strict=True)
            ),
        )


def load_prepared(path: Path) -> Prepared:
    """Map one prepared part."""
    tensors = load_file(path)
    return Prepared(tensors.get("frames"), tensors.get("waveform"))


def _sizes(medium: Prepared, facts: ModelFacts) -> tuple[tuple[int, int, int] | None, int]:
    """Return the size of a medium's video latents and the length of its audio latents."""
    audio = 0 if medium.waveform is None else geometry.latents_of_samples(medium.waveform.shape[1])
    if medium.frames is None:
        return None, audio
    count, height, width, _ = medium.frames.shape
    return geometry.latents_of_pictures(count, height, width, ratio=facts.spatial_ratio), audio


def fit_source(medium: Prepared, *, width: int, height: int, frames: int) -> Prepared:
    """Return a clip to edit as long as ``frames``, a count on the lattice, and its sound as long as the pictures.

    Its last picture is held and its sound is followed by silence; without pictures it is black, without sound silent.
    """
    samples = geometry.audio_latents(frames) * geometry.SAMPLES_PER_AUDIO_LATENT
    pictures = medium.frames
    if pictures is None:
        pictures = torch.zeros((1, height, width, 3), dtype=torch.uint8)
    missing = frames - pictures.shape[0]
    if missing > 0:
        pictures = torch.cat([pictures, pictures[-1:].expand(missing, -1, -1, -1)])
    waveform = medium.waveform
    if waveform is None:
        waveform = torch.zeros((geometry.AUDIO_CHANNELS, samples))
    return Prepared(pictures[:frames], F.pad(waveform[:, :samples], (0, max(0, samples - waveform.shape[1]))))


def source_latents(encoded: EncodedMedium) -> Latents:
    """Return the latents of a clip that `fit_source` prepared."""
    assert encoded.video is not None
    assert encoded.audio is not None
    return Latents(encoded.video, encoded.audio)
