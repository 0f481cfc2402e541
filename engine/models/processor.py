"""Qwen3-VL's processor, which turns pictures into what the text encoder reads. It needs torchvision.

Raises `RequestError` ``missing_package`` when torchvision is absent or does not load beside the installed torch, and
`ConfigError` ``checkpoint_invalid`` for a ``processor/`` that cannot be used.
"""

from __future__ import annotations

from typing import Any

from transformers import Qwen3VLProcessor

from ..checkpoint import SmallComponent
from ..checkpoint_files import invalid
from ..packages import import_package
from .own_code import own_class, trust


def load_processor(component: SmallComponent) -> Any:
    """Return the processor of a checkpoint."""
    import_package("torchvision", field="request")
    cls = own_class(component.name, component.own_code, Qwen3VLProcessor, role="AutoProcessor")
    try:
        # The processors of images and videos inside it may bring code too.
        return cls.from_pretrained(component.folder, local_files_only=True, **trust(component.own_code))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise invalid("processor", None, f"processor/ cannot be read: {error}") from error
