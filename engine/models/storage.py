"""Weights of the blocks' linear layers kept in fewer bits than they are computed in (``--block-storage``).

- ``fp8``: float8_e4m3fn without scales (three bits behind the point down to 2**-6, fewer below, 0 under 2**-10); a
  layer's weight is brought to the compute type for the time of its product. What is kept never changes, so that no
  error in a forward can leave it in another type.
- ``int8``: torchao's weight-only quantization, a scale for each row.

Which tensors those are and what they take is `placement.stored`. One weight at a time is converted, as it is read. The
product needs a copy of one layer's weight in the compute type. Raises `ConfigError`: ``missing_package`` without
torchao, ``start_failed`` for a device that cannot do it (`check_storage`).
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from diffusers.hooks import HookRegistry
from diffusers.hooks.layerwise_casting import LayerwiseCastingHook
from torch import nn

from ..contract.errors import ConfigError
from ..packages import package_for_option
from ..placement import is_reduced

FP8 = torch.float8_e4m3fn
_HOOK = "layerwise_casting"
"""The name under which diffusers' models look for a layer's compute type (`get_parameter_dtype`)."""


class _Unpacking(LayerwiseCastingHook):  # type: ignore[misc]
    """diffusers' hook of a layer that is kept in another type, without its copying to and fro.

    That would leave the memory that the weight was put in (a buffer that blocks stream through) behind, and after an
    error the weight in the compute type.
    """

    def __init__(self, compute: torch.dtype) -> None:
        super().__init__(FP8, compute, non_blocking=False)

    def initialize_hook(self, module: nn.Module) -> nn.Module:
        """Leave the weight as it is: it was converted when it was read."""
        return module

    def pre_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Leave the weight as it is."""
        return args, kwargs

    def new_forward(self, module: nn.Linear, rows: torch.Tensor) -> torch.Tensor:
        """Return the layer's output for ``rows`` [..., in]."""
        return nn.functional.linear(rows, module.weight.to(self.compute_dtype), module.bias)

    def post_forward(self, module: nn.Module, output: Any) -> Any:
        """Leave the weight as it is."""
        return output


def reduce(weight: torch.Tensor, storage: str) -> torch.Tensor:
    """Return ``weight`` [out, in] as it is kept; on the meta device too, where it has no bytes.

    Args:
        storage: ``fp8`` or ``int8``.
    """
    if storage == "fp8":
        # What is too large for it would become NaN.
        limit = torch.finfo(FP8).max
        return weight.clamp(-limit, limit).to(FP8)
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    # torchao would set the compiler's options for the whole process.
    quantize_(layer, Int8WeightOnlyConfig(set_inductor_config=False))
    return layer.weight.detach()


def unpack_in_forwards(model: nn.Module, component: str, *, storage: str, dtype: torch.dtype) -> None:
    """Let the layers of ``model`` whose weights are kept in ``storage`` compute in ``dtype``.

    Raises:
        ConfigError: ``start_failed`` for a layer that is no plain linear one.
    """
    if storage != "fp8":  # torchao's weights know their own products
        return
    for name, layer in model.named_modules():
        weight = getattr(layer, "weight", None)
        if isinstance(weight, torch.Tensor) and is_reduced(component, f"{name}.weight", weight.shape):
            if type(layer) is not nn.Linear:  # of a component that brings code of its own
                raise _cannot(f"{component}.{name} is no plain linear layer, so that it cannot be kept in fp8", storage)
            HookRegistry.check_if_exists_or_initialize(layer).register_hook(_Unpacking(dtype), _HOOK)


def check_storage(storage: str, device: torch.device, dtype: torch.dtype) -> None:
    """Convert a small weight on ``device`` and compute with it: an error now instead of one in every job.

    Raises:
        ConfigError: ``missing_package``, ``start_failed``.
    """
    if storage == "full":
        return
    logging.getLogger("torchao").setLevel(logging.ERROR)
    layer = nn.Linear(16, 16, bias=False, device=device, dtype=dtype)
    try:
        layer.weight = nn.Parameter(reduce(layer.weight.detach(), storage), requires_grad=False)
        unpack = _Unpacking(dtype).new_forward if storage == "fp8" else nn.Linear.forward
        unpack(layer, torch.ones(1, 16, device=device, dtype=dtype))
    except ImportError as error:
        raise package_for_option("torchao", field="block_storage", value=storage, reason=str(error)) from error
    except (RuntimeError, NotImplementedError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise _cannot(f"{device.type} cannot compute with weights kept in {storage}: {reason}", storage) from error


def _cannot(message: str, storage: str) -> ConfigError:
    remedy = "Use another --block-storage, such as full."
    return ConfigError("start_failed", f"{message}.", field="block_storage", value=storage, remedy=remedy)
