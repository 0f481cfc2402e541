"""The tensors of the layers that every component is made of, as (name, shape) of parameters in the model's order."""

from __future__ import annotations

from collections.abc import Iterator

Shape = tuple[int, ...]
Named = Iterator[tuple[str, Shape]]


def linear(name: str, inputs: int, outputs: int, *, bias: bool = True) -> Named:
    """A linear layer."""
    yield f"{name}.weight", (outputs, inputs)
    if bias:
        yield f"{name}.bias", (outputs,)


def norm(name: str, width: int, *, bias: bool = False) -> Named:
    """A norm of ``width`` channels with a weight."""
    yield f"{name}.weight", (width,)
    if bias:
        yield f"{name}.bias", (width,)


def conv(name: str, inputs: int, outputs: int, kernel: Shape) -> Named:
    """A convolution."""
    yield f"{name}.weight", (outputs, inputs, *kernel)
    yield f"{name}.bias", (outputs,)


def inside(prefix: str, tensors: Named) -> Named:
    """The tensors of a child called ``prefix``."""
    for name, shape in tensors:
        yield f"{prefix}.{name}", shape
