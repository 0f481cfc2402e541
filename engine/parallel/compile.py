"""Compiling the transformer's repeated blocks.

The forward of each block is compiled; all blocks share one compilation. Attention stays outside of the compiled
regions, with its collectives and with the number of used rows: a block is four graphs, two before its attention and
two after it. Hooks of blocks (the gathering of sharded weights among them) stay outside too. What is compiled depends
on the rows that a rank holds: with a pinned length every prompt runs the same code, without one a second length
compiles a region for any length. A first run compiles the graphs that see the table of modulations twice: its first
step has one noise level, the others have several. The text refiner, whose rows are the prompt's, is not compiled.
Promise: in fp32 results equal the uncompiled model's to 1e-5. Raises `ConfigError` (``start_failed``) when nothing can
be compiled on this machine (`check_compiler`); what torch's compiler cannot do with a block is raised at a forward.
"""

from __future__ import annotations

from typing import Any

import torch

from ..contract.errors import ConfigError
from .attention import SequenceAttnProcessor


def check_compiler(device: torch.device) -> None:
    """Compile one addition for ``device`` and run it: seconds now instead of an error in every job.

    Raises:
        ConfigError: ``start_failed``.
    """
    try:
        torch.compile(_add_one)(torch.zeros(8, device=device))
    except (RuntimeError, OSError) as error:
        compiler = "a C++ compiler (g++)" if device.type == "cpu" else "what torch.compile needs (Triton, a C compiler)"
        raise ConfigError(
            "start_failed",
            f"torch.compile does not work here: {str(error).partition(chr(10))[0]}",
            field="compile",
            value=True,
            remedy=f"Install {compiler}, or leave --compile out.",
        ) from error


def _add_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def compile_blocks(transformer: Any, *, backend: str = "inductor") -> None:
    """Compile the blocks of ``transformer`` (after `apply_sequence_parallel`) when they first run."""
    for block in transformer.transformer_blocks:
        processor = block.attn.processor
        assert isinstance(processor, SequenceAttnProcessor), "sequence parallelism comes first"
        processor.compiled = True
        block.forward = torch.compile(block.forward, backend=backend)
