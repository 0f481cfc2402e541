"""Code that a component of a checkpoint brings: never run unless the operator says so, and then run."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.checkpoint import open_checkpoint
from engine.contract.errors import ConfigError
from engine.models.bundle import Models
from engine.models.loading import load_models
from engine.rank_options import ModelOptions
from tests.support import stages

BASES = {
    "transformer": ("diffusers", "MiniMaxH3Transformer3DModel", "config.json", "AutoModel"),
    "transformer_ref": ("diffusers", "MiniMaxH3Transformer3DModel", "config.json", "AutoModel"),
    "vae": ("diffusers", "AutoencoderKLMiniMaxH3", "config.json", "AutoModel"),
    "audio_vae": ("diffusers", "AutoencoderKLMiniMaxH3Audio", "config.json", "AutoModel"),
    "text_encoder": ("transformers", "Qwen3VLModel", "config.json", "AutoModel"),
    "tokenizer": ("transformers", "Qwen2Tokenizer", "tokenizer_config.json", "AutoTokenizer"),
    "scheduler": ("diffusers", "MiniMaxH3Scheduler", "scheduler_config.json", "AutoModel"),
    "audio_scheduler": ("diffusers", "MiniMaxH3Scheduler", "scheduler_config.json", "AutoModel"),
}
"""Of each component: the class that its own code derives from, the file that names it, and as what."""


@pytest.fixture
def copy(tmp_path: Path, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy that a test may change; code that runs leaves no trace in this user's cache."""
    modules = tmp_path / "modules"
    modules.mkdir()
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(modules))
    monkeypatch.setattr(sys, "path", [*sys.path])
    return Path(shutil.copytree(tiny_checkpoint, tmp_path / "model"))


def _bring_code(folder: Path, name: str) -> Path:
    """Give the component code of its own; return the file that it makes when it runs."""
    library, base, file, role = BASES[name]
    proof = folder / f"{name} ran"
    (folder / name / "own.py").write_text(
        f"from pathlib import Path\nfrom {library} import {base}\n"
        f"Path({str(proof)!r}).touch()\n\nclass Own({base}):\n    brought = True\n"
    )
    path = folder / name / file
    reference: Any = ["own.Own", None] if name == "tokenizer" else "own.Own"
    path.write_text(json.dumps({**json.loads(path.read_text()), "auto_map": {role: reference}}))
    return proof


def _load(folder: Path, name: str) -> Models:
    checkpoint = open_checkpoint(folder, options=ModelOptions(own_code=True))
    keep = frozenset({name}) & frozenset(checkpoint.components)
    return load_models(checkpoint, device=stages.CPU, dtype=torch.float32, keep=keep, on_bytes=lambda *_: None)


@pytest.mark.parametrize("name", BASES)
def test_a_component_with_code_is_refused_by_default_with_its_path_and_class(copy: Path, name: str) -> None:
    proof = _bring_code(copy, name)
    with pytest.raises(ConfigError) as caught:
        open_checkpoint(copy)
    error = caught.value
    assert (error.code, error.field, error.value) == ("remote_code_refused", name, "own.Own")
    assert error.details == {"component": name, "path": str(copy / name / "own.py"), "class": "Own"}
    assert "--trust-remote-code" in str(error)
    assert not proof.exists()


@pytest.mark.parametrize("name", BASES)
def test_trusted_code_runs_and_makes_the_component(copy: Path, tiny_checkpoint: Path, name: str) -> None:
    proof = _bring_code(copy, name)
    made = getattr(_load(copy, name), name)
    assert made.brought
    assert proof.exists()
    if name in ("transformer", "transformer_ref", "vae", "audio_vae", "text_encoder"):
        wanted = getattr(stages.load(tiny_checkpoint, keep=frozenset({name})), name).state_dict()
        found = made.state_dict()
        assert found.keys() == wanted.keys()
        assert all(torch.equal(value, wanted[key]) for key, value in found.items())


def test_a_checkpoint_without_code_loads_alike_when_code_is_trusted(tiny_checkpoint: Path) -> None:
    checkpoint = open_checkpoint(tiny_checkpoint, options=ModelOptions(own_code=True))
    assert all(component.own_code is None for component in checkpoint.components.values())


def test_code_deep_in_the_processors_configuration_is_found(copy: Path) -> None:
    path = copy / "processor" / "processor_config.json"
    data = json.loads(path.read_text())
    data["image_processor"]["auto_map"] = {"AutoImageProcessor": "pictures.Reader"}
    path.write_text(json.dumps(data))
    with pytest.raises(ConfigError) as caught:
        open_checkpoint(copy)
    assert (caught.value.code, caught.value.field) == ("remote_code_refused", "processor")
    assert "pictures.py" in caught.value.message


def test_code_that_the_index_names_is_found(copy: Path) -> None:
    path = copy / "modular_model_index.json"
    data = json.loads(path.read_text())
    data["vae"][:2] = ["own_vae", "Own"]
    path.write_text(json.dumps(data))
    with pytest.raises(ConfigError) as caught:
        open_checkpoint(copy)
    assert (caught.value.code, caught.value.value) == ("remote_code_refused", "own_vae.Own")


def test_code_of_a_component_that_is_not_loaded_does_not_matter(copy: Path) -> None:
    proof = _bring_code(copy, "vae")
    open_checkpoint(copy, stages=("encode_prompt", "denoise"))
    assert not proof.exists()


@pytest.mark.parametrize("trusted", [False, True])
def test_a_class_that_nobody_has_is_told(copy: Path, trusted: bool) -> None:
    path = copy / "vae" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "_class_name": "AutoencoderKLSomething"}))
    with pytest.raises(ConfigError) as caught:
        open_checkpoint(copy, options=ModelOptions(own_code=trusted))
    assert (caught.value.code, caught.value.value) == ("checkpoint_invalid", "AutoencoderKLSomething")


def test_trusted_code_that_fails_is_told_with_its_error(copy: Path) -> None:
    _bring_code(copy, "vae")
    (copy / "vae" / "own.py").write_text("raise LookupError('no such thing')\n")
    with pytest.raises(ConfigError, match="LookupError: no such thing") as caught:
        _load(copy, "vae")
    assert (caught.value.code, caught.value.field) == ("checkpoint_invalid", "vae")
