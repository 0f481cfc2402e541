"""Loading the components of a checkpoint: only the tensors that this rank keeps, one by one.

Of a component that is divided among ranks (`Division`), a rank reads its own slices alone. Weights that are kept in
fewer bits (`storage`) are converted as they are read; those that others read (`Elsewhere`) stay without memory.
Promise: models are built without memory for their weights, then filled; the result, in full storage, equals what
diffusers' ``load_components(dtype=...)`` gives, bit for bit and type for type, with the text encoder cut after layer
50.
Raises `ConfigError` (``checkpoint_invalid``) naming tensor and file. A failure leaves nothing behind.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from accelerate import init_empty_weights
from diffusers import (
    AutoencoderKLMiniMaxH3,
    AutoencoderKLMiniMaxH3Audio,
    MiniMaxH3Scheduler,
    MiniMaxH3Transformer3DModel,
)
from safetensors import SafetensorError, safe_open
from transformers import AutoTokenizer

from ..checkpoint import Checkpoint, Component
from ..contract.errors import ConfigError
from ..placement import is_reduced, stays_exact
from ..rank_options import WEIGHTED
from .bundle import VAES, Models
from .own_code import own_class, trust
from .pieces import Division, Piece
from .processor import load_processor
from .storage import reduce, unpack_in_forwards
from .text_encoder import build_text_encoder, checkpoint_name

OnBytes = Callable[[str, int, int], None]
"""(component, bytes done, bytes in all), over all components this rank keeps."""
Elsewhere = Callable[[str, str], bool]
"""Whether the tensor of a component, by its name in the model, is read by another rank, which shares it."""

_NOTHING_DIVIDED: Mapping[str, Division] = MappingProxyType({})
_CLASSES: dict[str, Any] = {
    "transformer": MiniMaxH3Transformer3DModel,
    "transformer_ref": MiniMaxH3Transformer3DModel,
    "vae": AutoencoderKLMiniMaxH3,
    "audio_vae": AutoencoderKLMiniMaxH3Audio,
}


def load_models(
    checkpoint: Checkpoint,
    *,
    device: torch.device,
    dtype: torch.dtype,
    keep: frozenset[str],
    on_bytes: OnBytes,
    divisions: Mapping[str, Division] = _NOTHING_DIVIDED,
    storage: str = "full",
    from_host: frozenset[str] = frozenset(),
    elsewhere: Elsewhere = lambda component, tensor: False,
) -> Models:
    """Load the components in ``keep`` to ``device``; VAEs to the CPU, whence their owner (``vae.staging``) takes them.

    Args:
        dtype: compute type; modules that diffusers keeps in fp32 stay so (`placement.stays_exact`).
        keep: names of components with weights that ``checkpoint`` was opened for.
        on_bytes: called after each tensor.
        divisions: how components are divided among ranks, by name; the others are loaded whole.
        storage: how the weights of `placement.is_reduced` are kept: ``full``, ``fp8`` or ``int8``.
        from_host: components that are loaded to the CPU too, for an owner that brings them to the device.
        elsewhere: which tensors are not read and stay on the meta device, in the type that they would be kept in.

    Raises:
        ConfigError: ``checkpoint_invalid``.
    """
    models = Models(
        facts=checkpoint.facts,
        dtype=dtype,
        tokenizer=_load_small(checkpoint, "tokenizer", AutoTokenizer),
        scheduler=_load_small(checkpoint, "scheduler", MiniMaxH3Scheduler),
        audio_scheduler=_load_small(checkpoint, "audio_scheduler", MiniMaxH3Scheduler),
    )
    built = {
        name: _Built.from_component(checkpoint.components[name], divisions.get(name), storage, elsewhere)
        for name in WEIGHTED
        if name in keep
    }
    processor = checkpoint.small.get("processor")
    if processor is not None:
        models.load_processor = functools.partial(load_processor, processor)
    progress = _Progress(on_bytes, sum(part.bytes for part in built.values()))
    for name, part in built.items():
        where = torch.device("cpu") if name in VAES or name in from_host else device
        setattr(models, name, part.fill(device=where, dtype=dtype, progress=progress))
    return models


class _Progress:
    """Adds up bytes over components."""

    def __init__(self, on_bytes: OnBytes, total: int) -> None:
        self._on_bytes = on_bytes
        self._total = total
        self._done = 0

    def add(self, component: str, count: int) -> None:
        self._done += count
        self._on_bytes(component, self._done, self._total)


def _load_small(checkpoint: Checkpoint, name: str, cls: Any) -> Any:
    """Load a component without weights; None when the checkpoint was opened for stages that do not need it."""
    component = checkpoint.small.get(name)
    if component is None:
        return None
    if cls is AutoTokenizer:  # it finds the class by itself
        options = trust(component.own_code)
    else:
        cls, options = own_class(name, component.own_code, cls), {}
    try:
        return cls.from_pretrained(component.folder, local_files_only=True, **options)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise _invalid(name, None, f"{name}/ cannot be read: {error}") from error


@dataclass(frozen=True)
class _Built:
    """A model without memory for its weights, and what this rank reads into it.

    Attributes:
        named: the name in the checkpoint of each tensor of the model.
        pieces: what is read of the tensors that are not read whole, by the model's names.
        storage, elsewhere: see `load_models`.
    """

    component: Component
    model: Any
    named: Mapping[str, str]
    division: Division | None
    pieces: Mapping[str, Piece]
    storage: str
    elsewhere: Elsewhere

    @classmethod
    def from_component(
        cls, component: Component, division: Division | None, storage: str, elsewhere: Elsewhere
    ) -> _Built:
        model = _build(component)
        text = component.name == "text_encoder"
        named = {name: (checkpoint_name(name) if text else name) for name in model.state_dict()}
        _check_tensors(component, model, named)
        pieces = {}
        if division is not None:
            division.apply(model)
            for name, stored in named.items():
                piece = division.piece(name, component.tensors[stored].info.shape)
                if piece is not None:
                    pieces[name] = piece
        return cls(component, model, named, division, pieces, storage, elsewhere)

    @property
    def bytes(self) -> int:
        """Bytes of the files that this rank reads."""
        return sum(self.bytes_of(name) for name in self.named)

    def bytes_of(self, name: str) -> int:
        """Bytes that are read for the model's tensor ``name``."""
        if self.elsewhere(self.component.name, name):
            return 0
        stored = self.component.tensors[self.named[name]]
        piece = self.pieces.get(name)
        return stored.bytes if piece is None else stored.bytes // math.prod(stored.info.shape) * piece.numel

    def fill(self, *, device: torch.device, dtype: torch.dtype, progress: _Progress) -> Any:
        """Read the weights and return the model, ready for inference on ``device``."""
        by_file: dict[Path, list[str]] = {}
        for name, stored in self.named.items():
            by_file.setdefault(self.component.tensors[stored].file, []).append(name)
        state: dict[str, torch.Tensor] = {}
        for file, names in by_file.items():
            with _open_weights(self.component, file) as tensors:
                for name in names:
                    wanted = torch.float32 if stays_exact(self.component.name, name) else dtype
                    state[name] = self._keep(name, tensors, device=device, dtype=wanted)
                    progress.add(self.component.name, self.bytes_of(name))
        self.model.load_state_dict(state, assign=True)
        if any(tensor.is_meta for tensor in state.values()):
            _place_buffers(self.model, device)
        else:
            self.model.to(device)
        unpack_in_forwards(self.model, self.component.name, storage=self.storage, dtype=dtype)
        return self.model.requires_grad_(False).eval()

    def _keep(self, name: str, tensors: Any, *, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        """Read a tensor and return it as it is kept; nothing else of it stays."""
        where = torch.device("meta") if self.elsewhere(self.component.name, name) else device
        tensor = _place(self._read(name, tensors), device=where, dtype=dtype)
        if self.storage != "full" and is_reduced(self.component.name, name, tensor.shape):
            tensor = reduce(tensor, self.storage)
        return self._wrap(name, tensor)

    def _read(self, name: str, tensors: Any) -> torch.Tensor:
        piece = self.pieces.get(name)
        stored = self.named[name]
        if self.elsewhere(self.component.name, name):
            info = self.component.tensors[stored].info
            return torch.empty(info.shape if piece is None else piece.shape, device="meta")
        tensor: torch.Tensor = tensors.get_tensor(stored) if piece is None else piece.read(tensors.get_slice(stored))
        return tensor

    def _wrap(self, name: str, local: torch.Tensor) -> torch.Tensor:
        return local if self.division is None else self.division.wrap(name, local)


def _build(component: Component) -> Any:
    """Return the model of ``component`` with its weights on the meta device and its computed buffers real.

    Children that no served stage needs are None.
    """
    with init_empty_weights(include_buffers=False), warnings.catch_warnings():
        # torch's old weight_norm, which the audio VAE uses, warns of its successor.
        warnings.simplefilter("ignore", FutureWarning)
        try:
            if component.name == "text_encoder":
                return build_text_encoder(component.folder, component.own_code)
            cls = own_class(component.name, component.own_code, _CLASSES[component.name])
            model = cls.from_config(dict(component.config))
        except (OSError, ValueError, TypeError, KeyError, RuntimeError) as error:
            raise _invalid(
                f"{component.name}/config.json", None, f"No {component.name} can be built from its config.json: {error}"
            ) from error
    for child in component.left_out:
        setattr(model, child, None)
    return model


@contextmanager
def _open_weights(component: Component, file: Path) -> Iterator[Any]:
    """Open a safetensors file; a fault while it is read names it."""
    try:
        with safe_open(file, framework="pt", device="cpu") as tensors:
            yield tensors
    except (OSError, SafetensorError) as error:
        raise _invalid(f"{component.name}/{file.name}", None, f"{file.name} cannot be read: {error}") from error


def _place(tensor: torch.Tensor, *, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Return ``tensor`` on ``device``, cast when it is floating.

    On the CPU in the stored type it stays a view of the file, as in diffusers: ranks then share its pages, and the
    last bits agree, which depend on where in memory a weight is aligned.
    """
    return tensor.to(device=device, dtype=dtype if tensor.is_floating_point() else tensor.dtype)


def _place_buffers(model: Any, device: torch.device) -> None:
    """Put what was computed when the model was built, not read, on ``device``."""
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if not buffer.is_meta:
                setattr(module, name, buffer.to(device))


def _check_tensors(component: Component, model: Any, named: dict[str, str]) -> None:
    """Check that the checkpoint holds the model's tensors, these alone, and in the right shapes."""
    for name, value in model.state_dict().items():
        stored = component.tensors.get(named[name])
        if stored is None:
            raise _invalid(f"{component.name}/", named[name], f"The weights of {component.name} lack {named[name]}.")
        if stored.info.shape != tuple(value.shape):
            raise _invalid(
                f"{component.name}/{stored.file.name}",
                named[name],
                f"{named[name]} is {list(stored.info.shape)}, its config.json wants {list(value.shape)}.",
            )
    extra = component.tensors.keys() - set(named.values())
    if extra:
        tensor = min(extra)
        raise _invalid(
            f"{component.name}/{component.tensors[tensor].file.name}",
            tensor,
            f"{tensor} belongs to no layer that {component.name}/config.json describes.",
        )


def _invalid(field: str, value: object, message: str) -> ConfigError:
    return ConfigError(
        "checkpoint_invalid",
        message,
        field=field,
        value=value,
        remedy="Download the component again, or check that its config.json belongs to its weights.",
    )
