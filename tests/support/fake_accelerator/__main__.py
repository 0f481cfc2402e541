"""The child process of `run_on_device`: ``python -m tests.support.fake_accelerator FUNCTION ARGUMENTS ANSWER``."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path

import torch

from tests.support.fake_accelerator import FakeDevice


def main(function: str, arguments: str, answer: str) -> None:
    """Run one function."""
    torch.set_num_threads(1)
    # Libraries ask torch for its accelerator when they are imported, and torch remembers what it found.
    device = FakeDevice()
    module, _, name = function.partition(":")
    result = getattr(import_module(module), name)(device, **json.loads(arguments))
    Path(answer).write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
