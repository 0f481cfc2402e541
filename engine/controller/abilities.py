"""What this engine cannot do for a request, beyond its stages: said before a rank wakes.

The packages of its environment, the partitions that it has loaded, the parts of its checkpoint. Raises `RequestError`.
"""

from __future__ import annotations

from .. import packages
from ..checkpoint import Checkpoint
from ..contract.errors import RequestError
from ..contract.requests import Denoise, EncodePrompt, Generate, Request


def check_abilities(request: Request, checkpoint: Checkpoint) -> None:
    """Check that this engine has what ``request``, whose stages it serves, needs.

    Raises:
        RequestError: ``partition_not_loaded``, ``wrong_model`` without a processor, ``missing_package``.
    """
    if isinstance(request, (Denoise, Generate)):
        _check_partition(bool(request.references), checkpoint)
    if isinstance(request, (EncodePrompt, Generate)):
        _check_vision(request, checkpoint)


def _check_partition(references: bool, checkpoint: Checkpoint) -> None:
    wanted = "transformer_ref" if references else "transformer"
    if wanted not in checkpoint.partitions:
        raise RequestError(
            "partition_not_loaded",
            f"A video {'with' if references else 'without'} references is made by the partition {wanted}, which this "
            "engine has not loaded.",
            field="request.references",
            value=", ".join(checkpoint.partitions),
            remedy=f"Use a checkpoint that has {wanted}/, and start the engine with --partitions that name it.",
        )


def _check_vision(request: EncodePrompt | Generate, checkpoint: Checkpoint) -> None:
    seen = [f"request.keyframes[{index}]" for index in range(len(request.keyframes))]
    seen += [f"request.references[{i}]" for i, reference in enumerate(request.references) if reference.kind != "audio"]
    if not seen:
        return
    if "processor" not in checkpoint.small:
        raise RequestError(
            "wrong_model",
            "The text encoder of this checkpoint cannot see pictures: it has no processor/.",
            field=seen[0],
            remedy="Use a whole checkpoint, or start the engine with --component-dir processor=DIR.",
        )
    if not packages.is_installed("torchvision"):
        raise packages.missing_package("torchvision", field=seen[0])
