"""A rank's device, compute type and threads. Raises `ConfigError` for a device that is not there."""

from __future__ import annotations

import os

import torch

from .contract.errors import ConfigError

_INSTRUCTION_LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
"""With these a user keeps oneDNN, which runs torch's convolutions on a CPU, from a part of the CPU's instructions."""
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def pick_device(name: str, *, local_rank: int) -> torch.device:
    """Return this rank's device and make it the current one.

    Args:
        name: a device type, or ``auto``: the accelerator if there is one, else the CPU.

    Raises:
        ConfigError: ``config_bad_value``.
    """
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    found = "cpu" if accelerator is None else accelerator.type
    kind = found if name == "auto" else name
    if kind == "cpu":
        return torch.device("cpu")
    if kind != found:
        raise ConfigError(
            "config_bad_value",
            f"There is no {kind!r} device; torch finds {found!r}.",
            field="device",
            value=name,
            remedy="Use --device auto, or install the torch build for the device.",
        )
    count = torch.accelerator.device_count()
    if local_rank >= count:
        raise ConfigError(
            "config_bad_value",
            f"There are {count} {kind} devices, too few for rank {local_rank}.",
            field="nproc_per_node",
            value=local_rank + 1,
            remedy=f"Use --nproc-per-node {count} or less.",
        )
    torch.accelerator.set_device_index(local_rank)
    return torch.device(kind, local_rank)


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the compute type; ``auto`` is bf16 on an accelerator and fp32 on a CPU."""
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    return _DTYPES[name]


def share_cores(ranks: int) -> None:
    """Give this rank its part of the host's cores, unless the user set OMP_NUM_THREADS."""
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // ranks))


def convolves_with_avx512(device: torch.device) -> bool:
    """Whether ``device`` is a CPU whose convolutions are sure to use AVX-512."""
    limited = any(name in os.environ for name in _INSTRUCTION_LIMITS)
    return device.type == "cpu" and not limited and torch.backends.cpu.get_cpu_capability().startswith("AVX512")
