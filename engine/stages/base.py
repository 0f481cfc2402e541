"""What the stages share: the tensors that pass between them and the context a stage runs in.

A stage is a plain function of a `StageContext`, its inputs and its request fields. It knows nothing of sockets, files,
processes or torch.distributed: the runner gives it ``report`` and ``boundary`` and, where a model is parallel, a model
that was wrapped from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from ..offload.modulation import Modulation

if TYPE_CHECKING:
    from ..models.bundle import Models
    from ..offload.owner import ModelOwner
    from ..vae.crew import VaeCrew


@dataclass(frozen=True)
class PromptEmbeds:
    """Conditioning. ``prompt_embeds`` [1, L, text_dim]; ``token_tags`` [L] int64, 1 = text, 0 = vision."""

    prompt_embeds: torch.Tensor
    token_tags: torch.Tensor


@dataclass(frozen=True)
class Prepared:
    """A medium, read and resampled: ``frames`` [F, H, W, 3] uint8 at 24 fps in its final size, ``waveform`` [2, N] fp32
    at 32 kHz; None: it has none.
    """

    frames: torch.Tensor | None = None
    waveform: torch.Tensor | None = None


@dataclass(frozen=True)
class Latents:
    """Both streams in ComfyUI's layout: ``video`` [1, C, T, H/16, W/16], ``audio`` [1, Ca, 2, A]; normalised, fp32."""

    video: torch.Tensor
    audio: torch.Tensor


@dataclass(frozen=True)
class StageContext:
    """Where a stage runs.

    Attributes:
        models: the loaded components; a component this rank does not hold is None.
        device: the rank's device.
        report: (step, total) after each step or chunk. Rank-local, must not block.
        boundary: all ranks call it the same number of times, before each step or chunk; raises `JobCancelled`, or the
            error of whichever rank failed, on every rank together.
        vaes: the owner of the VAEs, through which alone they are used; None where no stage uses one.
        owner: has the text encoder and the transformers on the device while they are used (`using`); None: they are
            there.
        modulation: how the transformers' blocks are modulated; it keeps its tables from one run to the next.
    """

    models: Models
    device: torch.device
    report: Callable[[int, int], None]
    boundary: Callable[[], None]
    vaes: VaeCrew | None = None
    modulation: Modulation = field(default_factory=Modulation)
    owner: ModelOwner | None = None

    @contextmanager
    def using(self, name: str, *, stage: str) -> Iterator[Any]:
        """Have the component ``name`` (no VAE) on the device inside the block; None if this rank does not hold it.

        Raises:
            JobError: ``out_of_memory`` in ``stage``, on this rank alone.
        """
        if self.owner is None:
            yield getattr(self.models, name)
            return
        with self.owner.using(name, stage=stage) as model:
            yield model
