"""Compiling the transformer's repeated blocks.

The forward of each block is compiled; all blocks share one compilation. Attention stays outside of the compiled
regions, with its collectives and with the number of used rows: a block is four graphs, two before its attention and
two after it. Hooks of blocks (the gathering of sharded weights among them) stay outside too. What is compiled depends
on the rows that a rank holds: with a pinned length every prompt runs the same code, without one a second length
compiles a region for any length. A first run compiles the graphs that see the table of modulations twice: its first
step has one noise level, the others have several. The text refiner, whose rows are the prompt's, is not compiled.
Promise: in fp32 results equal the uncompiled model's to 1e-5. Raises what torch's compiler raises, at a forward.
"""

from __future__ import annotations

from typing import Any

import torch

from .attention import SequenceAttnProcessor


def compile_blocks(transformer: Any, *, backend: str = "inductor") -> None:
    """Compile the blocks of ``transformer`` (after `apply_sequence_parallel`) when they first run."""
    for block in transformer.transformer_blocks:
        processor = block.attn.processor
        assert isinstance(processor, SequenceAttnProcessor), "sequence parallelism comes first"
        processor.compiled = True
        block.forward = torch.compile(block.forward, backend=backend)
