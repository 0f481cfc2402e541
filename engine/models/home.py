"""Where a model's tensors stand in its modules, and a home that they leave for a device and come back to.

A tensor may be a *wrapper* around plain ones (a DTensor, torchao's): `plain_parts` and `rebuilt` take it apart and put
it together. What is moved is copied and nothing is ever copied back: use does not change weights. Raises what torch
raises when a device is full; what was not moved yet is then still in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


@dataclass(frozen=True)
class Place:
    """Where a parameter or buffer stands: ``module``'s attribute ``key``; ``name`` is its dotted name in the model."""

    name: str
    module: nn.Module
    key: str

    @property
    def tensor(self) -> torch.Tensor:
        """What stands there now."""
        found: torch.Tensor = self._table[self.key]
        return found

    def put(self, tensor: torch.Tensor) -> None:
        """Let ``tensor`` (see `as_in`) stand there."""
        self._table[self.key] = tensor

    def as_in(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return ``tensor`` as what can stand there: a parameter in a parameter's place."""
        return nn.Parameter(tensor, False) if self.key in self.module._parameters else tensor

    @property
    def _table(self) -> dict[str, Any]:
        return self.module._parameters if self.key in self.module._parameters else self.module._buffers


def places(model: nn.Module) -> Iterator[Place]:
    """Yield where the parameters and buffers of ``model`` stand, shared ones once for each place."""
    for prefix, module in model.named_modules():
        for table in (module._parameters, module._buffers):
            for key, tensor in table.items():
                if tensor is not None:
                    yield Place(f"{prefix}.{key}" if prefix else key, module, key)


def _wraps(tensor: torch.Tensor) -> bool:
    return is_traceable_wrapper_subclass(tensor)


def _taken_apart(wrapper: Any) -> tuple[dict[str, Any], Any]:
    """Return what ``wrapper`` is made of: by attribute, tensors and, in a DTensor, its mesh; and the rest."""
    keys, context = wrapper.__tensor_flatten__()
    return {key: getattr(wrapper, key) for key in keys}, context


def plain_parts(tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the plain tensors that ``tensor`` is made of, by their dotted names in it; itself, named "", if plain."""
    if not _wraps(tensor):
        yield "", tensor.detach()
        return
    inner, _ = _taken_apart(tensor)
    for key, value in inner.items():
        if isinstance(value, torch.Tensor):
            for name, part in plain_parts(value):
                yield f"{key}.{name}" if name else key, part


def rebuilt(tensor: torch.Tensor, parts: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return a tensor made like ``tensor`` of other plain ``parts``, by the names of `plain_parts`."""
    if not _wraps(tensor):
        return parts[""]
    inner, context = _taken_apart(tensor)
    for key, value in inner.items():
        if isinstance(value, torch.Tensor):
            own = {name[len(key) + 1 :]: part for name, part in parts.items() if name.partition(".")[0] == key}
            inner[key] = rebuilt(value, own)
    kind: Any = type(tensor)
    made: torch.Tensor = kind.__tensor_unflatten__(inner, context, tensor.size(), tensor.stride())
    return made


def moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return ``tensor`` on ``device``: itself if it is there."""
    if not _wraps(tensor):
        return tensor.to(device)
    parts = dict(plain_parts(tensor))
    if all(part.device == device for part in parts.values()):
        return tensor
    return rebuilt(tensor, {name: part.to(device) for name, part in parts.items()})


def local_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes that this process holds of ``tensor``."""
    return sum(part.nbytes for _, part in plain_parts(tensor))


def device_types(tensor: torch.Tensor) -> set[str]:
    """Return the types of the devices on which ``tensor`` is."""
    return {part.device.type for _, part in plain_parts(tensor)}


class Home:
    """Some or all tensors of a model, where they rest."""

    def __init__(self, model: nn.Module, belongs: Callable[[str], bool] = lambda name: True) -> None:
        """Take over the parameters and buffers of ``model`` whose dotted names ``belongs`` admits."""
        self._rest = [(place, place.tensor) for place in places(model) if belongs(place.name)]
        # Weights that a layer computes before each forward (torch's weight_norm) lie outside its parameters.
        self._plain = [
            (module, name, value)
            for module in model.modules()
            for name, value in vars(module).items()
            if isinstance(value, torch.Tensor)
        ]

    def leave_for(self, device: torch.device) -> bool:
        """Put copies on ``device`` in the tensors' places; True when all are there."""
        for place, tensor in self._rest:
            copy = moved(tensor, device)
            place.put(tensor if copy is tensor else place.as_in(copy))
        return True

    def come_back(self) -> None:
        """Put the tensors themselves back; the copies are free."""
        for place, tensor in self._rest:
            place.put(tensor)
        for module, name, tensor in self._plain:
            setattr(module, name, tensor)

    def devices(self) -> set[str]:
        """Types of the devices on which the tensors are now."""
        return {kind for place, _ in self._rest for kind in device_types(place.tensor)}

    @property
    def bytes(self) -> int:
        """Bytes of the tensors."""
        return sum(local_bytes(tensor) for _, tensor in self._rest)
