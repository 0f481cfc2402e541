"""Collectives that torch issues inside a model, seen as what they are.

Tensor parallelism and sharded weights communicate from within a forward, past this package's own collectives.
`guard_collectives` makes a model tell of them as those do: the mesh is dirty as soon as a forward begins, and a lost
or aborted group is a `DataGroupError`, not the model's own fault. Raises what the model raises.
"""

from __future__ import annotations

import functools
from typing import Any

import torch.distributed as dist

from .collectives import DataGroupError
from .mesh import Mesh

_GLOO = "gloo/"
"""Stands in every message of gloo's (a source file); it raises plain RuntimeErrors."""


def guard_collectives(model: Any, mesh: Mesh) -> None:
    """Guard the forward of ``model``, whose layers communicate over groups of ``mesh``."""
    inner = model.forward

    @functools.wraps(inner)
    def forward(*args: Any, **kwargs: Any) -> Any:
        mesh.dirty = True
        try:
            return inner(*args, **kwargs)
        except DataGroupError:
            raise
        except RuntimeError as error:
            if isinstance(error, dist.DistError) or _GLOO in str(error):
                raise DataGroupError(str(error)) from error
            raise

    model.forward = forward
