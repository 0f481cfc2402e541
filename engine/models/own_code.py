"""Classes from code that a checkpoint brings. Called only for components whose code the operator trusts.

Raises `ConfigError` ``checkpoint_invalid`` when that code cannot be imported, with its own error.
"""

from __future__ import annotations

import fcntl
import logging
import os
import tempfile
from pathlib import Path
from typing import Any

from transformers.dynamic_module_utils import get_class_from_dynamic_module

from ..checkpoint_code import OwnCode
from ..contract.errors import ConfigError

logger = logging.getLogger(__name__)


def trust(code: OwnCode | None) -> dict[str, bool]:
    """Return the argument with which a library's ``from_pretrained`` runs ``code``; nothing without any."""
    return {} if code is None else {"trust_remote_code": True}


def own_class(name: str, code: OwnCode | None, default: Any, *, role: str | None = None) -> Any:
    """Return the class that the component ``name`` brings, ``default`` when it brings none.

    Args:
        role: what the class stands for (``AutoConfig``); None: the component itself.

    Raises:
        ConfigError: ``checkpoint_invalid``.
    """
    reference = None if code is None else code.reference(role)
    if code is None or reference is None:
        return default
    logger.warning("%s: running the code of %s in %s, as --trust-remote-code allows", name, reference, code.folder)
    # The library copies the file before it imports it; two ranks must not do so at once.
    lock_path = Path(tempfile.gettempdir()) / f"h3-own-code-{os.getuid()}.lock"
    try:
        with lock_path.open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return get_class_from_dynamic_module(reference, str(code.folder), local_files_only=True)
    except Exception as error:  # it is somebody else's code
        raise ConfigError(
            "checkpoint_invalid",
            f"The code of {name} cannot be used: {type(error).__name__}: {error}",
            field=name,
            value=reference,
            remedy="Ask the checkpoint's author, or use a checkpoint without code.",
        ) from error
