"""The packages that the engine runs without, which then says what it cannot do.

`is_installed` looks without importing, for the server's process, which has no torch. `import_package` imports: only a
torchvision or torchaudio that was built for the installed torch loads beside it.
Raises `RequestError` ``missing_package`` for what a request needs; of an option's, `package_for_option` is the error.
"""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

from .contract.errors import ConfigError, RequestError

OPTION_USES = {"torchao": "weights kept in int8"}
"""What options cannot do without each package, which nobody installs unasked; pyproject.toml has its versions."""
USES = {
    "torchvision": "keyframes and references with pictures",
    "torchaudio": "sound of another sample rate than the model's",
}
"""What requests cannot do without each package."""


def is_installed(name: str) -> bool:
    """Return whether the package ``name`` can be found; it may still not load."""
    return importlib.util.find_spec(name) is not None


def import_package(name: str, *, field: str) -> ModuleType:
    """Import one of `USES`.

    Args:
        field: of the request that needs it, for the error.

    Raises:
        RequestError: ``missing_package``.
    """
    try:
        return importlib.import_module(name)
    # Beside a torch that it was not built for, it fails in ways of its own.
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        raise missing_package(name, field=field, reason=str(error)) from error


def missing_package(name: str, *, field: str, reason: str | None = None) -> RequestError:
    """Return the error for a request that needs the package ``name`` of `USES`.

    Args:
        field: of the request that needs it. reason: why it does not load; None when it is not installed.
    """
    state = "is not installed" if reason is None else f"does not load: {reason}"
    return RequestError(
        "missing_package",
        f"The engine's Python needs {name} for {USES[name]}; it {state}.",
        field=field,
        value=name,
        remedy="Run install.py in the pack's folder, or install the version that belongs to the engine's torch into "
        "its environment (requirements-media.txt).",
    )


def package_for_option(name: str, *, field: str, value: object, reason: str | None = None) -> ConfigError:
    """Return the error for an option that needs the package ``name`` of `OPTION_USES`.

    Args:
        field, value: of the option. reason: why it does not load; None when it is not installed.
    """
    state = "is not installed" if reason is None else f"does not load: {reason}"
    return ConfigError(
        "missing_package",
        f"The engine's Python needs {name} for {OPTION_USES[name]}; it {state}.",
        field=field,
        value=value,
        remedy=f"Install {name} into the engine's environment (pip install --no-deps {name}; pyproject.toml has the "
        f"versions), or leave --{field.replace('_', '-')} out.",
    )
