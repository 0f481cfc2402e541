"""The tiny checkpoint: complete, small, the same for the same seed, and written only where it may be."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.checkpoint import open_checkpoint
from engine.contract.errors import ConfigError
from engine.contract.geometry import default_canvas
from engine.tiny import MARKER, make_tiny
from tests.support import stages

LAYOUT = {
    "modular_model_index.json", "transformer", "transformer_ref", "vae", "audio_vae", "text_encoder", "tokenizer",
    "processor", "scheduler", "audio_scheduler", MARKER,
}  # fmt: skip


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_it_has_the_released_layout_and_geometry(tiny_checkpoint: Path) -> None:
    assert {entry.name for entry in tiny_checkpoint.iterdir()} == LAYOUT
    checkpoint = open_checkpoint(tiny_checkpoint)
    facts = checkpoint.facts
    assert (facts.latent_channels, facts.audio_latent_channels, facts.patch, facts.spatial_ratio) == (24, 32, 2, 16)
    assert checkpoint.components["text_encoder"].config["text_config"]["num_hidden_layers"] == 51
    assert checkpoint.partitions == ("transformer", "transformer_ref")
    assert facts.heads % 4 == 0
    assert sum(len(data) for data in _contents(tiny_checkpoint).values()) < 8_000_000


def test_its_default_canvas_is_small_and_wide(tiny_checkpoint: Path) -> None:
    facts = open_checkpoint(tiny_checkpoint).facts
    canvas = default_canvas(
        short_edge=facts.canvas_short_edge, max_pixels=facts.canvas_max_pixels, multiple=facts.canvas_multiple
    )
    assert canvas == (128, 64)


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(tmp_path: Path, tiny_checkpoint: Path) -> None:
    state = torch.get_rng_state()
    make_tiny(tmp_path / "again", preset="tiny")
    make_tiny(tmp_path / "other", preset="tiny", seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert _contents(tmp_path / "again") == _contents(tiny_checkpoint)
    assert _contents(tmp_path / "other") != _contents(tiny_checkpoint)


def test_the_partitions_differ(tiny_checkpoint: Path) -> None:
    weights = [(tiny_checkpoint / name / "diffusion_pytorch_model.safetensors").read_bytes()
               for name in ("transformer", "transformer_ref")]  # fmt: skip
    assert weights[0] != weights[1]


def test_what_it_makes_can_be_seen_and_heard(tiny_checkpoint: Path) -> None:
    result = stages.run_t2va(
        stages.load(tiny_checkpoint), prompt="a cat", width=96, height=64, frames=22, steps=2, seed=0
    )
    assert result.frames.std(dim=(0, 1, 2)).min() > 0.05
    assert (result.frames[0] - result.frames[-1]).abs().mean() > 0.02
    assert 0.01 < result.audio.std() < 0.5
    assert (result.audio.abs() >= 1).float().mean() < 0.001


def test_a_folder_that_holds_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "diary.txt").write_text("dear diary")
    with pytest.raises(ConfigError) as caught:
        make_tiny(tmp_path)
    assert (caught.value.code, caught.value.field) == ("config_bad_value", "folder")
    assert [entry.name for entry in tmp_path.iterdir()] == ["diary.txt"]


def test_an_unknown_preset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tiny, small"):
        make_tiny(tmp_path / "x", preset="huge")
    assert not (tmp_path / "x").exists()


def test_a_damaged_tiny_checkpoint_is_made_again_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    facts = make_tiny(folder)
    (folder / "vae" / "config.json").write_text("{")
    assert make_tiny(folder) == facts
    open_checkpoint(folder)
    assert [entry.name for entry in tmp_path.iterdir()] == ["tiny"]


def test_a_writer_that_fails_leaves_no_half_written_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("engine.tiny._write_schedulers", fail)
    with pytest.raises(OSError, match="disk full"):
        make_tiny(tmp_path / "tiny")
    assert list(tmp_path.iterdir()) == []


def test_what_is_seen_and_heard_moves_its_latents_as_far_as_they_are_wide(tiny_checkpoint: Path) -> None:
    models = stages.load(tiny_checkpoint, keep=frozenset({"vae", "audio_vae"}))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        pictures = [models.vae.encode(torch.randn(1, 3, 1, 64, 64, generator=generator)).latent_dist for _ in range(2)]
        sounds = [
            models.audio_vae.encode(torch.randn(2, 1, 8000, generator=generator)).latent_dist.mode() for _ in range(2)
        ]
    assert (pictures[0].mean - pictures[1].mean).std() > 0.5
    assert pictures[0].std.mean() < 0.1
    assert (sounds[0] - sounds[1]).std() > 0.1
