"""LATENT ↔ one safetensors file: both streams, their masks, and what they are. Knows nothing of ComfyUI's modules.

The same file is the engine's part ``latents`` (`engine.contract.latent_file`). Raises `RequestError`, and OSError when
the file cannot be read or written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from ..engine.contract.geometry import frames_of_latents
from ..engine.contract.latent_file import (
    MASKS,
    PLAIN_MASK,
    describe,
    fitting_texts,
    read_facts,
    read_latent_header,
)
from .convert import latent_streams, own_length, told_own_length, with_own_length

SUFFIX = ".h3latent.safetensors"
"""Of the files that H3EngineSaveLatent writes."""
_MASK = "noise_mask"


def save_latent(path: Path, latent: Mapping[str, Any], *, texts: Mapping[str, str]) -> list[str]:
    """Write a LATENT to ``path``; ``texts`` are further entries of the metadata.

    Returns:
        the names of those that were left out, because no reader would take a file with them.

    Raises:
        RequestError: as `latent_streams`.
    """
    streams = latent_streams({key: value for key, value in latent.items() if key != _MASK})
    tensors = dict(zip(("video", "audio"), streams, strict=True))
    mask = latent.get(_MASK)
    if mask is not None:
        nested = getattr(mask, "is_nested", False)
        tensors |= zip(MASKS, mask.unbind(), strict=True) if nested else {PLAIN_MASK: mask}
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    fitting = fitting_texts(texts)
    length = streams[0].shape[2]
    own = own_length(latent, frames_of_latents(length))
    save_file(plain, path, {**describe(length, own=own), **fitting})
    return [name for name in texts if name not in fitting]


def load_latent(
    path: Path, *, nested: Callable[[Sequence[torch.Tensor]], Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read a LATENT; ``nested`` makes ComfyUI's pair of tensors.

    Returns:
        the LATENT, and what its file says of it (frames, seconds, fps, perhaps seed).

    Raises:
        RequestError: ``bad_tensor`` when it holds no latent.
    """
    with path.open("rb") as file:
        header = read_latent_header(file, path.stat().st_size, field="file")
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in header}
        facts = read_facts(file.metadata())
    latent: dict[str, Any] = {"samples": nested([tensors["video"], tensors["audio"]])}
    if all(name in tensors for name in MASKS):
        latent[_MASK] = nested([tensors[name] for name in MASKS])
    elif PLAIN_MASK in tensors:
        latent[_MASK] = tensors[PLAIN_MASK]
    whole = frames_of_latents(tensors["video"].shape[2])
    return with_own_length(latent, told_own_length(facts, whole)), facts
